"""``relay gaps``: the gaps of a relay, pending, accepted and published, and the decisions about them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.config.per_table import NO_READS
from relay.errors import ConfigError
from relay.kafka import topics
from relay.kafka.checkpoints import committed_records
from relay.kafka.committed import read_all_committed
from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from relay.records import CommittedRecords, Decision, PendingGap
from relay.stream import gap_decisions

GapState = Literal["pending", "accepted", "published"]
"""Pending: the relay stopped at the gap. Accepted: it continues at its next start. Published: nothing is left to do."""


@dataclass(frozen=True, slots=True)
class ListedGap:
    gap: Mapping[str, Any]  # as on its topic
    state: GapState
    decision: Decision | None = None  # while it is accepted
    replaced: Decision | None = None  # the decision before it
    newer: tuple[str, ...] = ()  # the ids of later statements about its table, about which nobody has decided

    @property
    def id(self) -> str:
        return str(self.gap["id"])

    @property
    def source(self) -> str:
        return str(self.gap["source"])

    def to_json(self) -> dict[str, Any]:
        return {**self.gap, "state": self.state, "decision": self.decision and self.decision.value}


def list_gaps(
    config: Config, admin: AdminClient | None = None, view: CommittedRecords | None = None
) -> list[ListedGap]:
    """Return all gaps, unpublished ones first. Raises ``Unavailable``. ``view``: what the relay has committed."""
    admin = admin or topics.connect(config)
    # Before the topic of gaps, else a gap that is published meanwhile would be in neither.
    view = committed_records(config, admin) if view is None else view
    published: dict[str, ListedGap] = {}
    for message in read_all_committed(admin, config, config.internal("gaps")):
        gap = orjson.loads(message.value() or b"")
        published[gap["id"]] = ListedGap(gap, "published")
    unpublished = [
        ListedGap(gap.gap.published(), "accepted" if gap.decision else "pending", gap.decision)
        for gap in _unpublished_gaps(config, view)
        if gap.id not in published  # a worker may have published the gap but not yet removed its record
    ]
    return [*unpublished, *published.values()]


def accept(config: Config, gap_id: str, decision: Decision) -> ListedGap:
    """Record the decision for the next worker that meets the gap. Raises ``ConfigError`` and ``Unavailable``."""
    admin = topics.connect(config)
    found = {gap.id: gap for gap in list_gaps(config, admin)}
    if (chosen := found.get(gap_id)) is None:
        ids = ", ".join(gap.id for gap in found.values() if gap.state != "published")
        raise ConfigError(f"there is no gap {gap_id!r}; {f'pending gaps: {ids}' if ids else 'no gap is pending'}")
    if chosen.state == "published" and decision is Decision.SKIP:
        altered = committed_records(config, admin).altered_of(chosen.source)
        noted = [(each.key, each.gap) for each in altered if each.gap and each.gap.table == chosen.gap.get("table")]
        # I12: shards have the same statement at other times, and nobody has decided about later statements
        keys = [key for key, gap in noted if gap.id == gap_id or gap.found_at <= chosen.gap["found_at"]]
        for key in keys:
            write_unfenced(KafkaSettings.from_config(config), key, None, "relay status")
        if keys:
            newer = dict.fromkeys(gap.id for key, gap in noted if key not in keys)
            return replace(chosen, state="accepted", decision=decision, newer=tuple(newer))
    if chosen.state == "published":
        raise ConfigError(f"gap {gap_id} has already been published, so there is nothing left to decide")
    left = {gap.id: gap for gap in _unpublished_gaps(config, committed_records(config, admin))}
    if (pending := left.get(gap_id)) is None:
        raise ConfigError(f"gap {gap_id} has just been published, so there is nothing left to decide")
    of_debezium = [each.name for each in config.sources if each.is_debezium]
    if decision is Decision.RESNAPSHOT and chosen.source in of_debezium:  # I7
        raise ConfigError(f"source {chosen.source}: resnapshot {NO_READS}")
    gap_decisions.write(KafkaSettings.from_config(config), replace(pending, decision=decision, updated_at=time.time()))
    return ListedGap(pending.gap.published(), "accepted", decision, pending.decision)


def _unpublished_gaps(config: Config, view: CommittedRecords) -> list[PendingGap]:
    return [gap for entry in config.sources for gap in gap_decisions.all_pending_gaps(view, entry.name)]

"""``relay gaps``: the gaps of a relay, pending, accepted and published, and the decisions about them."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.errors import ConfigError
from relay.kafka import topics
from relay.kafka.checkpoints import CheckpointView, read_checkpoints
from relay.kafka.committed import read_all_committed
from relay.kafka.settings import KafkaSettings
from relay.records import Decision, PendingGap
from relay.stream import gap_decisions

GapState = Literal["pending", "accepted", "published"]
"""Pending: the relay has stopped at it. Accepted: the relay continues at its next start. Published: it is over."""


@dataclass(frozen=True, slots=True)
class ListedGap:
    """A gap and its state. ``gap``: as on the gaps topic. ``decision``: set only while it is accepted.

    ``replaced``: the decision before it, if there was one.
    """

    gap: Mapping[str, Any]
    state: GapState
    decision: Decision | None = None
    replaced: Decision | None = None

    @property
    def id(self) -> str:
        return str(self.gap["id"])

    @property
    def source(self) -> str:
        return str(self.gap["source"])

    def to_json(self) -> dict[str, Any]:
        return {**self.gap, "state": self.state, "decision": self.decision and self.decision.value}


def list_gaps(config: Config, admin: AdminClient | None = None) -> list[ListedGap]:
    """Return all gaps, unpublished ones first. Raises ``Unavailable``."""
    admin = admin or topics.connect(config)
    published: dict[str, ListedGap] = {}
    for message in read_all_committed(admin, config, config.internal("gaps")):
        gap = orjson.loads(message.value() or b"")
        published[gap["id"]] = ListedGap(gap, "published")
    unpublished = []
    if config.internal("checkpoints") in topics.list_topics(admin, config):
        with closing(read_checkpoints(config.kafka.client(), config.internal("checkpoints"))) as view:
            for gap in _unpublished_gaps(view, config):
                # A worker may have published it and not yet removed its record.
                if gap.id not in published:
                    state: GapState = "accepted" if gap.decision else "pending"
                    unpublished.append(ListedGap(gap.gap.published(), state, gap.decision))
    return [*unpublished, *published.values()]


def accept(config: Config, gap_id: str, decision: Decision) -> ListedGap:
    """Record the decision about a pending gap. Raises ``ConfigError`` and ``Unavailable``.

    The next worker that meets the gap, running or after a restart, continues under this decision.
    """
    found = list_gaps(config)
    unpublished = [gap for gap in found if gap.state != "published"]
    chosen = next((gap for gap in found if gap.id == gap_id), None)
    if chosen is None:
        ids = f"pending gaps: {', '.join(gap.id for gap in unpublished)}" if unpublished else "no gap is pending"
        raise ConfigError(f"there is no gap {gap_id!r}; {ids}")
    if chosen.state == "published":
        raise ConfigError(f"gap {gap_id} has already been published, so there is nothing left to decide")
    with closing(read_checkpoints(config.kafka.client(), config.internal("checkpoints"))) as view:
        pending = next((gap for gap in _unpublished_gaps(view, config) if gap.id == gap_id), None)
    if pending is None:
        raise ConfigError(f"gap {gap_id} has just been published, so there is nothing left to decide")
    gap_decisions.write(KafkaSettings.from_config(config), replace(pending, decision=decision, updated_at=time.time()))
    return ListedGap(pending.gap.published(), "accepted", decision, pending.decision)


def _unpublished_gaps(view: CheckpointView, config: Config) -> list[PendingGap]:
    return [gap for entry in config.sources for gap in gap_decisions.all_pending_gaps(view, entry.name)]

"""``relay gaps``: the losses of a relay, those that wait for a person and those that were published."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import orjson
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.engine import gap_decisions
from relay.engine.gap_decisions import Decision, PendingGap
from relay.errors import ConfigError
from relay.kafka import topics
from relay.kafka.checkpoints import CheckpointView, read_checkpoints
from relay.kafka.committed import read_all_committed
from relay.kafka.settings import KafkaSettings


class GapState(StrEnum):
    """Pending: the relay has stopped for it. Accepted: it goes on at its next start. Published: it is over."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class ListedGap:
    """A loss. ``gap``: as on the gaps topic. ``decision``: None while there is none, or once that is over."""

    gap: Mapping[str, Any]
    state: GapState
    decision: Decision | None = None

    @property
    def id(self) -> str:
        return str(self.gap["id"])

    @property
    def source(self) -> str:
        return str(self.gap["source"])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: the gap, its state and the decision."""
        return {**self.gap, "state": self.state.value, "decision": self.decision and self.decision.value}


def found_gaps(admin: AdminClient, config: Config) -> list[ListedGap]:
    """Return every loss, those that wait first. Raises ``Unavailable``."""
    published: dict[str, ListedGap] = {}
    for message in read_all_committed(admin, config, config.internal("gaps")):
        gap = orjson.loads(message.value() or b"")
        published[gap["id"]] = ListedGap(gap, GapState.PUBLISHED)
    waiting = []
    if config.internal("checkpoints") in topics.list_topics(admin, config):
        with closing(read_checkpoints(config.kafka.client(), config.internal("checkpoints"))) as view:
            for loss in _losses(view, config):
                # Published and not yet removed by the worker that looks after it.
                if loss.id not in published:
                    state = GapState.ACCEPTED if loss.decision else GapState.PENDING
                    waiting.append(ListedGap(loss.gap, state, loss.decision))
    return [*waiting, *published.values()]


def accept(config: Config, gap_id: str, decision: Decision) -> ListedGap:
    """Write down what was decided about a loss that waits. Raises ``ConfigError``, ``Unavailable``.

    Whoever meets the loss next, a running worker or the next start, goes on under it.
    """
    admin = topics.connect(config)
    there = found_gaps(admin, config)
    waiting = [gap for gap in there if gap.state is not GapState.PUBLISHED]
    chosen = next((gap for gap in there if gap.id == gap_id), None)
    if chosen is None:
        ids = f"there are: {', '.join(gap.id for gap in waiting)}" if waiting else "none waits"
        raise ConfigError(f"no gap {gap_id!r} waits for a decision; {ids}")
    if chosen.state is GapState.PUBLISHED:
        raise ConfigError(f"gap {gap_id} was published already: there is nothing left to decide")
    entry = next(source for source in config.sources if source.name == chosen.source)
    if decision is Decision.RESNAPSHOT and not entry.has_snapshots:
        raise ConfigError(f"source {entry.name} of type {entry.type} cannot read its table again: accept with `skip`")
    with closing(read_checkpoints(config.kafka.client(), config.internal("checkpoints"))) as view:
        loss = next((loss for loss in _losses(view, config) if loss.id == gap_id), None)
    if loss is None:
        raise ConfigError(f"gap {gap_id} was published just now: there is nothing left to decide")
    gap_decisions.write(KafkaSettings.from_config(config), replace(loss, decision=decision, updated_at=time.time()))
    return ListedGap(loss.gap, GapState.ACCEPTED, decision)


def _losses(view: CheckpointView, config: Config) -> list[PendingGap]:
    return [loss for entry in config.sources for loss in gap_decisions.all_pending_gaps(view, entry.name)]

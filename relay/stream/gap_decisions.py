"""Gaps that wait for a person: pending under ``on_gap: fail``, accepted by ``relay gaps accept``, then published.

Their records are beside the checkpoints of the stream, under ``<label>/gaps``. They have the shape of a checkpoint:
``position`` is the gap, ``start`` the decision, ``state`` planned (pending) or
finished (accepted). They change with ``schemas/golden/checkpoints.json``.

These records are written outside the workers' transactions and without the fence, because any worker may meet a gap
while another owns the record's partition, and a person decides from yet another process. Nothing depends on when they
arrive: every worker that meets the gap writes the same pending record, and a decision that is missed, or replaced by a
late pending record, only makes the relay stop and ask again. That a gap is published once depends on the checkpoint in
its transaction alone (I3). The owner of a record's partition removes it once that checkpoint is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from relay.kafka.checkpoints import CheckpointView, partition_of
from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from relay.lineage import Checkpoint, CommittedRecords, Gap, ShardState, StreamId

_SUFFIX = "/gaps"


class Decision(StrEnum):
    """What a person has decided about a gap."""

    SKIP = "skip"
    RESNAPSHOT = "resnapshot"


@dataclass(frozen=True, slots=True)
class PendingGap:
    """A gap that a person has to decide about. ``gap``: as on the gaps topic. ``decision``: None while pending.

    ``updated_at``: seconds since the epoch.
    """

    stream: StreamId
    gap: Mapping[str, Any]
    decision: Decision | None = None
    updated_at: float = 0.0

    @property
    def id(self) -> str:
        return str(self.gap["id"])

    @property
    def key(self) -> bytes:
        return key(self.stream, self.id)

    def to_json(self) -> bytes:
        return Checkpoint(
            state=ShardState.FINISHED if self.decision else ShardState.PLANNED,
            position=self.gap,
            start={"decision": self.decision.value} if self.decision else None,
            gap=self.id,
            updated_at=self.updated_at,
        ).to_json()


def records_of(stream: StreamId) -> StreamId:
    """Return the stream under which the pending gaps of ``stream`` have their records."""
    return StreamId(stream.source, stream.label + _SUFFIX)


def key(stream: StreamId, gap_id: str) -> bytes:
    return records_of(stream).checkpoint_key(gap_id)


def pending_gaps(view: CommittedRecords, stream: StreamId) -> Iterator[PendingGap]:
    """Yield the records of the gaps of ``stream``, pending and accepted."""
    for record in view.checkpoints.get(records_of(stream), {}).values():
        if record.position is not None:
            decision = Decision(record.start["decision"]) if record.start else None
            yield PendingGap(stream, record.position, decision, record.updated_at)


def all_pending_gaps(view: CommittedRecords, source: str) -> list[PendingGap]:
    """Return the pending and accepted gaps of ``source`` in all its streams, the oldest first."""
    streams = [
        StreamId(stream.source, stream.label.removesuffix(_SUFFIX))
        for stream in view.checkpoints
        if stream.source == source and stream.label.endswith(_SUFFIX)
    ]
    return sorted(
        (gap for stream in streams for gap in pending_gaps(view, stream)), key=lambda gap: gap.gap["found_at"]
    )


def to_repair(view: CommittedRecords, stream: StreamId) -> set[str]:
    """Return the ids of the gaps that a person wants repaired by a snapshot."""
    return {gap.id for gap in pending_gaps(view, stream) if gap.decision is Decision.RESNAPSHOT}


def resolved(view: CommittedRecords, stream: StreamId, published: Set[str | None], repaired: Set[str]) -> list[bytes]:
    """Return the keys of the records whose gap is ``published``.

    A decision to repair stays until a snapshot was requested for it: nothing else holds it.
    """
    return [
        gap.key
        for gap in pending_gaps(view, stream)
        if gap.id in published and (gap.decision is not Decision.RESNAPSHOT or gap.id in repaired)
    ]


def find(view: CommittedRecords, gap: Gap) -> PendingGap | None:
    """Return the record of ``gap``, None if it has none."""
    stream = StreamId(gap.source, gap.label)
    return next((pending for pending in pending_gaps(view, stream) if pending.id == gap.id), None)


def decision_about(settings: KafkaSettings, view: CheckpointView, gap: Gap, timeout: float) -> Decision | None:
    """Return what was decided about ``gap``; without a decision, write it as pending. Raises ``Unavailable``."""
    stream = StreamId(gap.source, gap.label)
    # A decision made a moment ago must not be overwritten.
    view.require_end({partition_of(key(stream, gap.id))}, timeout)
    known = find(view, gap)
    if known is None:
        write(settings, PendingGap(stream, orjson.loads(gap.to_json()), updated_at=time.time()))
    return known.decision if known is not None else None


def write(settings: KafkaSettings, gap: PendingGap) -> None:
    """Write the record of ``gap``, and wait until it is stored. Raises ``Unavailable``."""
    write_unfenced(settings, gap.key, gap.to_json(), "relay gaps list")

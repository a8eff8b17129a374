"""Losses that wait for a person: pending under ``on_gap: fail``, accepted by ``relay gaps accept``, then published.

Written down beside the checkpoints of the stream, under ``<label>/gaps``, in records that have the shape of a
checkpoint, so that older relays can hold them: ``position`` is the gap, ``start`` the decision, ``state``
planned (pending) or finished (accepted). They change with ``schemas/golden/checkpoints.json``.

These records are written outside of the workers' transactions and without the fence, because any worker may meet any
loss while the record's partition is another's, and a person decides from another process still. Nothing hangs on when
they arrive: a pending one says what every worker that meets the loss says again, and a decision that is missed, or
replaced by a late *pending*, makes the relay stop and ask once more. That a loss is published once hangs on the
checkpoint that comes with it alone (I3). Only the owner of a record's partition removes it, once that one is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from relay.errors import Unavailable
from relay.kafka.checkpoints import CheckpointView, partition_of
from relay.kafka.settings import KafkaSettings
from relay.kafka.topics import SILENT
from relay.lineage import Checkpoint, Gap, ShardState, StreamId

_SUFFIX = "/gaps"
_PATIENCE = 30.0


class Decision(StrEnum):
    """What a person has decided about a loss."""

    SKIP = "skip"
    RESNAPSHOT = "resnapshot"


@dataclass(frozen=True, slots=True)
class PendingGap:
    """A loss that a person has to decide about. ``gap``: as on the gaps topic. ``decision``: None while pending.

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
    """Return what the losses of ``stream`` are written down under."""
    return StreamId(stream.source, stream.label + _SUFFIX)


def key(stream: StreamId, gap_id: str) -> bytes:
    return records_of(stream).checkpoint_key(gap_id)


def losses(view: CheckpointView, stream: StreamId) -> Iterator[PendingGap]:
    """Yield what is written down of the losses of ``stream``, pending and accepted."""
    for record in view.checkpoints.get(records_of(stream), {}).values():
        if record.position is not None:
            decision = Decision(record.start["decision"]) if record.start else None
            yield PendingGap(stream, record.position, decision, record.updated_at)


def every_loss(view: CheckpointView, source: str) -> list[PendingGap]:
    """Return the losses of ``source`` in all its streams, the oldest first."""
    streams = [
        StreamId(stream.source, stream.label.removesuffix(_SUFFIX))
        for stream in view.checkpoints
        if stream.source == source and stream.label.endswith(_SUFFIX)
    ]
    return sorted((loss for stream in streams for loss in losses(view, stream)), key=lambda loss: loss.gap["found_at"])


def repairs(view: CheckpointView, stream: StreamId) -> set[str]:
    """Return the ids of the losses that a person wants a snapshot for."""
    return {loss.id for loss in losses(view, stream) if loss.decision is Decision.RESNAPSHOT}


def dealt_with(view: CheckpointView, stream: StreamId, published: Set[str | None], repaired: Set[str]) -> list[bytes]:
    """Return the keys of losses that are ``published``. Until a snapshot was asked for, a decision is nowhere else."""
    return [
        loss.key
        for loss in losses(view, stream)
        if loss.id in published and (loss.decision is not Decision.RESNAPSHOT or loss.id in repaired)
    ]


def find(view: CheckpointView, gap: Gap) -> PendingGap | None:
    """Return what is written down of ``gap``."""
    stream = StreamId(gap.source, gap.label)
    return next((loss for loss in losses(view, stream) if loss.id == gap.id), None)


def decided(settings: KafkaSettings, view: CheckpointView, gap: Gap, timeout: float) -> Decision | None:
    """Return what was decided about ``gap``; without a decision write it down as pending. Raises ``Unavailable``."""
    stream = StreamId(gap.source, gap.label)
    # What was decided a moment ago must not be replaced.
    if not view.read_to_end({partition_of(key(stream, gap.id))}, timeout):
        raise Unavailable(f"{settings.checkpoints} cannot be read to its end")
    known = find(view, gap)
    if known is None:
        write(settings, PendingGap(stream, orjson.loads(gap.to_json()), updated_at=time.time()))
    return known.decision if known is not None else None


def write(settings: KafkaSettings, loss: PendingGap) -> None:
    """Write ``loss`` down, and return once it is. Raises ``Unavailable``. See the module on why without the fence."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    try:
        producer = Producer(
            {
                **settings.client,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": int(_PATIENCE * 1000),
            },
            logger=SILENT,
        )
        producer.produce(
            settings.checkpoints,
            key=loss.key,
            value=loss.to_json(),
            partition=partition_of(loss.key),
            on_delivery=delivered,
        )
        left = producer.flush(_PATIENCE + 5)
    except KafkaException as error:
        raise Unavailable(f"{settings.checkpoints} cannot be written: {error}") from error
    if left or failures:
        reason = failures[0].str() if failures else "no answer"
        raise Unavailable(f"{settings.checkpoints} cannot be written: {reason}")

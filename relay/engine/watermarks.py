"""How far everything is on the topics, told to whoever closes windows downstream.

The records of ``<name>.watermarks`` are a contract: key JSON ``["v1", source, label, shard]`` for a shard,
``["v1", source, label]`` for a stream, ``["v1"]`` for all of them; value JSON ``watermark`` (seconds since the epoch:
every change committed at the source before it is on the topics, in or before the transaction of the record),
``finished`` (of a shard: nothing follows) and ``updated_at``. A shard's come with its checkpoints, from whoever reads
it; the others have one writer each, the owner of that key among the checkpoint partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import orjson

from relay.kafka.checkpoints import partition_of
from relay.lineage import Checkpoint, ShardState, StreamId

OVERALL = orjson.dumps(["v1"])

MARGIN = 5.0
"""Seconds by which watermarks stay behind: the times of a source's changes may go back by as much."""

_EVERY = 1.0  # seconds between two records of one key


class Watermarks:
    """Which watermarks are due. Used by the worker's thread."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        # When each shard's was told last.
        self._told: dict[bytes, float] = {}
        # What was told of streams, and of all.
        self._low: dict[bytes, float] = {}
        self._next_at = 0.0

    def of_shard(self, stream: StreamId, shard: str, checkpoint: Checkpoint) -> tuple[bytes, bytes] | None:
        """Return the record of a shard whose ``checkpoint`` is being written down, None if it is not due."""
        if checkpoint.progress is None:
            return None
        key, now = stream.checkpoint_key(shard), self.clock()
        finished = checkpoint.state is ShardState.FINISHED
        if finished:
            self._told.pop(key, None)
        elif now - self._told.get(key, 0.0) < _EVERY:
            return None
        else:
            self._told[key] = now
        return key, self._value(checkpoint.progress, finished)

    def low(
        self, streams: Callable[[], Iterable[tuple[StreamId, float | None]]], owned: set[int]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of streams and of all together that are due and that the owner of ``owned`` writes.

        ``streams``: the low watermark of each, None while it is not known.
        """
        if self.clock() < self._next_at:
            return
        self._next_at = self.clock() + _EVERY
        found = list(streams())
        known = [watermark for _, watermark in found if watermark is not None]
        wanted = [(stream.plan_key, watermark) for stream, watermark in found]
        wanted.append((OVERALL, min(known) if known and len(known) == len(found) else None))
        for key, watermark in wanted:
            if partition_of(key) not in owned:
                self._low.pop(key, None)  # what its new owner writes is not known here
            elif watermark is not None and watermark > self._low.get(key, 0.0):
                self._low[key] = watermark
                yield key, self._value(watermark, False)

    def _value(self, watermark: float, finished: bool) -> bytes:
        return orjson.dumps({"watermark": watermark - MARGIN, "finished": finished, "updated_at": self.clock()})

"""Low watermarks: how far the topics are complete, for programs that close windows downstream.

The records of ``<name>.watermarks`` are a contract. Key: JSON ``["v1", source, label, shard]`` for a shard, ``["v1",
source, label]`` for a stream, ``["v1"]`` for all streams. Value: JSON with ``watermark`` (seconds since the epoch:
every change committed at the source before it is on its topic, in the record's transaction or an earlier one),
``finished`` (of a shard: nothing follows) and ``updated_at``. The reader of a shard writes the shard's record with its
checkpoints; each of the other records has one writer, the owner of the checkpoint partition of its key.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator

import orjson

from relay.kafka.checkpoints import partition_of
from relay.records import RecordKind, ShardCheckpoint, ShardState, StreamId, parse_key

OVERALL = orjson.dumps(["v1"])

MARGIN = 5.0  # seconds that watermarks stay behind, because the times of changes may go back by as much
_EVERY = 1.0  # seconds between two records of one key


class WatermarkRecords:
    """Decides which watermarks are due. ``wall``: returns seconds since the epoch, for the time of a record."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.wall = wall
        # When the last record of a shard was written, if that was less than a second or two ago.
        self._written_at: dict[bytes, float] = {}
        # The last watermark of each stream, and of all streams: as committed, and in the open transaction.
        self._low: dict[bytes, float] = {}
        self._open: dict[bytes, float] = {}
        self._looked_at = -math.inf  # when streams were last checked for due watermarks

    def of_shard(self, stream: StreamId, shard: str, checkpoint: ShardCheckpoint) -> tuple[bytes, bytes] | None:
        """Return the watermark record of a shard whose ``checkpoint`` is being written, or None if it is not due."""
        if checkpoint.progress is None:
            return None
        key, now = _key(stream, shard), self.clock()
        finished = checkpoint.state is ShardState.FINISHED
        if not finished and now - self._written_at.get(key, -math.inf) < _EVERY:
            return None
        self._written_at[key] = now
        return key, self._value(checkpoint.progress, finished)

    def committed(self) -> None:
        """The transaction was committed."""
        self._low |= self._open
        self._open.clear()

    def aborted(self) -> None:
        """The transaction was aborted, and so were its watermarks. A shard writes another with its next checkpoint."""
        self._open.clear()  # I10: the progress of a stream that has ended never grows

    def low(
        self, streams: Callable[[], Iterable[tuple[StreamId, float | None]]], owned: set[int]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records that are due in ``owned``. ``streams``: each with its low watermark, or None if unknown."""
        now = self.clock()
        if now - self._looked_at < _EVERY:
            return
        self._looked_at = now
        self._written_at = {key: at for key, at in self._written_at.items() if now - at < _EVERY}
        found = list(streams())
        known = [watermark for _, watermark in found if watermark is not None]
        wanted = [(_key(stream), watermark) for stream, watermark in found]
        wanted.append((OVERALL, min(known) if known and len(known) == len(found) else None))
        for key, watermark in wanted:
            if partition_of(key) not in owned:
                self._low.pop(key, None)  # its new owner may write another value
                self._open.pop(key, None)
            elif watermark is not None and watermark > self._open.get(key, self._low.get(key, 0.0)):
                self._open[key] = watermark
                yield key, self._value(watermark, False)

    def _value(self, watermark: float, finished: bool) -> bytes:
        return orjson.dumps({"watermark": watermark - MARGIN, "finished": finished, "updated_at": self.wall()})


def key_beside(record: bytes) -> bytes | None:
    """Return the key of the watermark that belongs to the checkpoint or plan with the key ``record``."""
    kind, stream, name = parse_key(record)
    return _key(stream, *([name] if name else [])) if kind in (RecordKind.SHARD, RecordKind.PLAN) else None


def _key(stream: StreamId, *shard: str) -> bytes:
    return orjson.dumps(["v1", stream.source, stream.label, *shard])

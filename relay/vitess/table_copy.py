"""The copy of one table in a stream of its own: rows arrive in batches, each followed by the key that it ends at.

vtgate reads a table as it was at one position. It starts again, at a later one, where it goes on after a failure, and
then also sends the changes of the rows before. Those are skipped: the stream of the shard has them.

Each row is an event of its own. The compiled core finds them in an answer without reading it, and while other threads
go on.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from relay import native
from relay.vitess.call import Call
from relay.vitess.client import event_of, events_of
from relay.vitess.events import EventKind
from relay.vitess.failures import BrokenStream
from relay.vitess.position import position_in
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import VStreamRowDecoder
from relay.vitess.shard import VitessShard
from relay.vitess.tables import Tables


@dataclass(slots=True)
class CopiedBatch:
    """Rows of a table, in the order of its key. vtgate bounds a batch to about 250 kB (--vstream-packet-size)."""

    answers: list[bytes] = field(default_factory=list)
    """The rows, in answers that have nothing else."""
    count: int = 0
    """How many there are."""
    decoder: VStreamRowDecoder | None = None
    """How they are read, or None if the table is not wanted."""
    end: pb.TableLastPK | None = None
    """The key of the last one, or None until it has come."""
    executed: str = ""
    """The set that they were read at, flavour in front."""

    @property
    def rows(self) -> Iterator[pb.Row]:
        events = (event for answer in self.answers for event in events_of(answer))
        return (change.after for event in events for change in event.row_event.row_changes)


class TableCopy:
    """The batches that ``call`` brings. Used by one thread. ``resumes``: see ``relay.vitess.tablets.KeyOrder``."""

    def __init__(self, call: Call, shard: VitessShard, tables: Tables, *, resumes: bool = True) -> None:
        self.shard = shard
        self._resumes = resumes
        # Whether everything was copied.
        self.is_complete = False
        # Whether anything came with the last `take`, if only a heartbeat.
        self.is_alive = False
        self._call = call
        self._tables = tables
        # The parts of the answer that is being applied, see `_parts`.
        self._parts: Iterator[tuple[int, bytes]] = iter(())
        self._answers: list[bytes] = []
        self._decoder: VStreamRowDecoder | None = None
        self._has_layout = False
        self._executed = ""
        self._batch = CopiedBatch()

    def close(self) -> None:
        self._call.close()

    def take(self, wait: float) -> CopiedBatch | None:
        """Return the next batch, or None if none comes within ``wait`` seconds or the copy is complete.

        Raises ``CallEnded``, `BrokenStream`, and ``RelayError`` for columns that cannot be carried.
        """
        self.is_alive = False
        deadline = time.monotonic() + wait
        while not self.is_complete:
            for count, part in self._parts:
                if count:
                    self._batch.answers.append(part)
                    self._batch.count += count
                elif (batch := self._apply(event_of(part))) is not None:
                    return batch
            if not self._answers:
                self._answers = self._call.take(max(0.0, deadline - time.monotonic()))[::-1]
            if not self._answers:
                return None
            self.is_alive = True
            self._parts = _parts(self._answers.pop())
        return None

    def _apply(self, event: pb.VEvent) -> CopiedBatch | None:
        """Apply one event, and return the batch that it completes."""
        kind = event.type
        if kind == EventKind.BEGIN or kind == EventKind.ROLLBACK:
            self._discard_batch("was cut off")
        elif kind == EventKind.FIELD and _is_copied(event):
            self._discard_batch("has several layouts")
            if self._has_layout and not self._resumes:  # I1
                raise BrokenStream("vtgate goes on after a row of it with another tablet")
            self._decoder = self._tables.decoder(event.field_event, copied=True)
            self._has_layout = True
        elif kind == EventKind.VGTID:
            position, self._executed = position_in(event.vgtid, self.shard)
            self._batch.end = next(iter(position.table_p_ks), None)
        elif kind == EventKind.COMMIT:
            return self._end_batch()
        elif kind == EventKind.COPY_COMPLETED:
            self._discard_batch("has no end")
            # Another one comes for the stream, without shard.
            self.is_complete = self.is_complete or event.shard == self.shard.name
        return None

    def _discard_batch(self, why: str) -> None:
        """Begin a batch. Raises `BrokenStream` if rows of the one before it have no end (I1)."""
        if self._batch.count:
            raise BrokenStream(f"a batch of copied rows {why}")
        self._batch = CopiedBatch()

    def _end_batch(self) -> CopiedBatch | None:
        batch, self._batch = self._batch, CopiedBatch()
        if not batch.count:
            return None
        if batch.end is None or not self._has_layout:
            raise BrokenStream("copied rows came without their columns or the key that they end at")
        batch.decoder, batch.executed = self._decoder, self._executed
        return batch


def _parts(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of an answer: how many copied rows, in an answer of their own, or 0 and another event.

    Raises `BrokenStream`.
    """
    core = native.core()
    found = None if core is None else core.copied_parts(answer)
    if found is not None:
        yield from found
        return
    for event in events_of(answer):
        count = len(event.row_event.row_changes)
        if count and event.type == EventKind.ROW and _is_copied(event):
            yield count, pb.VStreamResponse(events=[event]).SerializeToString()
        else:
            yield 0, event.SerializeToString()


def _is_copied(event: pb.VEvent) -> bool:
    """Whether a FIELD or ROW event is of the copy and not of the binlog."""
    return not event.timestamp and not event.event_gtid

"""The copy of one table in a separate stream: rows arrive in batches, each followed by the key of its last row.

After a failure vtgate continues at a later position, and also sends changes of the rows before. These are skipped,
because the stream of the shard has them. The compiled core finds the rows in an answer without decoding it.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from google.protobuf.message import DecodeError

from relay import native
from relay.vitess.call import Call
from relay.vitess.client import EventKind, events_of
from relay.vitess.failures import BrokenStream
from relay.vitess.position import position_in
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import VStreamRowDecoder
from relay.vitess.tables import Tables
from relay.vitess.tablets import KeyOrder, Tablets


@dataclass(slots=True)
class CopiedBatch:
    """Rows of a table, in the order of its key. vtgate bounds a batch to about 250 kB (--vstream-packet-size)."""

    answers: list[bytes] = field(default_factory=list)  # these have the rows and nothing else
    count: int = 0  # of rows
    decoder: VStreamRowDecoder | None = None  # None if the table is not wanted
    end: pb.TableLastPK | None = None  # the key of the last row, or None until it has come
    executed: str = ""  # the set at which the rows were read, with its flavour in front

    @property
    def rows(self) -> Iterator[pb.Row]:
        events = (event for answer in self.answers for event in events_of(answer))
        return (change.after for event in events for change in event.row_event.row_changes)


class TableCopy:
    """The batches that come in ``call``. Used by one thread.

    ``order``: the `key_order` before the copy was opened. ``opened_at``: when it was opened, in seconds by the reader's
    clock.
    """

    def __init__(self, call: Call, tablets: Tablets, tables: Tables, order: KeyOrder, opened_at: float) -> None:
        self.tablets = tablets
        self.shard = tablets.shard
        self.order = order
        self.opened_at = opened_at
        self.is_same_order = False  # whether the order was the same after it was opened
        self.is_complete = False
        # By the monotonic clock: when anything last came, and when rows last came or it was opened.
        self.alive_at = self.advanced_at = time.monotonic()
        self._call = call
        self._tables = tables
        # The parts of the answers that are being applied, see `_parts`.
        self._parts: Iterator[tuple[int, bytes] | pb.VEvent] = iter(())
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
        deadline = time.monotonic() + wait
        while not self.is_complete:
            for part in self._parts:
                if isinstance(part, tuple):
                    self._batch.count += part[0]
                    self._batch.answers.append(part[1])
                elif (batch := self._apply(part)) is not None or self.is_complete:
                    return batch
            answers = self._call.take(max(0.0, deadline - time.monotonic()))
            if not answers:
                return None
            self.alive_at = time.monotonic()
            self._parts = chain.from_iterable(map(_parts, answers))
        return None

    def _apply(self, event: pb.VEvent) -> CopiedBatch | None:
        """Apply one event, and return the batch that it completes."""
        kind = event.type
        if kind == EventKind.BEGIN or kind == EventKind.ROLLBACK:
            self._discard_batch("was cut off")
        elif kind == EventKind.FIELD and _is_copied(event):
            self._discard_batch("has several layouts")
            if self._has_layout and not self.order.resumes:  # I1
                raise BrokenStream("vtgate continued in the middle of the table with another tablet")
            self._decoder = self._tables.decoder(event.field_event, copied=True)
            self._has_layout = True
        elif kind == EventKind.VGTID:
            position, self._executed = position_in(event.vgtid, self.shard)
            self._batch.end = next(iter(position.table_p_ks), None)
        elif kind == EventKind.COMMIT:
            return self._end_batch()
        elif kind == EventKind.COPY_COMPLETED:
            self._discard_batch("has no end")
            # Another such event comes for the whole stream, without a shard.
            self.is_complete = self.is_complete or event.shard == self.shard.name
        return None

    def _discard_batch(self, why: str) -> None:
        """Begin a batch. Raises `BrokenStream` if the batch before it has rows without an end (I1)."""
        if self._batch.count:
            raise BrokenStream(f"a batch of copied rows {why}")
        self._batch = CopiedBatch()

    def _end_batch(self) -> CopiedBatch | None:
        batch, self._batch = self._batch, CopiedBatch()
        if not batch.count:
            return None
        if batch.end is None or not self._has_layout:
            raise BrokenStream("copied rows came without their columns, or without the key of the last row")
        batch.decoder, batch.executed = self._decoder, self._executed
        return batch


def _parts(answer: bytes) -> Iterator[tuple[int, bytes] | pb.VEvent]:
    """Yield copied rows, as their number and an answer with only these, and other events. Raises `BrokenStream`."""
    core = native.core()
    found = None if core is None else core.copied_parts(answer)
    if found is not None:
        try:
            for count, part in found:
                yield (count, part) if count else pb.VEvent.FromString(part)
        except DecodeError as error:
            raise BrokenStream(f"vtgate sent an event that cannot be read: {error}") from None
        return
    for event in events_of(answer):
        count = len(event.row_event.row_changes)
        if count and event.type == EventKind.ROW and _is_copied(event):
            yield count, pb.VStreamResponse(events=[event]).SerializeToString()
        else:
            yield event


def _is_copied(event: pb.VEvent) -> bool:
    """Whether a FIELD or ROW event comes from the copy and not from the binlog."""
    return not event.timestamp and not event.event_gtid

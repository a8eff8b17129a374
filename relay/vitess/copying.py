"""The copy of one table in a stream: its rows arrive in batches, each followed by the key that it ends at."""

from __future__ import annotations

from relay.change import Snapshot
from relay.vitess.failures import BrokenStream
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.shard_rows import ShardRows


class CopyPhase:
    """Holds back the rows of a batch until the key that they end at has come.

    If a published row were not covered by the position, the copy would read it again; and if it was deleted in
    between, its deletion would never be published. vtgate bounds a batch to about 250 kB (--vstream-packet-size).
    ``started``: seconds since the epoch.
    """

    def __init__(self, snapshot: Snapshot, started: float) -> None:
        self.snapshot = snapshot
        self.started = started
        self._batch: list[pb.RowEvent] = []

    @staticmethod
    def is_copied(event: pb.VEvent) -> bool:
        """Whether a FIELD or ROW event is of the copy and not of the binlog."""
        return not event.timestamp and not event.event_gtid

    @property
    def has_batch(self) -> bool:
        """Whether copied rows wait for the key that they end at."""
        return bool(self._batch)

    def add(self, rows: pb.RowEvent) -> None:
        self._batch.append(rows)

    def discard_batch(self) -> None:
        self._batch.clear()

    def publish_batch(self, rows: ShardRows, end: pb.ShardGtid | None, executed: str) -> None:
        """Make changes of the batch, which ``end`` is the position of. ``executed``: the set before it."""
        if not self._batch:
            return
        if end is None or not end.table_p_ks:
            raise BrokenStream(f"copied rows of {self._batch[0].table_name} came without the key that they end at")
        for event in self._batch:
            rows.copy(event, self.snapshot, self.started, executed)

    def check_completed(self) -> None:
        """Raise `BrokenStream` where COPY_COMPLETED comes inside a batch."""
        if self._batch:
            raise BrokenStream(f"the copy of {self._batch[0].table_name} ended inside a batch")

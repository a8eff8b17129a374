"""The tables that a snapshot reads, and the changes that mark its beginning and its end for each of them."""

from collections.abc import Iterator

from relay.change import MARK, Change, Images, Operation, Snapshot, event_id
from relay.records import CommittedStream, SnapshotControl
from relay.snapshots.control import has_marks
from relay.source import Source
from relay.table import TableSchema


class SnapshotTables:
    """Used by the worker's thread."""

    def __init__(self, source: Source, committed: CommittedStream) -> None:
        self._source = source
        self._committed = committed
        # The same object for the same table, as writers are found by it.
        self._known_dropped: dict[TableSchema, TableSchema] = {}

    def dropped(self) -> list[TableSchema]:
        """Return the tables that copies may have, and that no longer exist."""
        plan = self._committed.plan
        found = self._source.dropped(plan.keys, plan.hashed) if plan is not None else ()
        return [self._known_dropped.setdefault(table, table) for table in found]

    def of(self, control: SnapshotControl) -> list[TableSchema]:
        there = [table for table in self._source.tables() if has_marks(control, table.table, is_dropped=False)]
        return there + [table for table in self.dropped() if has_marks(control, table.table, is_dropped=True)]

    def marks(self, control: SnapshotControl, kind: str) -> Iterator[Change]:
        """Yield, for each table it reads, the change that marks the begin or the end in every partition."""
        label = self._committed.stream.snapshots.label
        for table in self.of(control):
            if table.table in control.left_out:  # I7: it was read only in part, or cannot be read
                continue
            yield Change(
                event_id=event_id(label, f"{control.id}/{kind}", table.table, b"", 0),
                operation=Operation.READ,
                source=self._source.name,
                table=table.table,
                key=None,
                old=None,
                new=None,
                images=Images.KEYS_ONLY,
                token=None,
                committed_at=int(self._source.clock() * 1_000_000),
                snapshot=Snapshot(control.id, control.as_of),
                attributes={MARK: kind},
            )

"""Snapshots of a table: consistent scans in parallel segments. A segment's position is the last key that it read.

Rules: AWS, "Parallel scan" and "DynamoDB read consistency".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from relay.change import Change, Images, Operation, Snapshot, Uncarriable, event_id
from relay.dynamodb import config_match
from relay.dynamodb.describe import TableCalls, birth
from relay.dynamodb.records import chosen, key_bytes, key_of
from relay.dynamodb.stream_calls import ShardNotFound, Transient, translated
from relay.dynamodb.values import image_json
from relay.errors import Unavailable
from relay.records import Plan, ShardCheckpoint, SnapshotPart
from relay.source import LastPage, Measured, Page, PageCounts, Segment, Unreadable
from relay.table import TableSchema
from relay.types.items import binary

MARGIN = 65.0
"""Seconds by which a page's ``as_of`` is before the read, so that a change which looks older than a READ is older:
DynamoDB Local rounds creation times down to the minute, and clocks differ by some seconds."""

SEGMENT_BYTES = 256 << 20
MOST_SEGMENTS = 64


@dataclass(eq=False)
class TableSnapshots:
    """Reads the items of a table in parallel segments, whose threads share it.

    ``table``: returns the table's schema once it is described. ``image``: returns an item in the form of a change;
    raises ValueError if it cannot be carried.
    """

    calls: TableCalls
    table: Callable[[], TableSchema]
    image: Callable[[Mapping[str, Any]], Any]
    clock: Callable[[], float]

    margin = MARGIN
    reads_at_once = 4  # a scan waits for the service
    is_selective = False

    def is_initial(self, plan: Plan) -> bool:
        return self.calls.source.snapshot == "initial"

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        table = self.calls.table()
        segments = min(MOST_SEGMENTS, 1 + int(table.get("TableSizeBytes", 0)) // SEGMENT_BYTES)
        return Measured(segments, int(table.get("ItemCount", 0)), [SnapshotPart(created=birth(table))] * segments)

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        """Always true: DynamoDB's times are when the writes were made, within the margin."""
        return True

    def carried(self, item: Mapping[str, Any]) -> Any:
        """Return the image of an item, or an `Uncarriable`."""
        try:
            return self.image(item)
        except ValueError as error:
            return Uncarriable(item, str(error))

    def open(self, segment: Segment) -> SegmentReader:
        return SegmentReader(self, segment)


class SegmentReader:
    """The reader of one segment of a snapshot. Used by one thread at a time."""

    streams = False

    def __init__(self, of: TableSnapshots, segment: Segment) -> None:
        self.table = of.table()
        self.shard = segment.shard
        self.segment = segment
        self._of = of
        # The values that keys of published items have.
        self._wanted = config_match.wanted_key(self.table.key, of.calls.source.conditions(self.table.table))
        # The last key read, in boto3's form, None at either end; and the number of rows read.
        position = segment.position or {"key": None, "rows": 0}
        self._last = python_key(position["key"]) if position["key"] else None
        self._rows: int = position["rows"]
        # When the table that the snapshot reads was created.
        self._birth = segment.part.created
        # Whether this reader has read a page, from a table that was still the same when last checked.
        self._has_begun = False

    def close(self) -> None:
        """Do nothing: a scan does not have to be closed."""

    def read(self) -> Page | Unreadable:
        """Return the next page, at most one megabyte of the table. Raises ``RelayError`` for final errors.

        A segment never ends in another table with the same name: the end would keep the former table's rows (I7).
        """
        begun = self._of.clock()
        arguments: dict[str, Any] = {"Segment": self.segment.number, "TotalSegments": self.segment.count}
        if self._last:
            arguments["ExclusiveStartKey"] = self._last
        try:
            with translated(self.table.table):
                if not self._has_begun:
                    self._require_same_table()
                answer = self._of.calls.dynamodb.scan(TableName=self.table.table, ConsistentRead=True, **arguments)
                if not (last := answer.get("LastEvaluatedKey")):
                    self._require_same_table()
        except ShardNotFound as error:
            deleted = f"table {self.table.table!r} was deleted while its snapshot was being read"
            raise Unavailable(f"source {self.table.source}: {deleted}") from error
        except Transient as error:
            return Unreadable(self.shard, begun, str(error))
        snapshot = self.segment.snapshot
        # At least the snapshot's own, in case the clock has gone back.
        as_of = Snapshot(snapshot.id, max(snapshot.as_of, int(begun - MARGIN)))
        changes = [self._change(item, as_of, begun) for item in answer["Items"]]
        self._rows += len(changes)
        if self._wanted:
            changes = chosen(changes, self._wanted)
        self._has_begun = True
        self._last = dict(last) if last else None
        key = orjson.loads(image_json(self._last)) if self._last else None
        return Page(
            self.shard,
            changes,
            {"type": "scan", "key": key, "rows": self._rows},
            None,
            None,
            begun,
            counts=PageCounts(len(changes), sum(len(str(change.new)) for change in changes)),
            pause=0.0,
            end=None if last else LastPage(),
        )

    def _require_same_table(self) -> None:
        """Raise ``Transient`` once the table was deleted and created again: its stream then replaces this one."""
        if not self._birth:
            return
        found = self._of.calls.dynamodb.describe_table(TableName=self.table.table)["Table"]
        if birth(found) != self._birth:
            self._has_begun = False  # from here on, the table is checked before a page is read
            raise Transient(
                f"table {self.table.table} was deleted and created again during its snapshot, which begins again "
                "alongside the stream of the new table; if the table has no stream, enable one"
            )

    def _change(self, item: Mapping[str, Any], snapshot: Snapshot, begun: float) -> Change:
        key = key_of(item, self.table)
        return Change(
            event_id=event_id(self.table.source, f"snapshot/{snapshot.id}", self.table.table, key_bytes(key), 0),
            operation=Operation.READ,
            source=self.table.source,
            table=self.table.table,
            key=key,
            old=None,
            new=self._of.carried(item),
            images=Images.NEW,
            token=None,
            committed_at=int(begun * 1_000_000),
            snapshot=snapshot,
        )


def python_key(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key in DynamoDB JSON in boto3's form."""
    return {
        name: {kind: binary(value) if kind == "B" else value for kind, value in typed.items()}
        for name, typed in key.items()
    }

"""Snapshots of a table: consistent scans in parallel segments.

Rules: AWS, "Parallel scan" and "DynamoDB read consistency". A segment's position is the last key it has read, so a scan
resumes there, however much later.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay.change import Change, Images, Operation, Snapshot, Uncarriable, event_id
from relay.config.conditions import Conditions
from relay.dynamodb import config_match, describe
from relay.dynamodb.records import chosen, key_bytes
from relay.dynamodb.session import ShardNotFound, Transient, translated
from relay.dynamodb.values import image_json, key_value
from relay.errors import Unavailable
from relay.records import Plan, ShardCheckpoint, SnapshotPart
from relay.source import Measured, Page, Segment, Unreadable
from relay.table import TableSchema

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from relay.config import DynamoDBConfig

MARGIN = 65.0
"""Seconds by which a page's ``as_of`` is before the read, so that a change that looks older than a READ is older.

DynamoDB Local rounds creation times down to the minute, and clocks differ by some seconds."""

SEGMENT_BYTES = 256 << 20
MOST_SEGMENTS = 64


class TableSnapshots:
    """Reads the items of a table in parallel segments.

    ``table``: returns the table's schema, once it is described. ``image``: returns an item as it is in a change.
    ``where``: what the published items have. The client, ``table`` and ``image`` are shared by the threads of all
    segments, which only read them.
    """

    margin = MARGIN
    reads_at_once = 4  # a scan waits for the service
    is_selective = False

    def __init__(
        self,
        client: DynamoDBClient,
        config: DynamoDBConfig,
        table: Callable[[], TableSchema],
        *,
        image: Callable[[Mapping[str, Any]], Any],
        where: Conditions,
        clock: Callable[[], float],
    ) -> None:
        self.client = client
        self._clock = clock
        self._config = config
        self._table = table
        self.image = image
        self._where = where

    def is_initial(self, plan: Plan) -> bool:
        return self._config.snapshot == "initial"

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        """Return what a snapshot of the table has to read. ``tables``: names it, if anything."""
        size, rows, birth = describe.measure(self.client, self._config)
        segments = min(MOST_SEGMENTS, 1 + size // SEGMENT_BYTES)
        return Measured(segments, rows, [SnapshotPart(created=birth)] * segments)

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        """Always: DynamoDB's times are those of the writes, but for the margin."""
        return True

    def open(self, segment: Segment) -> SegmentReader:
        table = self._table()
        wanted = config_match.wanted_key(table.key, self._where)
        return SegmentReader(self.client, table, segment, image=self.image, wanted=wanted, clock=self._clock)


@dataclass(frozen=True, slots=True)
class ScanPosition:
    """Where a scan of a segment resumes. ``key``: the last one read, as boto3 has it; None at either end."""

    key: Mapping[str, Any] | None = None
    rows: int = 0
    """How many rows were read."""

    def to_json(self) -> dict[str, Any]:
        return {"type": "scan", "key": _json(self.key) if self.key else None, "rows": self.rows}

    @classmethod
    def from_json(cls, position: Mapping[str, Any]) -> ScanPosition:
        return cls(_python(position["key"]) if position["key"] else None, position["rows"])


class SegmentReader:
    """The reader of one segment of a snapshot. Used by one thread at a time."""

    streams = False

    def __init__(
        self,
        client: DynamoDBClient,
        table: TableSchema,
        segment: Segment,
        *,
        image: Callable[[Mapping[str, Any]], Any] = image_json,
        wanted: Mapping[str, str] | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.client = client
        self.table = table
        self.shard = segment.shard
        self.segment = segment
        # Returns an item as it is in a change. Raises ValueError if it cannot be carried.
        self.image = image
        # What the keys of the published items have.
        self.wanted = wanted or {}
        self.clock = clock
        self._position = ScanPosition.from_json(segment.position) if segment.position else ScanPosition()
        # When the table that the snapshot reads was created.
        self._birth = segment.part.created
        # Whether a page was read by this reader, of a table that was still the same when it was looked at last.
        self._has_begun = False

    def __repr__(self) -> str:
        return f"<SegmentReader[{self.table.table} {self.segment.number + 1} of {self.segment.count}]>"

    def close(self) -> None:
        """Do nothing: a scan needs no closing."""

    def read(self) -> Page | Unreadable:
        """Return the next page, at most one megabyte of the table. Raises ``RelayError`` on what is final.

        A segment does not end in another table of the same name: the end of the snapshot would keep the rows of the one
        before (I7). Where that has a stream, the snapshot begins again beside it.
        """
        begun = self.clock()
        key = self._position.key
        arguments: dict[str, Any] = {"ExclusiveStartKey": key} if key else {}
        try:
            with translated(self.table.table):
                if not self._has_begun:
                    self._require_same_table()
                answer = self.client.scan(
                    TableName=self.table.table,
                    ConsistentRead=True,
                    Segment=self.segment.number,
                    TotalSegments=self.segment.count,
                    **arguments,
                )
                if not (last := answer.get("LastEvaluatedKey")):
                    self._require_same_table()
        except ShardNotFound as error:
            raise Unavailable(
                f"source {self.table.source}: table {self.table.table!r} was deleted while its snapshot was read"
            ) from error
        except Transient as error:
            return Unreadable(self.shard, begun, str(error))
        snapshot = self.segment.snapshot
        # At least the snapshot's own, in case the clock has gone back.
        as_of = Snapshot(snapshot.id, max(snapshot.as_of, int(begun - MARGIN)))
        changes = [self._change(item, as_of, begun) for item in answer["Items"]]
        read = len(changes)
        if wanted := self.wanted:
            changes = chosen(changes, wanted)
        self._has_begun = True
        self._position = ScanPosition(last or None, self._position.rows + read)
        return self._page(changes, begun, finished=not last)

    def _require_same_table(self) -> None:
        """Raises ``Transient`` once the table was deleted and created again: its stream takes the place of this one."""
        if not self._birth:
            return
        found = self.client.describe_table(TableName=self.table.table)["Table"]
        if describe.birth(found) != self._birth:
            self._has_begun = False  # from here on, it is looked at before a page is read
            raise Transient(
                f"table {self.table.table} was deleted and created again during its snapshot, which begins again "
                "beside the stream of the new table; if that has none, enable it"
            )

    def _change(self, item: Mapping[str, Any], snapshot: Snapshot, begun: float) -> Change:
        key = {column.name: key_value(item[column.name]) for column in self.table.key}
        try:
            new = self.image(item)
        except ValueError as error:
            new = Uncarriable(item, str(error))
        return Change(
            event_id=event_id(self.table.source, f"snapshot/{snapshot.id}", self.table.table, key_bytes(key), 0),
            operation=Operation.READ,
            source=self.table.source,
            table=self.table.table,
            key=key,
            old=None,
            new=new,
            images=Images.NEW,
            token=None,
            committed_at=int(begun * 1_000_000),
            snapshot=snapshot,
        )

    def _page(self, changes: list[Change], begun: float, *, finished: bool) -> Page:
        return Page(
            self.shard,
            changes,
            self._position.to_json(),
            None,
            None,
            begun,
            records=len(changes),
            size=sum(len(str(change.new)) for change in changes),
            full=not finished,
            finished=finished,
        )


def _json(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key of boto3's as DynamoDB JSON."""
    return {
        name: {kind: b64encode(value).decode() if kind == "B" else value for kind, value in typed.items()}
        for name, typed in key.items()
    }


def _python(key: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {kind: b64decode(value) if kind == "B" else value for kind, value in typed.items()}
        for name, typed in key.items()
    }

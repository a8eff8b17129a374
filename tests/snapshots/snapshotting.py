"""The snapshots of a scripted source, whose records are written and seen at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

from relay.reading.reader_pool import ReaderPool
from relay.reading.set_aside import SetAside
from relay.records import (
    CommittedRecords,
    Plan,
    SegmentCheckpoint,
    ShardCheckpoint,
    ShardState,
    SnapshotControl,
    SnapshotPart,
    SnapshotRequest,
)
from relay.snapshots.lifecycle import Snapshots
from relay.source import Measured, Segment, ShardReader
from relay.table import KeyColumn, TableSchema
from tests.scripted_source import ScriptedReader, ScriptedSource

TABLES = ("large", "small")


class Tables:
    """The snapshots of a database with two tables, each a segment."""

    margin = 65.0
    reads_at_once = 1
    is_selective = False

    def __init__(self, source: ScriptedSource, *, initial: bool) -> None:
        self.initial = initial
        self._source = source
        self.left_out: tuple[str, ...] = ()
        self.opened: list[Segment] = []

    def is_initial(self, plan: Plan) -> bool:
        return self.initial

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        wanted = [table for table in TABLES if tables is None or table in tables]
        parts = [SnapshotPart(table=table) for table in wanted if table not in self.left_out]
        return Measured(len(parts), 7, parts, self.left_out)

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        return True

    def open(self, segment: Segment) -> ShardReader:
        self.opened.append(segment)
        return ScriptedReader(self._source, cast(Any, SimpleNamespace(shard=segment.shard, position=None)))


class Source(ScriptedSource):
    has: tuple[str, ...] = TABLES

    def tables(self) -> list[TableSchema]:
        return [TableSchema(self.name, table, (KeyColumn("id", "S"),), 1) for table in self.has]


class Snapshotting:
    """The snapshots of a source whose control record this worker owns. ``gaps``: known, ``repair``: to be repaired.

    ``is_selective``: the config names the tables.
    """

    def __init__(self, *, initial: bool = False, is_selective: bool = False) -> None:
        self.source, self.view, self.now = Source("shop"), CommittedRecords(), 100_000.0
        self.source.clock = lambda: self.now
        self.gaps: set[str] = set()
        self.repair: set[str] = set()
        self.tables = Tables(self.source, initial=initial)
        self.tables.is_selective = is_selective
        committed = self.view.of(self.source.stream)
        committed.plan = Plan("latest", 0.0, {}, {}, floor=99_000)
        beside = SimpleNamespace(
            source=self.source,
            stream=self.source.stream,
            view=self.view,
            committed=committed,
            set_aside=SetAside(committed, clock=lambda: self.now),
            gaps=lambda: self.gaps | self.repair,
            gaps_to_repair=lambda: self.repair,
            resume_timestamp=lambda: 0,
        )
        self.snapshots = Snapshots(cast(Any, beside), self.tables, ReaderPool())

    def ask(self, *tables: str) -> SnapshotRequest:
        self.now += 10
        request = SnapshotRequest.new("shop", tables, self.now)
        self.write(request)
        return request

    def write(self, request: SnapshotRequest) -> None:
        self.view.apply(request.key, request.to_json())

    def step(self) -> str | None:
        """Write the control record that is due; return what it says, with its mark."""
        self.now += 10
        taken = self.snapshots.next_step()
        if taken is not None:
            self.view.apply(self.snapshots.stream.snapshot_key, taken.control.to_json())
        return f"{taken.control.state}" if taken is not None else None

    def begin(self) -> None:
        """Let the snapshot begin that is due."""
        assert self.step() == "planned"
        assert self.until() == "reading"

    def until(self) -> str:
        while (said := self.step()) is None:
            continue
        return said

    def end(self) -> None:
        """Let the snapshot finish that has begun, and remove the requests that it fulfils."""
        self.finish_segments()
        assert self.step() == "finished"

    def finish_segments(self, at: float = 0.0) -> None:
        for name in self.control.segment_names:
            finished = SegmentCheckpoint(ShardState.FINISHED, updated_at=at)
            self.view.apply(self.source.stream.segment_key(name), finished.to_json())

    def tidy(self) -> None:
        for key in self.snapshots.fulfilled():
            self.view.apply(key, None)

    @property
    def control(self) -> SnapshotControl:
        assert self.snapshots.control is not None
        return self.snapshots.control

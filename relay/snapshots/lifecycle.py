"""Snapshots of tables beside their stream: every row once as READ, in segments that survive restarts.

Their checkpoints are like those of shards, under a stream of their own (``<label>/snapshot``): one control record,
which only its owner advances (*planned -> reading -> finished*), and one record per segment, read by whoever owns it.
A snapshot that is to repair a gap replaces one that runs, since rows read before a gap do not repair it. One that a
person has requested waits until none runs.

The copy's rule (``spark_consumers.fold``) makes this safe beside the stream: a READ replaces only what happened before
its ``as_of``, which is the clock before its page was read minus ``SnapshotSource.margin``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Protocol

from relay.change import Change, Snapshot
from relay.kafka.checkpoints import partition_of
from relay.lineage import Checkpoint, CommittedRecords, Plan, Shard, ShardState, StreamId
from relay.reading.open_shard import OpenShard
from relay.reading.reader_pool import ReaderPool
from relay.snapshots.beginning import BeginningSnapshot
from relay.snapshots.control import (
    CONTROL,
    again_of,
    covered_by,
    fields_of,
    is_partial,
    is_running,
    is_unread,
    planned,
    records_of,
    repaired_by,
    requested,
    without_absent,
)
from relay.snapshots.emptied_tables import EVERY, after_reading, ended, is_published_to
from relay.snapshots.marks import SnapshotTables
from relay.snapshots.next_request import RequestedSnapshots
from relay.snapshots.report import Show, SnapshotReport
from relay.source import Page, Segment, SnapshotSource, Source
from relay.table import TableSchema

log = logging.getLogger(__name__)

_OPEN_SEGMENTS = 4  # in one worker: the other threads are for the stream


class SnapshottedStream(Protocol):
    """What snapshots need to know about the stream that they stand beside: a ``SourceState``."""

    source: Source
    stream: StreamId
    view: CommittedRecords

    @property
    def plan(self) -> Plan | None: ...
    @property
    def last_timestamp(self) -> int: ...

    def gaps(self) -> Set[str]: ...
    def gaps_to_repair(self) -> Set[str]: ...
    def resume_timestamp(self) -> int: ...
    def check_tables(self, tables: Sequence[TableSchema]) -> None: ...
    def unplanned_tables(self) -> Mapping[str, Any]: ...


class Snapshots:
    """The snapshots of one source. Used by the worker's thread. ``tables``: reads the rows."""

    def __init__(
        self,
        beside: SnapshottedStream,
        tables: SnapshotSource,
        readers: ReaderPool,
    ) -> None:
        self.source = beside.source
        self.stream = records_of(beside.stream)
        self.tables = tables
        self.readers = readers
        self.clock = clock = beside.source.clock
        self.control_key = self.stream.checkpoint_key(CONTROL)
        self._beside = beside
        # Open segments by the name of their record, finished ones whose last checkpoint is not visible yet included.
        self.open: dict[str, OpenShard] = {}
        self._latest: dict[str, Checkpoint] = {}
        self._report = SnapshotReport(beside.source.name, clock)
        self._beginning = BeginningSnapshot(beside.source.name, tables, self._published, clock)
        # Partitions of segments that were stopped, whose last checkpoints the view may not show yet.
        self.unseen: set[int] = set()
        self._tables_of = SnapshotTables(beside)
        # The id of the snapshot all of whose segments were read, and when that was seen, in seconds.
        self._read = "", 0.0
        # Seconds: up to when the shards have to be published before the snapshot can end; 0 if it does not wait.
        self.awaited = 0.0
        self._requested = RequestedSnapshots(beside.source, beside.view)
        # Says whether the view shows the records that this worker has written last; None if it did.
        self.sees: Callable[[], bool] | None = None

    def __repr__(self) -> str:
        return f"<Snapshots[{self.source.name}: {len(self.open)} segments open]>"

    @property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        return self._beside.view.checkpoints.get(self.stream, {})

    def resume_timestamp(self) -> int:
        return self._beside.resume_timestamp()

    @property
    def control(self) -> Checkpoint | None:
        return self.checkpoints.get(CONTROL)

    @property
    def repaired(self) -> Set[str]:
        """The ids of the gaps that the newest snapshot repairs, or has repaired."""
        return repaired_by(self.control)

    @property
    def is_stopped(self) -> bool:
        """Whether a person has stopped the snapshot that runs."""
        return self._requested.is_stopped(self.control)

    @property
    def is_watching(self) -> bool:
        """Whether the view has yet to show what this worker has written. Until then, nothing follows from it."""
        if self.sees is not None and self.sees():
            self.sees = None
        return self.sees is not None  # I3

    # ------------------------------------------------------------------ the control record

    @property
    def is_measured(self) -> bool:
        """Whether a measurement has ended, and the snapshot may begin."""
        return self._beginning.is_measured

    def next_step(self) -> tuple[Checkpoint, str | None] | None:
        """Return the control record to write next, and which mark to publish with it; None if nothing is due.

        For the owner of ``control_key``.
        """
        beside, control = self._beside, self.control
        if beside.plan is None:
            return None
        if self.tables.is_selective:
            tables = {table.table for table in self.source.tables()}
            if without_absent(control, tables, self.clock()) is not None:  # seldom
                tables |= {table.table for table in self._tables_of.dropped()}
                if (remaining := without_absent(control, tables, self.clock())) is not None:
                    return remaining, None
        if self._is_wanted(control):
            return self._request(), None
        if again := again_of(control):
            if self._requested.fulfilled(control):
                return None
            named, more = () if EVERY in again else again, {"repetitions": fields_of(control).get("repetitions", 0) + 1}
            after = after_reading(control, self.clock(), self.tables.margin)
            return requested(control, named, (), set(), after, self.clock(), **more), None
        if added := self._added(control):
            log.info("source %s: table %s was added to `tables`", self.source.name, ", ".join(added))
            after = beside.last_timestamp if beside.gaps() - self.repaired else 0
            return requested(control, added, (), beside.gaps(), after, self.clock()), None
        if (request := self._requested.next(control)) is not None:
            now = self.clock()
            return self._requested.begin(control, request, beside.gaps(), beside.last_timestamp, now), None
        if control is None or control.snapshot is None:
            return None
        if control.state is ShardState.PLANNED:
            if self.is_stopped:
                return None
            if (measured := self._beginning.measure(control.snapshot)) is None:
                return None
            fields = {**control.snapshot, **measured, **self._covered(control.snapshot)}
            log.info("source %s: snapshot %s starts, about %d rows", self.source.name, fields["id"], fields["rows"])
            return self._advance(control, ShardState.READING, fields), "begin"
        if control.state is ShardState.READING and all(self._has_finished(name) for name, _ in self._segments(control)):
            if not self._may_end(control.snapshot["id"]):
                return None
            log.info("source %s: snapshot %s is finished", self.source.name, control.snapshot["id"])
            read = (self.checkpoints[name].updated_at for name, _ in self._segments(control))
            last = ended(self.source, control, self._published(), read_until=max(read, default=0.0))
            return self._advance(control, ShardState.FINISHED, last), "end"
        return None

    def _published(self) -> Mapping[str, Checkpoint]:
        """Return the committed checkpoints of the stream. Segments call this in the threads that read them."""
        return self._beside.view.checkpoints.get(self._beside.stream, {})

    def tables_of(self, control: Checkpoint) -> list[TableSchema]:
        """See ``SnapshotTables.of``."""
        return self._tables_of.of(control)

    def mark(self, control: Checkpoint, kind: str) -> Iterator[Change]:
        """See ``SnapshotTables.marks``."""
        return self._tables_of.marks(control, kind, self.stream.label, self.clock)

    @property
    def is_due(self) -> bool:
        """Whether a snapshot is wanted that was not requested yet."""
        return self._is_wanted(self.control) or bool(self._added(self.control) or again_of(self.control))

    def is_settled(self) -> bool:
        """Whether no snapshot is running, due or requested, but for those that are stopped."""
        control = self.control
        if self.sees is not None or self.is_due or self._requested.waiting(control):
            return False
        return not is_running(control) or self.is_stopped

    def fulfilled(self) -> list[bytes]:
        """Return the keys of the requests whose snapshot has finished."""
        return self._requested.fulfilled(self.control)

    def prunable(self) -> list[bytes]:
        """Return the keys of segments that nobody will read again."""
        control = self.control if self.checkpoints.keys() - {CONTROL} else None
        if control is None:
            return []
        current = {name for name, _ in self._segments(control)} if control.state is ShardState.READING else set()
        return [
            self.stream.checkpoint_key(name)
            for name in self.checkpoints
            if name != CONTROL and name not in current and name not in self.open
        ]

    def _is_wanted(self, control: Checkpoint | None) -> bool:
        if not self._beside.gaps_to_repair() <= repaired_by(control):
            return True
        if control is not None and control.snapshot is not None and not is_partial(control):
            return False
        return self._is_initial() and is_unread(self._beside.view, self.source.name)

    def _is_initial(self) -> bool:
        plan = self._beside.plan
        return plan is not None and self.tables.is_initial(plan)

    def _added(self, control: Checkpoint | None) -> list[str]:
        """Return the tables that were added to the config since the initial snapshot."""
        if not self.tables.is_selective or (covered := covered_by(control)) is None or not self._is_initial():
            return []
        return sorted({table.table for table in self.source.tables()} - covered)

    def _may_end(self, snapshot: str) -> bool:
        """Whether all that was committed until its last row was read is published: a table may be emptied by it."""
        if not self.source.has_journals:
            return True
        if self._read[0] != snapshot:
            self._read = snapshot, self.clock()
        if not all(is_published_to(self._read[1], shard) for shard in self._published().values()):  # I7
            self.awaited = self._read[1]
            return False
        self.awaited = 0.0
        return True

    def _covered(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the control record says of the tables that are read once the snapshot has finished."""
        if "tables" not in fields:
            dropped = self._tables_of.dropped() if fields.get("gaps") else []
            return {"covered": sorted(table.table for table in (*self.source.tables(), *dropped))}
        # Before the first snapshot of all tables, none is covered.
        return {"covered": sorted({*fields["covered"], *fields["tables"]})} if "covered" in fields else {}

    def _request(self) -> Checkpoint:
        """Return the control record of a new snapshot, which starts after everything published before a gap."""
        gaps = self._beside.gaps()
        return planned(gaps, self._beside.last_timestamp if gaps else 0, self.clock())

    def _advance(self, control: Checkpoint, state: ShardState, fields: Mapping[str, Any]) -> Checkpoint:
        return replace(control, state=state, snapshot=fields, updated_at=self.clock())

    # ------------------------------------------------------------------ segments

    def _segments(self, control: Checkpoint) -> list[tuple[str, int]]:
        fields = control.snapshot or {}
        return [(f"{fields['id']}/{number}", number) for number in range(fields["segments"])]

    def _has_finished(self, name: str) -> bool:
        checkpoint = self.checkpoints.get(name)
        return checkpoint is not None and checkpoint.state is ShardState.FINISHED

    def open_ready_segments(self, owned: set[int]) -> None:
        """Open segments of ``owned``, after the fence and a few at a time, and close those that are finished."""
        control = self.control
        current = self._segments(control) if control is not None and control.state is ShardState.READING else []
        if self.is_stopped or self.unseen:
            return
        names = {name for name, _ in current}
        for name in [name for name in self.open if name not in names or self._has_finished(name)]:
            self._close(name)
        if control is None or control.snapshot is None:
            return
        for name, number in current:
            if len(self.open) >= _OPEN_SEGMENTS:
                return
            if name in self.open or self._has_finished(name):
                continue
            key = self.stream.checkpoint_key(name)
            if partition_of(key) not in owned:
                continue
            committed = self.checkpoints.get(name)
            fields = control.snapshot
            snapshot = Snapshot(fields["id"], fields["as_of"])
            position = committed.position if committed else None
            part = fields["parts"][number] if "parts" in fields else None
            segment = Segment(Shard(name), snapshot, number, fields["segments"], position, part, self._published)
            reader = self.tables.open(segment)
            self.open[name] = self.readers.open(reader, key, self, most_at_once=self.tables.reads_at_once)
            self._latest[name] = committed or Checkpoint(ShardState.PLANNED)

    def close_stopped(self) -> None:
        """Close the open segments if the snapshot is stopped. They are opened again once ``unseen`` is cleared (I3)."""
        if self.open and self.is_stopped:
            log.info("source %s: snapshot %s is stopped", self.source.name, fields_of(self.control)["id"])
            self.unseen |= {partition_of(segment.key) for segment in self.open.values()}  # I3
            self.close_segments()

    def close_segments(self, lost: set[int] | None = None) -> None:
        """Close the open segments of ``lost`` partitions, or all of them."""
        for name, segment in list(self.open.items()):
            if lost is None or partition_of(segment.key) in lost:
                self._close(name)

    def _close(self, name: str) -> None:
        self.readers.shut(self.open.pop(name))
        self._latest.pop(name, None)

    def checkpoint(self, page: Page) -> Checkpoint | None:
        """Return the checkpoint that covers ``page``; None if it has nothing new."""
        before = self._latest[page.shard.id]
        if page.position == before.position and not page.finished and not page.has_content:  # I3: after an abort
            return None
        state = ShardState.FINISHED if page.finished else ShardState.READING
        # Not earlier than the worker said that has read the segment before.
        now = max(before.updated_at, self.clock())
        told = self._beside.unplanned_tables()
        after = replace(before, state=state, position=page.position, updated_at=now, unplanned=told)
        self._latest[page.shard.id] = after
        return after

    def checkpoint_before_gap(self, page: Page) -> Checkpoint | None:
        """Return None: a table has no gaps."""
        return None

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        self._beside.check_tables(tables)

    def confirm(self, page: Page) -> None:
        """How far the stream is caught up does not depend on snapshots."""

    def list_soon(self) -> None:
        """Segments are not listed."""

    def progress(self) -> tuple[int, int] | None:
        """Return the rows read and estimated of the running snapshot, by all workers; None if none runs."""
        control = self.control
        if control is None or control.snapshot is None or control.state is not ShardState.READING or self.is_stopped:
            return None
        read = 0
        for name, _ in self._segments(control):
            checkpoint = self._latest.get(name) or self.checkpoints.get(name)
            read += checkpoint.position["rows"] if checkpoint and checkpoint.position else 0
        return read, max(read, control.snapshot["rows"])

    def report_progress(self, show: Show | None = None) -> None:
        """Show the progress or, from time to time, log it with an estimate."""
        self._report.take(self.control, self.progress, show)

"""Snapshots of tables beside their stream: every row once as READ, in segments that survive restarts.

Beside the checkpoints of the stream there are one control record, which only its owner advances (*planned -> reading
-> finished*), and one record per segment, read by whoever owns it.
A snapshot that is to repair a gap replaces one that runs, since rows read before a gap do not repair it. One that a
person has requested waits until none runs.

The copy's rule (``spark_consumers.fold``) makes this safe beside the stream: a READ replaces only what happened before
its ``as_of``, which is the clock before its page was read minus ``SnapshotSource.margin``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Protocol

from relay.change import Change, Snapshot
from relay.kafka.checkpoints import partition_of
from relay.reading.open_shard import OpenShard
from relay.reading.reader_pool import ReaderPool
from relay.records import (
    CommittedRecords,
    Plan,
    SegmentCheckpoint,
    Shard,
    ShardCheckpoint,
    ShardState,
    SnapshotControl,
    SnapshotPart,
    StreamId,
    UnplannedTable,
)
from relay.snapshots.beginning import BeginningSnapshot
from relay.snapshots.control import (
    again_of,
    covered_by,
    is_running,
    is_unread,
    planned,
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

    @property
    def stream(self) -> StreamId: ...
    @property
    def view(self) -> CommittedRecords: ...
    @property
    def plan(self) -> Plan | None: ...
    @property
    def last_timestamp(self) -> int: ...

    def gaps(self) -> Set[str]: ...
    def gaps_to_repair(self) -> Set[str]: ...
    def resume_timestamp(self) -> int: ...
    def check_tables(self, tables: Sequence[TableSchema]) -> None: ...
    def unplanned_tables(self) -> Mapping[str, UnplannedTable]: ...


class Snapshots:
    """The snapshots of one source. Used by the worker's thread. ``tables``: reads the rows."""

    def __init__(
        self,
        beside: SnapshottedStream,
        tables: SnapshotSource,
        readers: ReaderPool,
    ) -> None:
        self.source = beside.source
        self.stream = beside.stream
        self.tables = tables
        self.readers = readers
        self.clock = clock = beside.source.clock
        self.control_key = self.stream.snapshot_key
        self._beside = beside
        # Open segments by the name of their record, finished ones whose last checkpoint is not visible yet included.
        self.open: dict[str, OpenShard] = {}
        self._latest: dict[str, SegmentCheckpoint] = {}
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
    def checkpoints(self) -> Mapping[str, SegmentCheckpoint]:
        """The committed ones of segments, of all workers."""
        return self._beside.view.segments.get(self.stream, {})

    def resume_timestamp(self) -> int:
        return self._beside.resume_timestamp()

    @property
    def control(self) -> SnapshotControl | None:
        return self._beside.view.controls.get(self.stream)

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

    def next_step(self) -> tuple[SnapshotControl, str | None] | None:
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
        if control is not None and (again := again_of(control)):
            if self._requested.fulfilled(control):
                return None
            after = after_reading(control, self.clock(), self.tables.margin)
            repeated = requested(control, () if EVERY in again else again, (), set(), after, self.clock())
            return replace(repeated, repetitions=control.repetitions + 1), None
        if added := self._added(control):
            log.info("source %s: table %s was added to `tables`", self.source.name, ", ".join(added))
            after = beside.last_timestamp if beside.gaps() - self.repaired else 0
            return requested(control, added, (), beside.gaps(), after, self.clock()), None
        if (request := self._requested.next(control)) is not None:
            now = self.clock()
            return self._requested.begin(control, request, beside.gaps(), beside.last_timestamp, now), None
        if control is None:
            return None
        if control.state is ShardState.PLANNED:
            if self.is_stopped:
                return None
            if (measured := self._beginning.measure(control)) is None:
                return None
            log.info("source %s: snapshot %s starts, about %d rows", self.source.name, measured.id, measured.rows)
            begun = replace(measured, covered=self._covered(control))
            return self._advance(begun, ShardState.READING), "begin"
        if control.state is ShardState.READING and all(map(self._has_finished, control.segment_names)):
            if not self._may_end(control.id):
                return None
            log.info("source %s: snapshot %s is finished", self.source.name, control.id)
            read = (self.checkpoints[name].updated_at for name in control.segment_names)
            last = ended(self.source, control, self._published(), read_until=max(read, default=0.0))
            return self._advance(last, ShardState.FINISHED), "end"
        return None

    def _published(self) -> Mapping[str, ShardCheckpoint]:
        """Return the committed checkpoints of the stream. Segments call this in the threads that read them."""
        return self._beside.view.checkpoints.get(self._beside.stream, {})

    def tables_of(self, control: SnapshotControl) -> list[TableSchema]:
        """See ``SnapshotTables.of``."""
        return self._tables_of.of(control)

    def mark(self, control: SnapshotControl, kind: str) -> Iterator[Change]:
        """See ``SnapshotTables.marks``."""
        return self._tables_of.marks(control, kind, self.stream.snapshots.label, self.clock)

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
        control = self.control if self.checkpoints else None
        if control is None:
            return []
        needed = {*self.open, *(control.segment_names if control.state is ShardState.READING else ())}
        return [self.stream.segment_key(name) for name in self.checkpoints if name not in needed]

    def _is_wanted(self, control: SnapshotControl | None) -> bool:
        if not self._beside.gaps_to_repair() <= repaired_by(control):
            return True
        if control is not None and control.tables is None:
            return False
        return self._is_initial() and is_unread(self._beside.view, self.source.name)

    def _is_initial(self) -> bool:
        plan = self._beside.plan
        return plan is not None and self.tables.is_initial(plan)

    def _added(self, control: SnapshotControl | None) -> list[str]:
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

    def _covered(self, control: SnapshotControl) -> tuple[str, ...] | None:
        """Return what the control record says of the tables that are read once the snapshot has finished."""
        if control.tables is None:
            dropped = self._tables_of.dropped() if control.gaps else []
            return tuple(sorted(table.table for table in (*self.source.tables(), *dropped)))
        # Before the first snapshot of all tables, none is covered.
        return None if control.covered is None else tuple(sorted({*control.covered, *control.tables}))

    def _request(self) -> SnapshotControl:
        """Return the control record of a new snapshot, which starts after everything published before a gap."""
        gaps = self._beside.gaps()
        return planned(gaps, self._beside.last_timestamp if gaps else 0, self.clock())

    def _advance(self, control: SnapshotControl, state: ShardState) -> SnapshotControl:
        return replace(control, state=state, updated_at=self.clock())

    # ------------------------------------------------------------------ segments

    def _has_finished(self, name: str) -> bool:
        checkpoint = self.checkpoints.get(name)
        return checkpoint is not None and checkpoint.state is ShardState.FINISHED

    def open_ready_segments(self, owned: set[int]) -> None:
        """Open segments of ``owned``, after the fence and a few at a time, and close those that are finished."""
        control = self.control
        current = control.segment_names if control is not None and control.state is ShardState.READING else []
        if self.is_stopped or self.unseen:
            return
        for name in [name for name in self.open if name not in current or self._has_finished(name)]:
            self._close(name)
        if control is None:
            return
        for number, name in enumerate(current):
            if len(self.open) >= _OPEN_SEGMENTS:
                return
            if name in self.open or self._has_finished(name):
                continue
            key = self.stream.segment_key(name)
            if partition_of(key) not in owned:
                continue
            committed = self.checkpoints.get(name)
            snapshot = Snapshot(control.id, control.as_of)
            position = committed.position if committed else None
            part = control.parts[number] if control.parts else SnapshotPart()
            segment = Segment(Shard(name), snapshot, number, control.segments, position, part, self._published)
            reader = self.tables.open(segment)
            self.open[name] = self.readers.open(reader, key, self, most_at_once=self.tables.reads_at_once)
            self._latest[name] = committed or SegmentCheckpoint(ShardState.PLANNED)

    def close_stopped(self) -> None:
        """Close the open segments if the snapshot is stopped. They are opened again once ``unseen`` is cleared (I3)."""
        if self.open and self.is_stopped and self.control is not None:
            log.info("source %s: snapshot %s is stopped", self.source.name, self.control.id)
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

    def checkpoint(self, page: Page) -> SegmentCheckpoint | None:
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

    def checkpoint_before_gap(self, page: Page) -> ShardCheckpoint | None:
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
        if control is None or control.state is not ShardState.READING or self.is_stopped:
            return None
        known = {**self.checkpoints, **self._latest}
        read = sum(known[name].rows for name in control.segment_names if name in known)
        return read, max(read, control.rows)

    def report_progress(self, show: Show | None = None) -> None:
        """Show the progress or, from time to time, log it with an estimate."""
        self._report.take(self.control, self.progress, show)

"""Snapshots of tables beside their stream: every row once as READ, in segments that survive restarts.

There are one control record, which only its owner advances, and one record per segment, read by whoever owns it. The
copy's rule (``spark_consumers.fold``) makes this safe: a READ replaces only what happened before its ``as_of``.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Protocol

from relay.change import MARK, Change, Images, Operation, Snapshot, event_id
from relay.kafka.checkpoints import partition_of
from relay.reading.reader_pool import OpenShard, ReaderPool
from relay.reading.set_aside import SetAside
from relay.records import (
    CommittedRecords,
    CommittedStream,
    SegmentCheckpoint,
    Shard,
    ShardState,
    SnapshotControl,
    SnapshotPart,
    SnapshotRequest,
    UnplannedTable,
)
from relay.snapshots.control import (
    Facts,
    Measure,
    Wait,
    WriteControl,
    fulfilled,
    has_marks,
    is_due,
    is_running,
    is_settled,
    is_stopped,
    is_unread,
    next_step,
    read_again,
    waiting,
)
from relay.snapshots.measuring import Measuring
from relay.source import Page, Segment, SnapshotSource, Source
from relay.table import TableSchema

log = logging.getLogger(__name__)

_OPEN_SEGMENTS = 4  # segments in one worker: the other threads are for the stream
_LOG_EVERY, _SHOW_EVERY = 10.0, 0.5  # seconds


class SnapshottedStream(Protocol):
    """What snapshots need to know about their stream: a ``SourceState``."""

    source: Source
    committed: CommittedStream
    set_aside: SetAside

    @property
    def view(self) -> CommittedRecords: ...
    def gaps(self) -> Set[str]: ...
    def gaps_to_repair(self) -> Set[str]: ...


class Snapshots:
    """The snapshots of one source. Used by the worker's thread. ``tables``: reads the rows."""

    def __init__(self, beside: SnapshottedStream, tables: SnapshotSource, readers: ReaderPool) -> None:
        self.source = beside.source
        self.stream = beside.committed.stream
        self.tables = tables
        self.readers = readers
        self._beside = beside
        self._committed = beside.committed
        # Open segments by the name of their record, including finished ones whose last checkpoint is not visible yet.
        self.open: dict[str, OpenShard] = {}
        self._latest: dict[str, SegmentCheckpoint] = {}
        # When the progress was last shown or logged.
        self._reported_at = 0.0
        self._measuring = Measuring(beside.source.name, tables, beside.source.clock)
        # Partitions of stopped segments whose last checkpoints the view may not show yet.
        self.unseen: set[int] = set()
        self.marked = SnapshotTables(beside.source, beside.committed)
        # The id of the snapshot that waits for its end, and its value of `awaited`.
        self._waits: tuple[str, float] | None = None
        # Requests for tables that the source does not have. Each causes one warning.
        self._unknown: set[str] = set()
        # Returns whether the view shows the records that this worker wrote last; None once it did.
        self.sees: Callable[[], bool] | None = None

    @property
    def control(self) -> SnapshotControl | None:
        return self._committed.control

    @property
    def _requests(self) -> Sequence[SnapshotRequest]:
        return self._beside.view.requests_of(self.source.name)

    @property
    def _altered(self) -> Sequence[SnapshotRequest]:
        return self._beside.view.altered_of(self.source.name)

    @property
    def awaited(self) -> float:
        """The time, in seconds, up to which shards must be published before the snapshot can end; 0 without wait."""
        if self._waits is None or (control := self.control) is None:
            return 0.0
        snapshot, until = self._waits
        return until if snapshot == control.id else 0.0  # I7: another worker may have begun a later one

    @property
    def is_stopped(self) -> bool:
        return is_stopped(self.control, self._requests)

    @property
    def is_watching(self) -> bool:
        """Whether the view does not show this worker's last records yet. Until then, nothing is decided from it."""
        if self.sees is not None and self.sees():
            self.sees = None
        return self.sees is not None  # I3

    # ------------------------------------------------------------------ the control record

    @property
    def is_measured(self) -> bool:
        """Whether a measurement has ended, and the snapshot may begin."""
        return self._measuring.has_ended(self._committed.checkpoints)

    def next_step(self) -> WriteControl | None:
        """Return the next step for the owner of the control record, or None if nothing is due."""
        if self._committed.plan is None:
            return None
        control, facts = self.control, self._facts()
        if control is not None and control.state is ShardState.PLANNED and not self.is_stopped:
            facts = replace(facts, measurement=self._measuring.look(control.id, self._committed.checkpoints))
        self._warn_of_unknown_tables(control, facts)
        step = next_step(control, facts)
        self._waits = (control.id, step.published_to) if control is not None and isinstance(step, Wait) else None
        if isinstance(step, WriteControl):
            for said in step.said:
                log.info("source %s: %s", self.source.name, said)
            for said in step.warned:
                log.warning("source %s: %s", self.source.name, said)
            if step.mark == "begin":
                self._measuring.drop()
            return step
        if isinstance(step, Measure) and control is not None:
            self._measuring.start(control, step, self._committed.checkpoints)
        elif isinstance(step, Wait) and step.begins_in:
            self._measuring.wait(step.begins_in)
        return None

    def _facts(self) -> Facts:
        beside, control = self._beside, self.control
        plan, requests, gaps = self._committed.plan, self._requests, beside.gaps()
        is_initial = plan is not None and self.tables.is_initial(plan)
        # A database may have many tables, so looks stay cheap while nobody asks for them.
        asks = self.tables.is_selective or bool(requests) or is_running(control)
        return Facts(
            now=self.source.clock(),
            margin=self.tables.margin,
            is_selective=self.tables.is_selective,
            is_initial=is_initial,
            is_unread=is_initial and is_unread(beside.view, self.source.name),
            tables={table.table for table in self.source.tables()} if asks else set(),
            dropped={table.table for table in self.marked.dropped()} if asks else set(),
            gaps=gaps,
            to_repair=beside.gaps_to_repair(),
            last_timestamp=self._committed.floor if gaps else 0,
            requests=requests,
            published=self._committed.checkpoints if self.source.has_journals else {},
            segments=self._committed.segments,
            awaited=self.awaited,
            altered=self._altered,
        )

    def _warn_of_unknown_tables(self, control: SnapshotControl | None, facts: Facts) -> None:
        name = self.source.name
        said = (
            "source %s: the requested snapshot %s waits, because this worker does not read table %s: restart the relay "
            "with a config that has it, or withdraw the request with `relay snapshot CONFIG %s --stop`"
        )
        for request in waiting(control, facts):
            unknown = set(request.tables) - facts.tables
            if unknown and not request.after and request.id not in self._unknown:
                self._unknown.add(request.id)
                log.warning(said, name, request.id, ", ".join(sorted(unknown)), name)

    @property
    def is_due(self) -> bool:
        return is_due(self.control, self._facts())

    def is_settled(self) -> bool:
        return self.sees is None and is_settled(self.control, self._facts())

    def fulfilled(self) -> list[bytes]:
        done = fulfilled(self.control, self._requests) + read_again(self.control, self._altered)
        return [each.key for each in done]

    def prunable(self) -> list[bytes]:
        """Return the keys of segments that nobody will read again."""
        control = self.control if self._committed.segments else None
        if control is None:
            return []
        needed = {*self.open, *(control.segment_names if control.state is ShardState.READING else ())}
        return [self.stream.segment_key(name) for name in self._committed.segments if name not in needed]

    # ------------------------------------------------------------------ segments

    @property
    def is_read(self) -> bool:
        """Whether all segments are read. The end of the snapshot is written once the stream has caught up."""
        control = self.control
        return control is not None and all(map(self._has_finished, control.segment_names))

    @property
    def to_read(self) -> Sequence[str]:
        """The segments that the snapshot reads, over all workers, including those already read."""
        control = self.control
        if control is None or control.state is not ShardState.READING or self.is_stopped:
            return []
        return control.segment_names

    def unread(self, owned: Set[int]) -> list[bytes]:
        keys = (self.stream.segment_key(name) for name in self.to_read if not self._has_finished(name))
        return [key for key in keys if partition_of(key) in owned]

    def _has_finished(self, name: str) -> bool:
        checkpoint = self._committed.segments.get(name)
        return checkpoint is not None and checkpoint.state is ShardState.FINISHED

    def open_ready_segments(self, owned: set[int]) -> None:
        """Open segments in ``owned``, past the fence and a few at a time, and close finished ones."""
        control, current = self.control, self.to_read
        if self.is_stopped or self.unseen:
            return
        waiting = self._beside.set_aside.waiting()
        for name in [name for name in self.open if name not in current or self._has_finished(name)]:
            self.close(name)
        if control is None:
            return
        for number, name in enumerate(current):
            if len(self.open) >= _OPEN_SEGMENTS:
                return
            if name in self.open or self._has_finished(name):
                continue
            key = self.stream.segment_key(name)
            if partition_of(key) not in owned or key in waiting:
                continue
            committed = self._committed.segments.get(name)
            snapshot, begun = Snapshot(control.id, control.begun.as_of), control.begun
            position = committed.position if committed else None
            part = begun.parts[number] if begun.parts else SnapshotPart()
            segment = Segment(
                Shard(name), snapshot, number, begun.segments, position, part, lambda: self._committed.checkpoints
            )
            with self._beside.set_aside.opening(key, name):
                reader = self.tables.open(segment)
                self.open[name] = self.readers.open(
                    reader, key, self.source.name, most_at_once=self.tables.reads_at_once
                )
                self._latest[name] = committed or SegmentCheckpoint(ShardState.PLANNED)

    def close_stopped(self) -> None:
        """Close the open segments if the snapshot is stopped. They may reopen once ``unseen`` is cleared (I3)."""
        if self.open and self.is_stopped and self.control is not None:
            log.info("source %s: snapshot %s is stopped", self.source.name, self.control.id)
            self.unseen |= {partition_of(segment.key) for segment in self.open.values()}  # I3
            self.close_segments()

    def close_segments(self, lost: set[int] | None = None) -> None:
        """Close the open segments of ``lost`` partitions, or all of them."""
        for name, segment in list(self.open.items()):
            if lost is None or partition_of(segment.key) in lost:
                self.close(name)

    def close(self, name: str) -> None:
        self.readers.shut(self.open.pop(name))
        self._latest.pop(name, None)

    def checkpoint(self, page: Page, unplanned: Mapping[str, UnplannedTable]) -> SegmentCheckpoint | None:
        """Return the checkpoint that covers ``page``, or None if it has nothing new."""
        before = self._latest[page.shard.id]
        if page.position == before.position and not page.finished and not page.has_content:  # I3: after an abort
            return None
        state = ShardState.FINISHED if page.finished else ShardState.READING
        # Not earlier than the time given by the worker that read the segment before.
        now = max(before.updated_at, self.source.clock())
        after = replace(before, state=state, position=page.position, updated_at=now, unplanned=unplanned)
        self._latest[page.shard.id] = after
        return after

    def progress(self) -> tuple[int, int] | None:
        """Return the rows read by all workers and the estimated total of the running snapshot, or None if none runs."""
        control = self.control
        if control is None or control.state is not ShardState.READING or self.is_stopped:
            return None
        known = {**self._committed.segments, **self._latest}
        read = sum(known[name].rows for name in control.segment_names if name in known)
        return read, max(read, control.begun.rows)

    def report_progress(self, show: Callable[[str, tuple[int, int] | None], None] | None = None) -> None:
        """Show the progress, or log it now and then. ``show``: takes the source's name and what `progress` returns."""
        now, control = self.source.clock(), self.control
        if now - self._reported_at < (_LOG_EVERY if show is None else _SHOW_EVERY):
            return
        done = self.progress()
        if show is not None:
            self._reported_at = now
            show(self.source.name, done)
        elif done is not None and control is not None:
            self._reported_at = now
            read, rows = done
            seconds = (now - control.updated_at) * (rows - read) / max(read, 1)
            left = f"about {seconds:.0f} s left" if read else "no estimate yet"
            log.info("source %s: snapshot: %d of about %d rows, %s", self.source.name, read, rows, left)


class SnapshotTables:
    """The tables that a snapshot reads, and the changes that mark its beginning and end for each of them."""

    def __init__(self, source: Source, committed: CommittedStream) -> None:
        self._source = source
        self._committed = committed
        # The same object each time for a table, because writers are found by it.
        self._known_dropped: dict[TableSchema, TableSchema] = {}
        # The id of the last snapshot that was seen to have begun; None before the first look.
        self._begun: str | None = None

    def look(self) -> None:
        """Tell the source of a snapshot that has begun since the last look: its tables have their keys again (I12)."""
        control, before = self._committed.control, self._begun
        self._begun = control.id if control is not None and control.state is not ShardState.PLANNED else ""
        if control is not None and self._begun and before not in (None, self._begun):
            self._source.has_keys({*(control.tables or control.covered or ())}.difference(control.left_out))

    def dropped(self) -> list[TableSchema]:
        """Return tables that copies may have and that are not among the tables of the source."""
        plan = self._committed.plan
        found = self._source.dropped(plan.keys, plan.hashed) if plan is not None else ()
        return [self._known_dropped.setdefault(table, table) for table in found]

    def of(self, control: SnapshotControl) -> list[TableSchema]:
        there = [table for table in self._source.tables() if has_marks(control, table.table, is_dropped=False)]
        return there + [table for table in self.dropped() if has_marks(control, table.table, is_dropped=True)]

    def marks(self, control: SnapshotControl, kind: str) -> Iterator[Change]:
        """Yield, for each table, the change that marks the beginning or end of the snapshot in every partition."""
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
                snapshot=Snapshot(control.id, control.begun.as_of),
                attributes={MARK: kind},
            )

"""The rules that follow from the control record of a stream's newest snapshot. `next_step` makes all decisions."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal
from zlib import crc32

from relay.records import (
    CommittedRecords,
    CommittedStream,
    Gap,
    SegmentCheckpoint,
    ShardCheckpoint,
    ShardState,
    SnapshotBeginning,
    SnapshotControl,
    SnapshotRequest,
)
from relay.snapshots.emptied_tables import EVERY, MOST_REPETITIONS, emptied, emptied_since, is_published_to
from relay.source import Measured


@dataclass(frozen=True, slots=True)
class Measure:
    """The source has to be asked what the planned snapshot reads. ``emptied``: tables emptied before it."""

    as_of: int
    emptied: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the snapshot ``id`` has to read: ``found``, once a READ cannot undo changes that are not published yet."""

    id: str
    asked: Measure
    found: Measured | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one source and its stream, as this worker sees them. Times are seconds since the epoch.

    ``margin``, ``is_selective``, ``is_initial``: see `SnapshotSource`. ``is_unread``: no snapshot of all tables has
    finished in any stream. ``dropped``: wanted tables that copies may have and that are not among ``tables``. ``gaps``:
    the ids of all known gaps. ``to_repair``: the ids of those that a snapshot has to repair. ``last_timestamp``: the
    newest that may have been published. ``requests``: the unfulfilled ones, the oldest first. ``published``: the
    checkpoints of shards that list emptied tables. ``awaited``: the time up to which shards have to be published before
    the snapshot ends; 0 if the wait has not begun. ``altered``: what statements have done to tables not read since.
    """

    now: float
    margin: float
    is_selective: bool
    is_initial: bool
    is_unread: bool
    tables: Set[str]
    dropped: Set[str]
    gaps: Set[str]
    to_repair: Set[str]
    last_timestamp: int
    requests: Sequence[SnapshotRequest]
    published: Mapping[str, ShardCheckpoint]
    segments: Mapping[str, SegmentCheckpoint]
    measurement: Measurement | None = None
    awaited: float = 0.0
    altered: Sequence[SnapshotRequest] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do yet. ``begins_in``: seconds to wait. ``published_to``: how far shards have to be published."""

    begins_in: float = 0.0
    published_to: float = 0.0


@dataclass(frozen=True, slots=True)
class WriteControl:
    """A control record to write in one transaction with each table's ``mark``. ``said``, ``warned``: what to log."""

    control: SnapshotControl
    mark: Literal["begin", "end"] | None = None
    said: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()


Step = Wait | Measure | WriteControl


def is_unread(view: CommittedRecords, source: str) -> bool:
    """Whether no snapshot of all tables of ``source`` has ever finished, in any of its streams."""
    return not any(proves_read(each.control) for each in view.of_source(source))


def proves_read(control: SnapshotControl | None) -> bool:
    """Whether a snapshot of all tables has finished: the one in ``control``, or an earlier one."""
    return control is not None and (control.read or (not is_running(control) and control.tables is None))


def covered_by(control: SnapshotControl | None) -> Set[str] | None:
    """Return the tables that finished snapshots have read; None if unknown, or if they never read all tables."""
    if control is None or is_running(control) or not proves_read(control) or control.covered is None:
        return None
    return set(control.covered)


def is_running(control: SnapshotControl | None) -> bool:
    """Whether a snapshot is planned or under way, or has been stopped."""
    return control is not None and control.state is not ShardState.FINISHED


def again_of(control: SnapshotControl | None) -> Sequence[str]:
    """Return the tables emptied during a snapshot that has finished: the next snapshot reads them again."""
    return () if control is None or is_running(control) else control.again


def fulfilled_by(control: SnapshotControl | None) -> Set[str]:
    """Return the ids of the requests that a finished snapshot fulfils."""
    return set(control.requests if control is not None else ())


def repaired_by(control: SnapshotControl | None) -> Set[str]:
    """Return the ids of the gaps that this snapshot or earlier ones repair or have repaired."""
    return {*control.gaps, *control.repaired} if control is not None else set()


def unfinished_repairs(committed: CommittedStream) -> Set[str]:
    """Return the ids of the gaps that an unfinished snapshot was to repair, unless a request stays for the next."""
    control = committed.control
    return set(control.gaps) if control is not None and is_running(control) and not control.requests else set()


def has_marks(control: SnapshotControl, table: str, *, is_dropped: bool) -> bool:
    """Whether the snapshot publishes begin and end marks for ``table``.

    A dropped table also gets them if copies may still have rows of it, which the end mark deletes (I7).
    """
    if control.tables is not None:
        return table in control.tables
    return not is_dropped or bool(control.gaps or control.repetitions) or table in (control.covered or ())


def is_stopped(control: SnapshotControl | None, requests: Sequence[SnapshotRequest]) -> bool:
    """Whether a person has stopped the snapshot, by all of the unfulfilled ``requests`` that it fulfils (I10)."""
    ids = fulfilled_by(control) if is_running(control) else ()
    mine = [request for request in requests if request.id in ids]
    return bool(mine) and all(request.stopped for request in mine)


def fulfilled(control: SnapshotControl | None, requests: Sequence[SnapshotRequest]) -> list[SnapshotRequest]:
    done = set() if is_running(control) else fulfilled_by(control)
    return [request for request in requests if request.id in done]


def read_again(control: SnapshotControl | None, altered: Sequence[SnapshotRequest]) -> list[SnapshotRequest]:
    """Return what statements have done to tables that a finished snapshot has read since."""
    if control is None or is_running(control):
        return []
    read, without = control.tables, {*control.left_out}
    return [
        each
        for each in altered
        if each.after < control.begun.as_of  # I7
        and (read is None or {*each.tables} <= {*read})
        and not without.intersection((*each.tables, EVERY))  # I7
    ]


def waiting(control: SnapshotControl | None, facts: Facts) -> list[SnapshotRequest]:
    """Return the requests that wait for a snapshot, the oldest first, including those whose tables do not exist."""
    mine = fulfilled_by(control)
    found = [each for each in facts.requests if each.id not in mine and not each.stopped]
    if is_stopped(control, facts.requests):
        # After another snapshot, copies would wait for the end of the stopped one (I7).
        return [each for each in found if not each.tables]
    return found


def _fulfils(request: SnapshotRequest, other: SnapshotRequest, facts: Facts) -> bool:
    """Whether ``other`` asks for the same snapshot as ``request``, which has not begun yet."""
    if not request.tables:
        return _has_tables(other, facts)
    if request.after and other.after:
        return not other.stopped
    return bool(other.tables) and set(other.tables) <= set(request.tables) and not other.stopped


def _has_tables(request: SnapshotRequest, facts: Facts) -> bool:
    """Whether a request's tables can be read; for a statement's request, the snapshot finds that out."""
    return request.after > 0 or set(request.tables) <= facts.tables


def is_due(control: SnapshotControl | None, facts: Facts) -> bool:
    """Whether a snapshot is due that nobody requested and that is not planned yet."""
    return is_wanted(control, facts) or bool(again_of(control) or added_to(control, facts))


def is_settled(control: SnapshotControl | None, facts: Facts) -> bool:
    """Whether no snapshot is running, due or requested, except those that are stopped or wait for their tables."""
    if is_due(control, facts) or any(_has_tables(each, facts) for each in waiting(control, facts)):
        return False
    return not is_running(control) or is_stopped(control, facts.requests)


def is_wanted(control: SnapshotControl | None, facts: Facts) -> bool:
    """Whether a snapshot of all tables is due, either the initial one or one that repairs a gap."""
    if not facts.to_repair <= repaired_by(control):
        return True
    return facts.is_initial and facts.is_unread and (control is None or control.tables is not None)


def added_to(control: SnapshotControl | None, facts: Facts) -> list[str]:
    """Return the tables added to the config since the initial snapshot."""
    if not facts.is_selective or not facts.is_initial or (covered := covered_by(control)) is None:
        return []
    return sorted(facts.tables - covered)


def next_step(control: SnapshotControl | None, facts: Facts) -> Step:
    """Return the next step for the owner of the control record. Changes nothing, and asks nobody."""
    if (remaining := _without_absent(control, facts)) is not None:
        return WriteControl(remaining)
    if is_wanted(control, facts):
        after = control.after if control is not None and again_of(control) else 0  # I7: its end deletes their rows
        after = max(after, facts.last_timestamp if facts.gaps else 0)
        return WriteControl(planned(control, facts.gaps, after, facts.now))
    request = next((each for each in waiting(control, facts) if _has_tables(each, facts)), None)
    if is_running(control) and not (request and is_stopped(control, facts.requests)):
        assert control is not None
        return _begun(control, facts) if control.state is ShardState.PLANNED else _ended(control, facts)
    if fulfilled(control, facts.requests) or read_again(control, facts.altered):
        return Wait()  # until nobody can mistake the request for a waiting one
    if control is not None and (again := again_of(control)):
        tables = () if EVERY in again else again
        repeated = requested(control, tables, (), set(), control.after, facts.now)
        return WriteControl(replace(repeated, repetitions=control.repetitions + 1))
    after = facts.last_timestamp if facts.gaps - repaired_by(control) else 0
    if added := added_to(control, facts):
        said = f"table {', '.join(added)} was added to `tables`"
        return WriteControl(requested(control, added, (), facts.gaps, after, facts.now), said=(said,))
    if request is None:
        return Wait()
    served = [each for each in facts.requests if _fulfils(request, each, facts)]
    wanted = sorted({table for each in served for table in each.tables}) if request.tables else ()
    altered = [each for each in facts.altered if not wanted or {*each.tables} <= {*wanted}]
    after = max(after, *(each.after for each in [*served, *altered]))  # I7: a READ has to replace earlier rows
    said = f"a snapshot of {replace(request, tables=tuple(wanted)).subject} was requested"
    ids = [each.id for each in served]
    return WriteControl(requested(control, wanted, ids, facts.gaps, after, facts.now), said=(said,))


def planned(before: SnapshotControl | None, gaps: Set[str], after: int, now: float) -> SnapshotControl:
    """Return the control record of a new snapshot that repairs ``gaps`` and begins ``after`` a time in seconds."""
    name = f"{int(now)}-{crc32(before.id.encode() if before is not None else b''):08x}"
    # It ends a table for which a former snapshot has begun, and that was dropped when this one begins.
    has_begun = before is not None and (
        before.state is ShardState.READING or (before.left_out if is_running(before) else before.again)
    )
    left_out = (EVERY,) if has_begun else ()
    return SnapshotControl(ShardState.PLANNED, name, after, gaps=tuple(sorted(gaps)), left_out=left_out, updated_at=now)


def requested(
    before: SnapshotControl | None,
    tables: Sequence[str],
    requests: Iterable[str],
    gaps: Set[str],
    after: int,
    now: float,
) -> SnapshotControl:
    """Return the control record of a requested snapshot, which replaces ``before``. ``tables``: empty for all.

    ``requests``: the ids of those that it fulfils. ``gaps``: all known ones; a snapshot of some tables repairs none.
    """
    covered = covered_by(before)
    return replace(
        planned(before, set() if tables else gaps, after, now),  # I9
        tables=tuple(tables) or None,
        requests=tuple(sorted(requests)),
        repaired=tuple(sorted(repaired_by(before))),
        read=proves_read(before),
        covered=None if covered is None else tuple(sorted(covered)),
    )


def restarted(
    committed: CommittedStream, requests: Iterable[SnapshotRequest], reset: Gap, after: int
) -> SnapshotControl | None:
    """Return the control record that restarts a stream's unfinished snapshot after a reset; None if a request does.

    Copies wait for the end of a snapshot that has begun (I7), even for a table that will be read again, and only a
    snapshot that begins after a gap repairs the gap. ``after``: the last timestamp published, in seconds.
    """
    control = committed.control
    known = repaired_by(control)
    decided = committed.decided_repairs - known
    requested = fulfilled_by(control) & {request.id for request in requests}
    if not decided and not again_of(control) and (not is_running(control) or requested):
        return None
    return planned(control, {*known, *decided, reset.id}, after, reset.found_at)


def _without_absent(control: SnapshotControl | None, facts: Facts) -> SnapshotControl | None:
    """Return the control record without tables that are not in the config, or None if it has none of them.

    They are read again if they come back. A running snapshot has no end for them: copies would delete the rest (I7).
    """
    if control is None or not facts.is_selective:
        return None
    covered, left_out = set(control.covered or ()), set(control.left_out)
    is_read = control.state is ShardState.READING
    absent = covered.union(control.tables or () if is_read else ()) - facts.tables - facts.dropped - left_out
    if not absent:
        return None
    return replace(
        control,
        covered=None if control.covered is None else tuple(sorted(covered - absent)),
        left_out=tuple(sorted(left_out | absent)) if is_read else control.left_out,
        updated_at=facts.now,
    )


def _begun(control: SnapshotControl, facts: Facts) -> Step:
    if is_stopped(control, facts.requests):
        return Wait()
    if (measurement := facts.measurement) is None or measurement.id != control.id:
        as_of = int(facts.now - facts.margin)
        if as_of <= control.after:
            # Until then, a READ could not replace what was published before a gap, nor the end what was read before.
            return Wait(begins_in=control.after + 1 - as_of)
        return Measure(as_of, emptied(facts.published))  # I1: before the tables are looked at
    if measurement.found is None:
        return Wait()
    segments, rows, parts, left_out = measurement.found
    if control.tables is None:
        covered: Set[str] | None = facts.tables | (facts.dropped if control.gaps or control.left_out else set())
    else:
        # Before the first snapshot of all tables, no table is covered.
        covered = None if control.covered is None else {*control.covered, *control.tables}
    begun = replace(
        control,
        state=ShardState.READING,
        begun=SnapshotBeginning(measurement.asked.as_of, segments, rows, tuple(parts), measurement.asked.emptied),
        covered=None if covered is None else tuple(sorted(covered)),
        left_out=tuple(left_out),  # I7
        updated_at=facts.now,
    )
    return WriteControl(begun, "begin", (f"snapshot {control.id} starts, about {rows} rows",))


def _ended(control: SnapshotControl, facts: Facts) -> Step:
    """Return the step that ends a snapshot once its rows, and all changes that may empty a table before, are there."""
    read = [facts.segments[name] for name in control.segment_names if name in facts.segments]
    if len(read) < control.begun.segments or any(each.state is not ShardState.FINISHED for each in read):
        return Wait()
    to = facts.awaited or facts.now
    if not all(is_published_to(to, shard) for shard in facts.published.values()):  # I7
        return Wait(published_to=to)
    last = replace(control, state=ShardState.FINISHED, updated_at=facts.now)
    said = f"snapshot {control.id} is finished"
    if not (again := emptied_since(control, facts.published)):
        return WriteControl(last, "end", (said,))
    found = set(again).union(facts.tables if EVERY in again else ())
    names = ", ".join(sorted(found - {EVERY}))
    if control.repetitions >= MOST_REPETITIONS:  # I10
        often = f"table {names} is emptied or renamed more often than it can be read: copies may keep deleted rows. "
        return WriteControl(last, "end", (said,), (f"{often}Run `relay snapshot` when this no longer happens",))
    read_until = max((each.updated_at for each in read), default=0.0)
    # The next snapshot begins later than this: its end deletes the rows read before, by any clock.
    after = int(max(facts.now, min(read_until, facts.now + facts.margin)) - facts.margin)  # I7
    last = replace(
        last,
        again=tuple(again),
        left_out=tuple(sorted({*control.left_out, *found})),  # I7
        after=after,
        # Without parts: the names of many tables may not fit into the record again.
        begun=replace(control.begun, parts=(), emptied={}),
    )
    return WriteControl(
        last, "end", (said, f"table {names} was emptied or renamed during its snapshot, and is read again")
    )

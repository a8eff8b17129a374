"""What follows from the control record of the newest snapshot of a stream, None where it has had none."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from relay.records import CommittedRecords, CommittedStream, ShardState, SnapshotControl, SnapshotRequest


def is_unread(view: CommittedRecords, source: str) -> bool:
    """Whether no snapshot of all tables of ``source`` has ever finished, in any stream it had."""
    return not any(stream.source == source and proves_read(control) for stream, control in view.controls.items())


def proves_read(control: SnapshotControl) -> bool:
    """Whether a snapshot of all tables has finished: that of ``control``, or one before it."""
    return control.read or (not is_running(control) and control.tables is None)


def covered_by(control: SnapshotControl | None) -> Set[str] | None:
    """Return the tables that finished snapshots have read; None if that is not known, or not all were read once."""
    if control is None or is_running(control) or not proves_read(control) or control.covered is None:
        return None
    return set(control.covered)


def without_absent(control: SnapshotControl | None, tables: Set[str], now: float) -> SnapshotControl | None:
    """Return the control record without what it says of tables that are not among ``tables``; None if nothing.

    If they come back, changes of them were missed. Then they are read again, and a snapshot that runs, and may have
    read a part of them, has no end for them, at which copies would delete the rest (I7).
    """
    if control is None:
        return None
    covered, left_out = set(control.covered or ()), set(control.left_out)
    is_read = control.state is ShardState.READING
    absent = covered.union(control.tables or () if is_read else ()) - tables - left_out
    if not absent:
        return None
    return replace(
        control,
        covered=None if control.covered is None else tuple(sorted(covered - absent)),
        left_out=tuple(sorted(left_out | absent)) if is_read else control.left_out,
        updated_at=now,
    )


def is_running(control: SnapshotControl | None) -> bool:
    """Whether a snapshot is planned or under way, or has been stopped."""
    return control is not None and control.state is not ShardState.FINISHED


def again_of(control: SnapshotControl | None) -> Sequence[str]:
    """Return the tables that were emptied during the snapshot, if it has finished: the next one reads them again."""
    return () if control is None or is_running(control) else control.again


def fulfilled_by(control: SnapshotControl | None) -> Set[str]:
    """Return the ids of the requests that the snapshot fulfils, once it has finished."""
    return set(control.requests if control is not None else ())


def repaired_by(control: SnapshotControl | None) -> Set[str]:
    """Return the ids of the gaps that the snapshot repairs or has repaired, and those before it."""
    return {*control.gaps, *control.repaired} if control is not None else set()


def is_stopped(control: SnapshotControl | None, requests: Sequence[SnapshotRequest]) -> bool:
    """Whether a person has stopped the snapshot. ``requests``: all that are not fulfilled.

    One of all tables also fulfils requests whose snapshot was stopped before it, and goes on for its own (I10).
    """
    ids = fulfilled_by(control) if is_running(control) else ()
    mine = [request for request in requests if request.id in ids]
    return bool(mine) and all(request.stopped for request in mine)


def unfinished_repairs(committed: CommittedStream) -> Set[str]:
    """Return the ids of the gaps that the last snapshot of a stream was to repair, if it has not finished.

    One that was requested need not repair any: its request stays, and is fulfilled by the stream that follows.
    """
    control = committed.control
    return set(control.gaps) if control is not None and is_running(control) and not control.requests else set()


def planned(gaps: Set[str], after: int, now: float) -> SnapshotControl:
    """Return the control record of a new snapshot, which repairs ``gaps`` and begins ``after`` a time, in seconds."""
    name = f"{int(now)}-{secrets.token_hex(4)}"
    return SnapshotControl(ShardState.PLANNED, name, after, gaps=tuple(sorted(gaps)), updated_at=now)


def requested(
    before: SnapshotControl | None,
    tables: Sequence[str],
    requests: Iterable[str],
    gaps: Set[str],
    after: int,
    now: float,
) -> SnapshotControl:
    """Return the control record of a snapshot that was requested, which replaces ``before``.

    ``tables``: empty for all. ``requests``: the ids of those that it fulfils. ``gaps``: all known ones. A snapshot of
    some tables repairs none (I9).
    """
    covered = covered_by(before)
    return replace(
        planned(set() if tables else gaps, after, now),  # I9
        tables=tuple(tables) or None,
        requests=tuple(sorted(requests)),
        repaired=tuple(sorted(repaired_by(before))),
        read=before is not None and proves_read(before),
        covered=None if covered is None else tuple(sorted(covered)),
    )

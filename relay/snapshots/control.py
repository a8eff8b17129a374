"""The records of snapshots: the control record of the newest one of a stream, beside those of its segments.

They are under a stream of their own (``<label>/snapshot``). ``Checkpoint.snapshot`` of a control record has:

- ``id``, ``as_of``, ``segments``, ``rows`` (estimated), and ``parts`` (what each segment reads) once it has begun;
- ``gaps``: the ids of those that it repairs; ``after``: seconds, it begins later than this;
- ``requests``: the ids of the requests that it fulfils, if it was requested (``relay.snapshots.requests``);
- ``tables``: what it reads, if that is not all tables;
- ``repaired``: the ids of gaps that snapshots before it have repaired, and ``read``, if one of them read all tables and
  has finished: kept by a snapshot that was requested, which takes the place of their control record;
- ``covered``: the tables that have been read once it has finished, by it or before it;
- ``left_out``: those for which it does not end: they were taken out of the config while it ran, or are read again;
- ``emptied``: when a table was last emptied before it was measured, by shard (``relay.snapshots.emptied_tables``);
- ``again``: those that were emptied since, and that the next snapshot reads; ``read_until``: when their last
  rows were read, by the clock of the worker that did; ``repetitions``: how many snapshots in a row were repeated so.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from relay.lineage import Checkpoint, CommittedRecords, ShardState, StreamId
from relay.snapshots.requests import SnapshotRequest

CONTROL = "control"
"""The name of the control record."""

_SUFFIX = "/snapshot"


def records_of(stream: StreamId) -> StreamId:
    """Return the stream under which the snapshots of ``stream`` have their checkpoints."""
    return StreamId(stream.source, stream.label + _SUFFIX)


def is_snapshot(stream: StreamId) -> bool:
    """Whether the checkpoints of ``stream`` are those of snapshots."""
    return stream.label.endswith(_SUFFIX)


def control_of(view: CommittedRecords, stream: StreamId) -> Checkpoint | None:
    """Return the control record of the newest snapshot of ``stream``, None if it has had none."""
    return view.checkpoints.get(records_of(stream), {}).get(CONTROL)


def is_unread(view: CommittedRecords, source: str) -> bool:
    """Whether no snapshot of all tables of ``source`` has ever finished, in any stream it had."""
    return not any(
        stream.source == source
        and is_snapshot(stream)
        and (control := snapshots.get(CONTROL)) is not None
        and proves_read(control)
        for stream, snapshots in view.checkpoints.items()
    )


def proves_read(control: Checkpoint) -> bool:
    """Whether a snapshot of all tables has finished: that of ``control``, or one before it."""
    return "read" in fields_of(control) or (control.state is ShardState.FINISHED and not is_partial(control))


def fields_of(control: Checkpoint | None) -> Mapping[str, Any]:
    """Return what a control record says; nothing of one that is missing."""
    return control.snapshot if control is not None and control.snapshot is not None else {}


def is_partial(control: Checkpoint | None) -> bool:
    """Whether the snapshot reads some tables only."""
    return "tables" in fields_of(control)


def covered_by(control: Checkpoint | None) -> Set[str] | None:
    """Return the tables that finished snapshots have read; None if that is not known, or not all were read once."""
    if control is None or is_running(control) or not proves_read(control):
        return None
    covered = fields_of(control).get("covered")
    return set(covered) if covered is not None else None


def without_absent(control: Checkpoint | None, tables: Set[str], now: float) -> Checkpoint | None:
    """Return the control record without what it says of tables that are not among ``tables``; None if nothing.

    If they come back, changes of them were missed. Then they are read again, and a snapshot that runs, and may have
    read a part of them, has no end for them, at which copies would delete the rest (I7).
    """
    fields = fields_of(control)
    covered, left_out = set(fields.get("covered", ())), set(fields.get("left_out", ()))
    read = set(covered)
    if control is not None and control.state is ShardState.READING:
        read |= set(fields.get("tables", ()))
    absent = read - tables - left_out
    if control is None or not absent:
        return None
    more: dict[str, Any] = {"covered": sorted(covered - absent)} if "covered" in fields else {}
    if control.state is ShardState.READING:
        more["left_out"] = sorted(left_out | absent)
    return replace(control, snapshot={**fields, **more}, updated_at=now)


def is_running(control: Checkpoint | None) -> bool:
    """Whether a snapshot is planned or under way, or has been stopped."""
    return control is not None and control.snapshot is not None and control.state is not ShardState.FINISHED


def again_of(control: Checkpoint | None) -> Sequence[str]:
    """Return the tables that were emptied during the snapshot, if it has finished: the next one reads them again."""
    return () if is_running(control) else fields_of(control).get("again", ())


def fulfilled_by(control: Checkpoint | None) -> Set[str]:
    """Return the ids of the requests that the snapshot fulfils, once it has finished."""
    return set(fields_of(control).get("requests", ()))


def repaired_by(control: Checkpoint | None) -> Set[str]:
    """Return the ids of the gaps that the snapshot repairs or has repaired, and those before it."""
    fields = fields_of(control)
    return {*fields.get("gaps", ()), *fields.get("repaired", ())}


def is_stopped(control: Checkpoint | None, requests: Sequence[SnapshotRequest]) -> bool:
    """Whether a person has stopped the snapshot. ``requests``: all that are not fulfilled.

    One of all tables also fulfils requests whose snapshot was stopped before it, and goes on for its own (I10).
    """
    ids = fulfilled_by(control) if is_running(control) else ()
    mine = [request for request in requests if request.id in ids]
    return bool(mine) and all(request.stopped for request in mine)


def unfinished_repairs(view: CommittedRecords, stream: StreamId) -> Set[str]:
    """Return the ids of the gaps that the last snapshot of ``stream`` was to repair, if it has not finished.

    One that was requested need not repair any: its request stays, and is fulfilled by the stream that follows.
    """
    control = control_of(view, stream)
    return set(fields_of(control)["gaps"]) if is_running(control) and not fulfilled_by(control) else set()


def planned(gaps: Set[str], after: int, now: float, **more: Any) -> Checkpoint:
    """Return the control record of a new snapshot, which repairs ``gaps`` and begins ``after`` a time, in seconds."""
    fields = {
        "id": f"{int(now)}-{secrets.token_hex(4)}",
        "gaps": sorted(gaps),
        "after": after,
        "as_of": None,
        "segments": 0,
        "rows": 0,
        **more,
    }
    return Checkpoint(ShardState.PLANNED, snapshot=fields, updated_at=now)


def requested(
    before: Checkpoint | None,
    tables: Sequence[str],
    requests: Iterable[str],
    gaps: Set[str],
    after: int,
    now: float,
    **more: Any,
) -> Checkpoint:
    """Return the control record of a snapshot that was requested, which replaces ``before``.

    ``tables``: empty for all. ``requests``: the ids of those that it fulfils. ``gaps``: all known ones. A snapshot of
    some tables repairs none (I9).
    """
    more = {"requests": sorted(requests), "repaired": sorted(repaired_by(before)), **more}
    if tables:
        more["tables"] = list(tables)
    if before is not None and proves_read(before):
        more["read"] = True
    if (covered := covered_by(before)) is not None:
        more["covered"] = sorted(covered)
    return planned(set() if tables else gaps, after, now, **more)  # I9

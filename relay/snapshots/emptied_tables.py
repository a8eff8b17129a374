"""Tables that are emptied or renamed while a snapshot reads them, and so have to be read again.

A row that was read before a TRUNCATE may be published after it. Where a copy had no such row, no tombstone says that it
is gone (I7). The rows that a RENAME takes away or brings are in no change at all.

The checkpoint of a shard says which tables it has emptied of late, in the transaction of the change that does it. What
was not there when the snapshot began has happened since.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from relay.change import ChangeParts, Operation
from relay.records import ShardCheckpoint, SnapshotControl
from relay.snapshots.control import is_running
from relay.source import Page, Source

log = logging.getLogger(__name__)

MOST_REPETITIONS = 10
"""Snapshots in a row of tables that are emptied again and again; after that, copies may keep rows of them."""

EVERY = ""
"""Stands for all tables, where more were emptied than a checkpoint names."""

_MOST_NAMED = 500  # of a shard, or a checkpoint would not fit into a record
_KEPT = 600.0  # seconds: more than clocks of workers differ, and longer than a view is behind
_EMPTYING = ("TRUNCATE", "DROP", "DROP DATABASE", "RENAME")


def emptied_by(page: Page) -> set[str]:
    """Return the tables that something in ``page`` empties, renames or takes the name of."""
    found: set[str] = set()
    # A block has rows only.
    for part in page.changes.parts if isinstance(page.changes, ChangeParts) else (page.changes,):
        if isinstance(part, (list, tuple)):
            found.update(change.table for change in part if change.operation is Operation.TRUNCATE)
    for statement in page.schema_changes:
        for table in statement.tables:
            if table.renamed_to is not None:
                found |= {table.table, table.renamed_to}
            elif statement.kind in _EMPTYING:
                found.add(table.table)
    return found


def forget_before(control: SnapshotControl | None, now: float) -> float:
    """Return the time, in seconds, before which nobody asks what was emptied. ``control``: of the newest snapshot."""
    if control is None or not is_running(control):
        return now - _KEPT
    return min(control.as_of or control.updated_at, now) - _KEPT


def noted(before: Mapping[str, float], page: Page, now: float, oldest: float) -> Mapping[str, float]:
    """Return when tables were last emptied, those of ``page`` included. ``before``: without them.

    Forgets what was before ``oldest``. All times are seconds. Of one shard they rise, whichever worker's clock it is.
    """
    if found := emptied_by(page):
        at = max(now, max(before.values(), default=0.0) + 0.001)
        if len(before.keys() | found) > _MOST_NAMED:  # I11
            return {EVERY: at}
        before = {**before, **dict.fromkeys(found, at)}
    return {table: at for table, at in before.items() if at >= oldest}  # I11


def emptied(published: Mapping[str, ShardCheckpoint]) -> dict[str, float]:
    """Return, by shard, when a table was last emptied, for the control record of a snapshot that begins."""
    return {shard: max(each.emptied.values()) for shard, each in published.items() if each.emptied}


def is_published_to(time: float, shard: ShardCheckpoint) -> bool:
    """Whether all that a shard committed before ``time``, in seconds, is published.

    Under load it may never be at its head. Then the time of its last transaction says it, which began that late.
    """
    token = shard.token.timestamp if shard.token is not None else 0
    return shard.state.ended or max(shard.reached or 0.0, token) >= time


def emptied_since(control: SnapshotControl, published: Mapping[str, ShardCheckpoint]) -> list[str]:
    """Return the tables of a snapshot that were emptied since it began; `EVERY` may be among those of all tables."""
    found = {
        table
        for shard, each in published.items()
        for table, when in each.emptied.items()
        if when > control.emptied.get(shard, 0.0)
    }
    if control.tables is None:
        return sorted(found)
    return sorted(control.tables if EVERY in found else found & set(control.tables))


def ended(
    source: Source, control: SnapshotControl, published: Mapping[str, ShardCheckpoint], *, read_until: float
) -> SnapshotControl:
    """Return the control record of a snapshot that has been read, with what has to be read again.

    ``published``: the committed checkpoints of the stream, with all that was committed before its last row was read.
    ``read_until``: seconds, when that was, by the clock of the worker that read it.
    """
    if not (again := emptied_since(control, published)):
        return control
    every = [table.table for table in source.tables()] if EVERY in again else []
    names = ", ".join(sorted({*again, *every} - {EVERY}))
    if control.repetitions >= MOST_REPETITIONS:
        log.warning(
            "source %s: table %s is emptied or renamed more often than it can be read: copies may keep rows of it. "
            "Take a snapshot of it when it is not",
            source.name,
            names,
        )
        return control
    log.info("source %s: table %s was emptied or renamed during its snapshot, and is read again", source.name, names)
    left_out = tuple(sorted({*control.left_out, *again, *every}))  # I7
    # Without parts: the names of many tables may not fit into the record, once more than when it began.
    return replace(control, again=tuple(again), left_out=left_out, read_until=read_until, parts=(), emptied={})


def after_reading(control: SnapshotControl, now: float, margin: float) -> int:
    """Return what the next snapshot begins later than: its end deletes the rows that were read, by any clock."""
    return int(max(now, min(control.read_until, now + margin)) - margin)  # I7

"""Tables that are emptied or renamed while a snapshot reads them, and so have to be read again.

A row that was read before a TRUNCATE may be published after it. Where a copy had no such row, no tombstone says that it
is gone (I7). The rows that a RENAME takes away or brings are in no change at all.

The checkpoint of a shard says which tables it has emptied of late, in the transaction of the change that does it. What
was not there when the snapshot began has happened since.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from relay.change import ChangeParts, Operation
from relay.engine.snapshot_records import fields_of, is_partial, is_running
from relay.lineage import Checkpoint
from relay.source import Page

log = logging.getLogger(__name__)

MOST_REPETITIONS = 10
"""Snapshots in a row of tables that are emptied again and again; after that, copies may keep rows of them."""

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


def forget_before(control: Checkpoint | None, now: float) -> float:
    """Return the time, in seconds, before which nobody asks what was emptied. ``control``: of the newest snapshot."""
    if control is None or not is_running(control):
        return now - _KEPT
    return min(fields_of(control)["as_of"] or control.updated_at, now) - _KEPT


def emptied(published: Mapping[str, Checkpoint]) -> dict[str, Mapping[str, float]]:
    """Return, by shard, when each table was last emptied, for the control record of a snapshot that begins."""
    return {shard: dict(each.emptied) for shard, each in published.items() if each.emptied}


def is_published_to(time: float, shard: Checkpoint) -> bool:
    """Whether all that a shard committed before ``time``, in seconds, is published.

    Under load it may never be at its head. Then the time of its last transaction says it, which began that late.
    """
    token = shard.token.timestamp if shard.token is not None else 0
    return shard.state.ended or max(shard.reached or 0.0, token) >= time


def emptied_since(control: Checkpoint, published: Mapping[str, Checkpoint]) -> list[str]:
    """Return the tables of a snapshot that were emptied since it began."""
    fields = fields_of(control)
    before = fields.get("emptied", {})
    found = {
        table
        for shard, at in emptied(published).items()
        for table, when in at.items()
        if before.get(shard, {}).get(table) != when
    }
    return sorted(found & set(fields["tables"]) if is_partial(control) else found)


def ended(
    source: str, control: Checkpoint, published: Mapping[str, Checkpoint], *, read_until: float
) -> Mapping[str, Any]:
    """Return what the control record says of a snapshot that has been read.

    ``published``: the committed checkpoints of the stream, with all that was committed before its last row was read.
    ``read_until``: seconds, when that was, by the clock of the worker that read it.
    """
    fields = fields_of(control)
    if not (again := emptied_since(control, published)):
        return fields
    names = ", ".join(again)
    if fields.get("repetitions", 0) >= MOST_REPETITIONS:
        log.warning(
            "source %s: table %s is emptied or renamed more often than it can be read: copies may keep rows of it. "
            "Take a snapshot of it when it is not",
            source,
            names,
        )
        return fields
    log.info("source %s: table %s was emptied or renamed during its snapshot, and is read again", source, names)
    left_out = sorted({*fields.get("left_out", ()), *again})  # I7
    return {**fields, "again": again, "left_out": left_out, "read_until": read_until}

"""The rule that a table which was emptied or renamed while it was read is read again.

A row that was read before a TRUNCATE may be published after it, when no tombstone says that it is gone (I7). And rows
that arrive by a RENAME are in no change at all. A shard's checkpoint lists the tables that were recently emptied: one
that was not listed when the snapshot began has been emptied since then.
"""

from collections.abc import Mapping

from relay.change import ChangeParts, Operation
from relay.records import ShardCheckpoint, ShardState, SnapshotControl
from relay.source import Page

MOST_REPETITIONS = 10
"""The most repetitions in a row, because other snapshots wait (I10). After that, copies may keep rows of the table."""

EVERY = ""  # stands for all tables if more were emptied than a checkpoint can list
_MOST_NAMED = 500  # tables of one shard, so that its checkpoint does not grow too large
_KEPT = 600.0  # seconds: more than workers' clocks differ, and longer than a view lags
EMPTYING = ("TRUNCATE", "DROP", "DROP DATABASE")
"""The kinds of statements after which a table has no rows, unless they are renamed."""


def emptied_by(page: Page) -> set[str]:
    """Return the tables that a change or statement in ``page`` empties, renames, or replaces under their name."""
    found: set[str] = set()
    # A block contains only rows.
    for part in page.changes.parts if isinstance(page.changes, ChangeParts) else (page.changes,):
        if isinstance(part, (list, tuple)):
            found.update(change.table for change in part if change.operation is Operation.TRUNCATE)
    for statement in page.schema_changes:
        for table in statement.tables:
            if table.renamed_to is not None:
                found |= {table.table, table.renamed_to}
            elif statement.kind in (*EMPTYING, "RENAME"):
                found.add(table.table)
    return found


def forget_before(control: SnapshotControl | None, now: float) -> float:
    """Return the time, in seconds, before which emptied tables are irrelevant. ``control``: the newest snapshot's."""
    if control is None or control.state is ShardState.FINISHED:
        return now - _KEPT
    return min(control.begun.as_of or control.updated_at, now) - _KEPT


def noted(before: Mapping[str, float], page: Page, now: float, oldest: float) -> Mapping[str, float]:
    """Return when tables were last emptied, in seconds: ``before``, and in ``page``. Drops times before ``oldest``."""
    if found := emptied_by(page):
        at = max(now, max(before.values(), default=0.0) + 0.001)
        if len(before.keys() | found) > _MOST_NAMED:  # I11
            return {EVERY: at}
        before = {**before, **dict.fromkeys(found, at)}
    return {table: at for table, at in before.items() if at >= oldest}  # I11


def emptied(published: Mapping[str, ShardCheckpoint]) -> dict[str, float]:
    """Return, by shard, when a table was last emptied, for the control record of a new snapshot."""
    return {shard: max(each.emptied.values()) for shard, each in published.items() if each.emptied}


def is_published_to(time: float, shard: ShardCheckpoint) -> bool:
    """Whether all that a shard committed before ``time``, in seconds, is published: by its head, or under load by its
    last transaction, which began at its time."""
    token = shard.token.timestamp if shard.token is not None else 0
    return shard.state.ended or max(shard.reached or 0.0, token) >= time


def emptied_since(control: SnapshotControl, published: Mapping[str, ShardCheckpoint]) -> list[str]:
    """Return the tables of a snapshot that were emptied since it began; if it reads all tables, possibly `EVERY`."""
    found = {
        table
        for shard, each in published.items()
        for table, when in each.emptied.items()
        if when > control.begun.emptied.get(shard, 0.0)
    }
    if control.tables is None:
        return sorted(found)
    return sorted(control.tables if EVERY in found else found & set(control.tables))

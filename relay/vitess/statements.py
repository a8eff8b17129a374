"""What a logged statement does to rows: which tables it empties, and which rows it removes without naming them (I1)."""

from __future__ import annotations

import logging
from dataclasses import replace

from relay.errors import RelayError
from relay.mysql_dialect.statement_text import shown
from relay.mysql_dialect.statements import UNSEEN_ROWS, Classified, Kind, Name
from relay.mysql_dialect.tables import Table
from relay.vitess.settings import INTERNAL, VStreamSettings
from relay.vitess.shard import VitessShard
from relay.vitess.tables import Tables

log = logging.getLogger(__name__)


def partly_emptied(parsed: Classified, tables: Tables) -> str | None:
    """Return the table, in words of a message, whose rows a statement changes without listing them; None usually."""
    if parsed.kind is not Kind.CHANGE:
        return None
    unread = "tables whose names cannot be read" if parsed.calls else None  # I1
    return next((name for _, name in parsed.names if tables.known(name) is not None), unread)


def refusal(shard: VitessShard, table: str, statement: str, at: str) -> RelayError:
    """Return the error for a statement that `partly_emptied` gives ``table`` for. ``at``: its position."""
    return RelayError(
        f"shard {shard.qualified}: the statement at {at} adds, removes or replaces rows of {table}, and the binlog "
        f"does not list them: {shown(statement)!r}. Reset the source to copy its tables again. If those rows may stay "
        "where they were relayed to, reset it to a position after this one"
    )


def emptied_tables(
    parsed: Classified, tables: Tables, shard: VitessShard, settings: VStreamSettings, statement: str, at: str
) -> list[Table]:
    """Return the layouts of the tables that a statement empties. Warns of renames, and of a table without layout.

    Without its layout nothing about a table can be published. ``at``: the position of the statement.
    """
    place = shard.qualified
    for (_, old), (_, new) in parsed.renamed:
        if settings.is_wanted(old) and not new.startswith(INTERNAL):
            log.warning("%s: table %s is renamed to %s: what was published of it keeps the old name", place, old, new)
        if settings.is_wanted(new) and not old.startswith(INTERNAL):
            log.warning(UNSEEN_ROWS, place, new, old)
    found = []
    for _, name in emptied(parsed):
        if (table := tables.last(name)) is not None:
            found.append(table)
        elif settings.is_wanted(name) and not parsed.replaces:
            log.warning(
                "%s: rows of %s may remain where they were relayed to: the table was dropped before the relay started, "
                "so it cannot publish %r at %s. If the table was ever relayed, delete its rows there",
                place,
                name,
                shown(statement),
                at,
            )
    return found


def emptied(parsed: Classified) -> tuple[Name, ...]:
    """Return the tables that have no rows after a statement, or only rows that the statement itself inserts."""
    if parsed.emptied or parsed.temporary:
        return parsed.emptied
    # Vitess drops a table by renaming it to a table of its garbage collector. If another table takes the old name in
    # the same statement, that is the cut-over of an online DDL, which keeps the rows.
    taken = {name for _, (_, name) in parsed.renamed}
    return tuple(old for old, (_, new) in parsed.renamed if new.startswith(INTERNAL) and old[1] not in taken)


def refilled(shard: VitessShard, transaction: str, table: str) -> RelayError:
    """Return the error for a transaction that empties a table and fills it: a position inside it cannot count rows."""
    return RelayError(
        f"shard {shard.qualified}: {transaction} replaces the table {table} and fills it in one transaction, which "
        "cannot be relayed: reset the source to a position after it, or leave the table out of `tables`"
    )


def here(parsed: Classified) -> Classified:
    """Return a statement with names without a database: a stream has statements of its own database only."""
    return replace(
        parsed,
        tables=tuple(("", name) for _, name in parsed.tables),
        renamed=tuple((("", old), ("", new)) for (_, old), (_, new) in parsed.renamed),
        indexed=None if parsed.indexed is None else ("", parsed.indexed[1]),
    )

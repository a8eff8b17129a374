"""What a logged statement does to rows: which tables it empties, and which rows it removes without naming them (I1)."""

import logging
from dataclasses import replace

from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.mysql_dialect.statement_text import shown
from relay.mysql_dialect.statements import Classified, Kind
from relay.mysql_dialect.tables import Table
from relay.vitess.settings import VStreamSettings
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
    parsed: Classified,
    tables: Tables,
    shard: VitessShard,
    settings: VStreamSettings,
    statement: str,
    at: str,
    executed: GtidSet,
    remade: dict[str, str],
) -> list[Table]:
    """Return the layouts of the tables that a statement empties. Warns of a table without layout.

    Without its layout nothing about a table can be published. ``at``: the position of the statement. ``executed``:
    before it. ``remade``: as in ``VStreamPosition``, gets the moved tables that it removes. Raises ``Unavailable``.
    """
    place = shard.qualified
    found = []
    is_removed = parsed.kind is not Kind.TRUNCATE and not parsed.replaces
    for _, name in parsed.emptied:
        table = tables.last(name)
        if table is None and not settings.shows(name):
            continue
        keyspace = tables.moved_to(shard, name, executed, remade.get(name, "")) if is_removed else None
        if is_removed and (keyspace is not None or name in remade):
            remade[name] = ""
        if keyspace is not None:  # I1
            log.warning(
                "%s: %r at %s removes table %s, which was moved to keyspace %s: its rows stay where they were relayed "
                "to. For their later changes, relay that keyspace as a source",
                place,
                shown(statement),
                at,
                name,
                keyspace,
            )
        elif table is not None:
            found.append(table)
        elif not parsed.replaces:
            log.warning(
                "%s: rows of %s may remain where they were relayed to: the table was dropped before the relay started, "
                "so it cannot publish %r at %s. If the table was ever relayed, delete its rows there",
                place,
                name,
                shown(statement),
                at,
            )
    return found


def note_remade(
    parsed: Classified,
    tables: Tables,
    shard: VitessShard,
    settings: VStreamSettings,
    executed: GtidSet,
    remade: dict[str, str],
) -> None:
    """Note the tables that a statement makes where others were moved to another keyspace. Raises ``Unavailable``.

    ``executed``: when it is executed. ``remade``: as in ``VStreamPosition``.
    """
    old = [name for name, _ in parsed.renamed]
    made = () if parsed.temporary or parsed.kind is not Kind.CREATE else parsed.tables
    for _, name in (*made, *(new for _, new in parsed.renamed if new not in old)):
        is_absent = remade.get(name) == ""
        if not is_absent and (parsed.if_absent or (tables.last(name) is None and not settings.shows(name))):
            continue
        if is_absent or tables.moved_to(shard, name, executed, remade.get(name, "")) is not None:
            remade[name] = executed.position


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

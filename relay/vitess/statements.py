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


class StatementEffects:
    """The effects of DDL on the tables of one shard that are relayed."""

    def __init__(self, shard: VitessShard, settings: VStreamSettings, tables: Tables) -> None:
        self.shard = shard
        self._settings = settings
        self._tables = tables

    def partly_emptied(self, parsed: Classified) -> str | None:
        """Return a table that loses or gains rows by this statement, which does not say which; None usually."""
        if parsed.kind is not Kind.CHANGE:
            return None
        return next((name for _, name in parsed.names if self._tables.known(name) is not None), None)

    def refusal(self, table: str, statement: str, at: str) -> RelayError:
        """Return the error for a statement that `partly_emptied` gives ``table`` for. ``at``: its position."""
        return RelayError(
            f"shard {self.shard.qualified}: the statement at {at} adds, removes or replaces rows of {table}, and the "
            f"binlog does not list them: {shown(statement)!r}. Reset the source to copy its tables again. If those "
            "rows may stay where they were relayed to, reset it to a position after this one"
        )

    def emptied(self, parsed: Classified, statement: str, at: str) -> list[Table]:
        """Return the layouts of the tables that a statement empties. Warns of renames, and of a table without layout.

        Without its layout nothing about a table can be published. ``at``: the position of the statement.
        """
        for (_, old), (_, new) in parsed.renamed:
            if self._settings.is_wanted(old) and not new.startswith(INTERNAL):
                log.warning(
                    "%s: table %s is renamed to %s: what was published of it keeps the old name",
                    self.shard.qualified,
                    old,
                    new,
                )
            if self._settings.is_wanted(new) and not old.startswith(INTERNAL):
                log.warning(UNSEEN_ROWS, self.shard.qualified, new, old)
        found = []
        for _, name in emptied(parsed):
            if (table := self._tables.last(name)) is not None:
                found.append(table)
            elif self._settings.is_wanted(name) and not parsed.replaces:
                log.warning(
                    "%s: rows of %s may remain where they were relayed to: the table was dropped before the relay "
                    "started, so it cannot publish %r at %s. If the table was ever relayed, delete its rows there",
                    self.shard.qualified,
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

"""What a logged statement does to rows: which tables it empties, and whether it changes unlisted rows (I1)."""

import logging
from dataclasses import replace

from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.mysql_dialect.statement_text import shown
from relay.mysql_dialect.statements import Kind, classify
from relay.mysql_dialect.tables import Table
from relay.vitess.position import VitessShard
from relay.vitess.settings import VStreamSettings
from relay.vitess.tables import Tables

log = logging.getLogger(__name__)


class LoggedStatement:
    """A statement in a shard's stream. ``at``: the statement's position. ``executed``: the executed set before it.

    ``parsed``: its names have no database, as a stream has only statements of its own. ``remade``: see
    ``VStreamPosition``.
    """

    def __init__(
        self, shard: VitessShard, tables: Tables, settings: VStreamSettings, sql: str, at: str, executed: GtidSet
    ) -> None:
        self.sql = sql
        parsed = classify(sql, "")
        self.parsed = replace(
            parsed,
            tables=tuple(("", name) for _, name in parsed.tables),
            renamed=tuple((("", old), ("", new)) for (_, old), (_, new) in parsed.renamed),
            indexed=None if parsed.indexed is None else ("", parsed.indexed[1]),
        )
        self._shard = shard
        self._tables = tables
        self._settings = settings
        self._at = at
        self._named = f"{shard.qualified}: {shown(sql)!r} at {at}"
        self._executed = executed
        # By moved table that the statement removes, the keyspace that has the table now. `emptied` fills it.
        self.moved: dict[str, str] = {}

    def refusal(self) -> RelayError | None:
        """Return an error if the statement changes rows of a table without listing them, and None otherwise."""
        parsed = self.parsed
        if parsed.kind is not Kind.CHANGE:
            return None
        unread = "tables whose names cannot be read" if parsed.calls else None  # I1
        table = next((name for _, name in parsed.names if name in self._tables.known), unread)
        if table is None:
            return None
        return RelayError(
            f"shard {self._shard.qualified}: the statement at {self._at} adds, removes or replaces rows of {table}, "
            f"and the binlog does not list them: {shown(self.sql)!r}. Reset the source to copy its tables again. If "
            "copies need not show the change, reset the source to a position after the statement"
        )

    def emptied(self, remade: dict[str, str]) -> list[Table]:
        """Return the layouts of the tables that the statement empties.

        Nothing can be published about a table without a layout, so a warning names it. ``remade``: gets the moved
        tables that the statement removes. Raises ``Unavailable``.
        """
        found = []
        is_removed = self.parsed.kind is not Kind.TRUNCATE and not self.parsed.replaces
        for _, name in self.parsed.emptied:
            table = self._tables.last(name)
            if table is None and not self._settings.shows(name):
                continue
            keyspace = self._moved_to(name, remade) if is_removed else None
            if is_removed and (keyspace is not None or name in remade):
                remade[name] = ""
            if keyspace is not None:  # I1
                self.moved[name] = keyspace
            elif table is not None:
                found.append(table)
            elif not self.parsed.replaces:
                log.warning(
                    "%s: table %s was dropped before the relay started, so the relay cannot publish %r at %s. If the "
                    "table was ever relayed, delete its rows from its copies",
                    self._shard.qualified,
                    name,
                    shown(self.sql),
                    self._at,
                )
        return found

    def warn_of_moved(self) -> None:
        for name, keyspace in self.moved.items():
            log.warning(
                "%s removes table %s, which was moved to keyspace %s: copies keep its rows. To relay their later "
                "changes, add that keyspace as a source",
                self._named,
                name,
                keyspace,
            )

    def note_remade(self, remade: dict[str, str]) -> None:
        """Note each table that the statement creates under the name of a moved table. Raises ``Unavailable``."""
        parsed = self.parsed
        old = [name for name, _ in parsed.renamed]
        made = () if parsed.temporary or parsed.kind is not Kind.CREATE else parsed.tables
        for _, name in (*made, *(new for _, new in parsed.renamed if new not in old)):
            if name in self._settings.portion.without:  # I1
                log.warning(
                    "%s creates table %s, but another table of that name was moved to another keyspace. Rows of the "
                    "new table are not relayed, unless MoveTables brings the moved table back. Rename the new table, "
                    "or run `relay reset CONFIG %s --to ...` to relay it instead of the moved table",
                    self._named,
                    name,
                    self._shard.source,
                )
                continue
            is_absent = remade.get(name) == ""
            is_hidden = self._tables.last(name) is None and not self._settings.shows(name)
            if not is_absent and (parsed.if_absent or is_hidden):
                continue
            if is_absent or self._moved_to(name, remade) is not None:
                remade[name] = self._executed.position

    def _moved_to(self, name: str, remade: dict[str, str]) -> str | None:
        return self._tables.moves.moved_to(name, self._executed, remade.get(name, ""))

"""Which tables of a database are relayed, the layout of their rows, and the statements about them.

Layouts come from the binlog. Those in ``information_schema`` serve plans, checks, and tables emptied before any row.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from relay.config import MySQLConfig
from relay.gtid import GtidSet
from relay.mysql.binlog.events import Statement
from relay.mysql.connection import ServerConnection
from relay.mysql.table_checks import check_versioned, warn_of_cascades
from relay.mysql_dialect.altered import Shape
from relay.mysql_dialect.catalog import NOT_TABLES, SEQUENCE, ask, text_by_default, unfit
from relay.mysql_dialect.followed_tables import AppliedStatement, FollowedTables, TablesNow
from relay.mysql_dialect.layout_cache import LayoutCache, SkippedTables
from relay.mysql_dialect.protection import check_first, check_followed
from relay.mysql_dialect.statements import Classified, Kind
from relay.mysql_dialect.tables import Table, lay_out_by, lay_out_keys
from relay.records import StreamId
from relay.table import Column, TableSchema

log = logging.getLogger(__name__)

_GENERATED = (
    "SELECT DISTINCT TABLE_NAME FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = %s AND EXTRA REGEXP 'VIRTUAL|STORED|PERSISTENT'"
)
REMOVED_UNSEEN = "nothing in the binlog has removed the table before it, as with `sql_log_bin = 0`"
_GONE = (
    "source %s: table %s is created at %s, but %s: the relay treats it as emptied here. Check that no other changes "
    "are missing"
)
# A TRUNCATE needs the layout of its table.
_NO_LAYOUT = (
    "source %s: cannot relay that table %s.%s was emptied at %s: no row of it was read before, and it no longer exists"
)


class Layouts:
    """The layouts of one source's tables. The same layout is the same object for all its readers. Thread-safe."""

    def __init__(self, config: MySQLConfig) -> None:
        self.source = config.name
        self.database = config.database
        self.stream = StreamId(config.name, config.database)
        self._config = config
        self._named = frozenset(config.tables or ())
        self.skipped = SkippedTables(config.name, config.database, config.tables)
        self._made = LayoutCache(self._lay_out, self.skipped, detailed=config.is_debezium)
        # The last layout of each table. The readers' threads replace single entries; others copy before they iterate.
        self._last: dict[str, Table] = {}
        # The same without the present ones from ``information_schema``, which may be older or newer than the next rows.
        self._followed: dict[str, Table] = {}
        # The tables whose rows are left out until they are altered. Replaced, never changed: any thread may read it.
        self.unfit: frozenset[str] = frozenset()
        # The key columns of tables relayed before, as in ``Opening.keys``, and how many of them are hashed.
        self._relayed: dict[str, tuple[Sequence[Sequence[str]], int | None]] = {}
        # Tables with a primary key when a reader last began. Replaced, never changed.
        self._keyed: frozenset[str] = frozenset()
        self._warned_of: set[tuple[str, str]] = set()  # the foreign keys already warned about, by their tables
        # Whether text columns without a character set are text, see ``relay.mysql_dialect.altered.Shape``. Set by
        # `describe`.
        self.text: bool | None = None

    def wanted(self, database: str, table: str) -> bool:
        """Whether a table is relayed; for "", whether any of the database is."""
        return database == self.database and (not table or self._is_named(table))

    def is_relayed(self, database: str, table: str) -> bool:
        """Whether it is wanted, and was not left out from the beginning."""
        is_left_out = table in self.skipped.reasons and table not in self._last and table not in self._relayed
        return self.wanted(database, table) and not is_left_out

    def _is_named(self, table: str) -> bool:
        return not self._named or table in self._named

    def followed(self) -> FollowedTables:
        rules, hides = self._config.rules, bool(self._config.protect)
        return FollowedTables(
            self.database, self._is_named, rules, lambda: self.text, hides_values=hides, rereads=self._rereads
        )

    def _rereads(self, table: str, columns: Sequence[Column] | None) -> bool:
        # I10: a snapshot reads a table as it is, so the server's last answer counts for an unknown one
        return self._config.on_alter == "resnapshot" and (columns is not None or table in self._keyed)

    def emptied(self, said: Classified) -> list[str]:
        """Return the relayed tables that a statement empties, even if it fills them again."""
        if said.kind is Kind.DROP_DATABASE:
            return self.known() if said.tables and said.tables[0][0] == self.database else []
        return [table for database, table in said.emptied if self.is_relayed(database, table)]

    def defined(self, said: Classified) -> bool:
        """Whether a statement defines, changes or empties a wanted table."""
        if said.kind is Kind.DROP_DATABASE:
            return said.tables[:1] == ((self.database, ""),)
        return any(self.wanted(database, table) for database, table in said.about)

    def altered(self, said: Classified) -> list[str]:
        """Return the wanted tables that a statement creates, alters or renames."""
        if said.kind not in (Kind.ALTER, Kind.CHANGE, Kind.CREATE, Kind.RENAME):
            return []
        return [table for database, table in said.about if table and self.wanted(database, table)]

    def __call__(self, database: str, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table | None:
        """Return a table's layout; None if unwanted or left out. Raises ``RelayError`` if it cannot be left out."""
        if not self.wanted(database, table) or tuple(column.name for column in columns) == SEQUENCE:
            return None
        made = self._made(table, columns, primary)
        if made is not None and table not in self.unfit:
            before = self._followed.get(table)
            if before is not None and before is not made:
                check_followed(before.schema, made.schema)
            elif before is None and (there := self._last.get(table)) is not None:
                check_first(there.schema, self._config.rules(table), made.schema)
            self._followed[table] = self._last[table] = made
        return made

    def spares(self, database: str, table: str, why: str) -> bool:
        is_new = database == self.database and table not in self._last and table not in self._relayed
        return is_new and self.skipped.skip(table, why)

    def remember(self, keys: Mapping[str, Sequence[Sequence[str]]], hashed: Mapping[str, int]) -> None:
        """Remember tables relayed before: some may have been dropped since. See ``Opening``."""
        self._relayed = {name: (columns, hashed.get(name)) for name, columns in keys.items()}
        self.skipped.keep(keys)
        self.unfit = self.unfit.difference(keys)

    def has_other_key(self, table: Table) -> bool:
        """Whether changes of a table were relayed with another key: the plan then refuses a page with its rows."""
        key, size = [(column.name, column.type, column.sql) for column in table.schema.key], table.schema.hash_columns
        before, hashed = self._relayed.setdefault(table.name, (key, size))
        return [name for name, *_ in before] != [name for name, *_ in key] or hashed not in (None, size)

    def last(self, table: str) -> Table | None:
        """Return the last layout of a table, only its key if it was dropped, or None if unknown."""
        found = self._last.get(table)
        if found is None and table in self._relayed:
            found = self._last[table] = lay_out_keys(self.source, table, *self._relayed[table])
        return found

    def seen(self) -> list[TableSchema]:
        return [table.schema for table in list(self._last.values())]

    def known(self) -> list[str]:
        relayed = list(self._relayed)  # I12: the threads of other shards add to it
        return [*self._last, *(name for name in relayed if name not in self._last and self._is_named(name))]

    def now(self, server: ServerConnection) -> TablesNow:
        """Return the wanted tables as the server has them. Raises ``Unavailable``."""
        found = ask(server.execute, self.database, self._named or None).items()
        generated = {table for (table,) in server.execute(_GENERATED, (self.database,))}
        shapes = {
            name: Shape(tuple(each.columns), tuple(each.primary), types={} if name in generated else each.types)
            for name, each in found
            if not each.problem
        }
        self._keyed = frozenset(name for name, shape in shapes.items() if shape.primary)
        executed = server.executed()
        return TablesNow(shapes, executed, server.now())  # I8: not by the clock of a server that lags

    def describe(self, server: ServerConnection) -> list[TableSchema]:
        """Return the wanted tables that exist. Raises ``Unavailable``, or `Unfit` for tables in the config."""
        found = ask(server.execute, self.database, self._named or None)
        self.text = text_by_default(server.execute, self.database)
        self.check(server, {*found, *self._named})
        tables = self._made.of_tables({name: each for name, each in found.items() if name not in self.unfit})
        for name, table in tables.items():
            self._last.setdefault(name, table)  # a layout from the binlog fits the next rows
        return [table.schema for table in tables.values()]

    def check(self, server: ServerConnection, tables: Collection[str]) -> None:
        """Check the server's ``tables`` for problems that no layout shows. Raises ``Unavailable``, ``RelayError``."""
        warn_of_cascades(self.source, server, self.database, tables, self._warned_of)
        objects = unfit(server.execute, self.database, *(tables if len(tables) == 1 else ()))
        found = {
            name: why
            for name, why in objects.items()
            # A view that has taken over the name of a relayed table does not stop earlier changes.
            if name in tables and not (name in self._relayed and why in NOT_TABLES)
        }
        found |= check_versioned(self.source, server, self.database, tables, self._config.key_columns)
        self.skipped.skip_all(found)
        self.unfit = self.unfit.difference(tables).union(found)

    def _lay_out(self, table: str, columns: tuple[Column, ...], primary: tuple[str, ...]) -> Table | None:
        return lay_out_by(self._config, table, columns, primary, self._config.key_columns(table))


class LoggedStatements:
    """Follows the statements of a shard. ``published``: what those of the open transaction did, for their records.

    ``emptied``: the tables that it empties. ``gone``: those that it creates although nothing logged removed them.
    """

    def __init__(self, layouts: Layouts) -> None:
        self.source = layouts.source
        self.layouts = layouts
        self.followed = layouts.followed()
        self.begin()

    def begin(self) -> None:
        self.emptied: list[Table] = []
        self.gone: list[str] = []
        self.published: list[AppliedStatement] = []

    def read(self, event: Statement, said: Classified, executed: GtidSet, gtid: str) -> None:
        """Follow a statement of the transaction ``gtid``. ``said``: its effect. ``executed``: GTIDs before it."""
        self.followed.begin(said, executed, event.timestamp)
        self.gone += (gone := self.followed.gone_unseen(said))
        applied = self.followed.apply(said, event.sql, event.sql_mode, self.layouts.known())
        if not event.is_published:
            return
        if applied is not None:
            self.published.append(applied.noting_only(partial(self.layouts.is_relayed, self.layouts.database)))
        if said.temporary:
            return
        for name in gone:
            log.warning(_GONE, self.source, name, gtid, REMOVED_UNSEEN)
        for name in [*self.layouts.emptied(said), *gone]:  # I1
            if (table := self.layouts.last(name)) is not None:
                self.emptied.append(table)
            else:
                log.warning(_NO_LAYOUT, self.source, self.layouts.database, name, gtid)

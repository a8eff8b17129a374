"""A keyspace as a source: finds its shards and tables, plans where they start, and opens them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.config.tls import tls_context
from relay.errors import ConfigError, RelayError, Unavailable
from relay.gtid import parse
from relay.keyrange import KeyRange, shards_covering
from relay.mysql_dialect.catalog import Definition, ask, quoted, text_by_default
from relay.mysql_dialect.followed_tables import FollowedTables
from relay.mysql_dialect.layout_cache import LayoutCache, SkippedTables
from relay.mysql_dialect.protection import check_protected
from relay.mysql_dialect.sources import SqlSource, floor_of, left_out_by
from relay.mysql_dialect.tables import Table, Unfit, lay_out_by, lay_out_keys
from relay.process.slow_call import call_all
from relay.records import Shard, Start, StreamId
from relay.source import Opening, ShardReader
from relay.table import Column, TableSchema
from relay.types.columns import ColumnKind
from relay.vitess.client import NO_TABLE, SHARDS, Rejected, Vtgate
from relay.vitess.keyspace_snapshots import KeyspaceSnapshots, rounded
from relay.vitess.moved_tables import TableMoves, tables_moved
from relay.vitess.position import VitessShard
from relay.vitess.reader import VitessShardReader
from relay.vitess.settings import Portion, VStreamSettings, is_hidden
from relay.vitess.start_at_time import ShardHistory
from relay.vitess.tables import Tables
from relay.vitess.tablets import Tablets, collations, warn_of_cascades
from relay.vitess.vindex import UncomputableVindex, of_rows, require_computable
from relay.vitess.watch import Head

if TYPE_CHECKING:
    from relay.config import VitessConfig

log = logging.getLogger(__name__)

_UNKNOWN_TABLE = "VT05005"  # vtgate's error code for a table that its VSchema does not have
_HIDDEN = (
    "has a name like a table of an online schema change, and Vitess does not send changes of such a table: rename it, "
    "or remove it from `tables`"
)


class VitessSource(SqlSource):
    """Reads the shards of one keyspace. Call ``connect`` first."""

    config: VitessConfig
    noun = "keyspace"

    def __init__(self, config: VitessConfig) -> None:
        super().__init__(config)
        self._vtgate = Vtgate(config.vtgate, user=config.user, password=config.password, tls=tls_context(config.tls))
        # The layouts of the wanted tables when `connect` was last called. Each reader copies them.
        self._layouts: dict[str, Table] = {}
        # Readers' threads share the next seven. The dicts have no lock: an entry is added, or the dict replaced, in one
        # step, and a race costs one more question to vtgate.
        # By table, the columns of its primary vindex, and its type, or "" if keyspace ids cannot be computed.
        self._vindexes: dict[str, tuple[list[str], str]] = {}
        self._primary_keys: dict[str, Sequence[str]] = {}  # by table, in the key's own order
        self._seen: dict[str, Table] = {}  # by table, the first layout that was made of it, even after `connect`
        self._planned: dict[str, Table] = {}  # by table of the plan, its key
        self._moved: Set[str] = frozenset()  # tables ever moved away, as far as `connect` could find out
        # These two have locks of their own, which are not held while vtgate is asked.
        self.skipped = SkippedTables(config.name, config.keyspace, config.tables)
        self.layout = LayoutCache(self._lay_out, self.skipped, detailed=self.config.is_debezium)
        # Set by `connect`. Whether a text column without a character set is text, see `relay.mysql_dialect.altered`.
        self._text: bool | None = None
        self._shards: list[str] = []  # those that the key range covers, as the topology names them
        self._settings = VStreamSettings(
            config.keyspace,
            config.tables,
            tablet_type=config.tablet_type.upper(),
            cells=",".join(config.cells or ()),
            silence=config.silence,
            copied_rows_per_second=config.snapshot_rows_per_second,
        )
        self.snapshots = KeyspaceSnapshots(
            config, self.stream, self._vtgate, self._settings, self._find_tables, self._copied_tables, self.clock
        )

    def close(self) -> None:
        self._vtgate.close()

    def reload(self, entry: VitessConfig) -> None:
        if entry.model_dump() != self.config.model_dump():  # whatever tables were found
            raise ConfigError("this source's settings changed; restart the relay to apply them")

    def connect(self, label: str | None = None) -> StreamId:
        self._require_label(label)
        ((now,),) = (row.values() for row in self._vtgate.execute("select unix_timestamp()"))
        self.clock.note(float(str(now)), self.config.vtgate)
        names = [name.partition("/") for name in sorted(self._vtgate.listed(SHARDS))]
        shards = [shard for keyspace, _, shard in names if keyspace == self.config.keyspace]
        if not shards:
            existing = ", ".join(sorted({keyspace for keyspace, _, _ in names})) or "none"
            raise Unavailable(
                f"source {self.name}: vtgate {self.config.vtgate} has no keyspace {self.config.keyspace!r}: its "
                f"keyspaces are {existing}"
            )
        try:
            self._shards = shards_covering(KeyRange.parse(self.config.keyrange), shards)
        except ValueError as error:
            raise ConfigError(f"source {self.name}: keyspace {self.config.keyspace}: {error}") from error
        self._check_row_images()
        try:
            self._moved = tables_moved(self._vtgate, [self._tablets(shard).shard for shard in self._shards])
        except Unavailable as error:
            log.warning("source %s: %s. Until that works, no snapshot begins", self.name, error)
        self._read_tables(is_planned=label is not None)
        if label is None:  # later, the plan decides what is read, and a column may be gone
            check_protected(self.name, self.config.protect, self.tables())
        return self.stream

    def _check_row_images(self) -> None:
        """Raise ``Unavailable`` if a database does not log every column: the others would come as NULL (I1)."""
        calls = [self._tablets(shard).row_images for shard in self._shards]
        problems = [
            f"binlog_row_image of shard {shard} is {image}"
            for shard, found in zip(self._shards, call_all("row-images", calls), strict=True)
            for image in sorted(found - {"FULL"})
        ]
        if problems:
            raise Unavailable(
                f"source {self.name}: {'; '.join(problems)}: run `SET GLOBAL binlog_row_image = 'FULL'` on its "
                "databases, and restart its tablets, whose connections keep the old value"
            )

    def tables(self) -> Sequence[TableSchema]:
        return [table.schema for table in {**self._seen, **self._layouts}.values()]

    def is_wanted(self, table: str) -> bool:
        return self._settings.is_wanted(table)

    def shards(self) -> list[Shard]:
        return [Shard(name) for name in self._shards]

    def open(self, opening: Opening) -> ShardReader:
        self._plan(opening)
        parents = opening.parents.values()
        settings = replace(self._settings, portion=Portion.of(opening.start))
        return VitessShardReader(
            self._vtgate,
            self.stream,
            replace(opening, floor=floor_of(opening), start={**opening.start, "left_out": left_out_by(parents)}),
            self._known_tables(settings, opening.shard, opening.start),
            settings,
            clock=self.clock,
            heard=partial(self.clock.note, server=self.config.vtgate),
        )

    def _known_tables(self, settings: VStreamSettings, of: Shard, start: Start) -> Tables:
        shard = VitessShard.of(self.stream, of, self.config.keyspace)
        keyspace = shard.keyspace
        followed = FollowedTables(
            "",  # names in Vitess' statements are taken without their database
            settings.is_wanted,
            self.config.rules,
            lambda: self._text,
            hides_values=bool(self.config.protect),
            rereads=self._rereads,
        )
        return Tables(
            self._layouts_in(keyspace, start),
            self._layouts,
            {name: table for name, table in self._planned.items() if settings.is_wanted(name)},
            followed=followed,
            keyspace=keyspace,
            collations=partial(collations, self._vtgate, keyspace, self.config.tablet_type),
            moves=TableMoves(self._vtgate, shard, settings, start),
            skipped=self.skipped,
        )

    def _copied_tables(self, shard: str) -> Tables:
        return self._known_tables(self._settings, Shard(shard), {})

    def _rereads(self, table: str, columns: Sequence[Column] | None) -> bool:
        if self.config.on_alter != "resnapshot":
            return False
        if columns is None:  # vtgate sends no statements about the tables of an online change
            try:
                found = self.definitions().get(table)
            except RelayError:
                found = None
            if found is None or found.problem or not found.primary:  # I10
                return False
            columns = found.columns
        return not rounded(columns)  # I10

    def _lay_out(self, table: str, columns: tuple[Column, ...], primary: Sequence[str]) -> Table | None:
        """Return the layout and key of ``table``, or None if it is not wanted.

        Called by readers' threads. Raises `Unfit`, and ``Unavailable`` if vtgate does not answer about a new table.
        """
        key = self.config.key_columns(table)
        primary = self._in_order(table, primary)
        if not self.is_wanted(table):
            return None
        if is_hidden(table):  # I1
            raise Unfit.of(self.name, table, _HIDDEN)
        if self.config.tables is None and (key or primary):
            self._look_up_vindex(table)
        hash_key, vindex = self._vindexes.get(table, ([], ""))
        if key:
            self._check_sharding(table, key, hash_key)
            hash_key, vindex = [], ""
        types = {column.name: column.type for column in columns}
        if vindex and types.get(hash_key[0]) == ColumnKind.TIMESTAMP:
            self._warn_of_no_ids(table, f"The text of TIMESTAMP {hash_key[0]} depends on a session's time zone")
            vindex = ""
        compute = of_rows(vindex, [*types].index(hash_key[0])) if vindex and hash_key[0] in types else None
        return replace(self._relayed((table, columns, primary), key, hash_key), keyspace_id=compute)

    def _lay_out_moved(self, table: str, columns: tuple[Column, ...], primary: Sequence[str]) -> Table | None:
        """Return the layout of a table in another keyspace: it keeps the key that it had here (I2)."""
        if (planned := self._planned.get(table)) is None:
            return self._lay_out(table, columns, primary)
        key = [column.name for column in planned.schema.key]
        return self._relayed((table, columns, primary), key, key[: planned.schema.hash_columns])

    def _relayed(
        self, found_as: tuple[str, Sequence[Column], Sequence[str]], key: Sequence[str], hash_key: Sequence[str]
    ) -> Table:
        """Return the layout of a table with a key, or with a primary key and a ``hash_key``. Raises `Unfit`."""
        table, found = found_as[0], lay_out_by(self.config, *found_as, key, hash_key)
        self._seen.setdefault(table, found)
        self.skipped.take_back(table)
        self.skipped.keep((table,))
        return found

    def layouts(self, keyspace: str, opening: Opening) -> LayoutCache:
        """Return the layouts of the tables that the stream of a shard reads in ``keyspace``."""
        self._plan(opening)
        return self._layouts_in(keyspace, opening.start)

    def _plan(self, opening: Opening) -> None:
        self.skipped.keep(opening.keys)
        self._planned = {
            name: lay_out_keys(self.name, name, keys, opening.hashed.get(name)) for name, keys in opening.keys.items()
        }

    def _layouts_in(self, keyspace: str, start: Start) -> LayoutCache:
        # A reshard may take all tables to another keyspace: these keep their keyspace ids.
        is_moved = bool(Portion.of(start).only) or not start
        return self._moved_layouts() if keyspace != self.config.keyspace and is_moved else self.layout

    def _moved_layouts(self) -> LayoutCache:
        return LayoutCache(self._lay_out_moved, self.skipped, detailed=self.config.is_debezium)

    def _check_sharding(self, table: str, key: Sequence[str], vindex: Sequence[str]) -> None:
        """Warn of a ``key`` that rows in different shards may share. ``vindex``: the columns of the primary vindex."""
        lower = [column.lower() for column in key]
        if missing := [column for column in vindex if column and column.lower() not in lower]:
            log.warning(
                "source %s: if a row of %s moves to another shard, its changes are not ordered, and copies may lose "
                "the row: add %s to the `key` of the table",
                self.name,
                table,
                ", ".join(missing),
            )

    def _in_order(self, table: str, primary: Sequence[str]) -> Sequence[str]:
        """Return a primary key in its own order, which the stream does not contain. Raises ``Unavailable``."""
        if len(primary) < 2:
            return primary
        known = self._primary_keys.get(table, [])
        if set(known) != set(primary):
            found = {name: each.primary for name, each in self.definitions().items()}
            # Another thread may replace the dict with an older answer, so the key is taken from this one.
            self._primary_keys, known = found, found.get(table, [])
        return known if set(known) == set(primary) else primary

    def _tablets(self, shard: str) -> Tablets:
        """Return the tablets of a shard. ``shard``: the shard's name in the topology."""
        names = VitessShard.of(self.stream, Shard(shard), self.config.keyspace)
        return Tablets(self._vtgate, names, self._settings.tablet_type, self._settings.cells)

    def _head(self, shard: str) -> str:
        tablets = self._tablets(shard)
        with closing(Head(tablets, next(iter(self._layouts), NO_TABLE), clock=self.clock)) as asked:
            asked.ask()
            found = asked.poll(self._settings.silence)
        if found is None:
            reason = asked.failed or tablets.explain_silence()
            raise Unavailable(f"source {self.name}: the current position of shard {shard} is not available: {reason}")
        return found[1].position

    def _since(self, shard: str, since: float) -> str:
        history = ShardHistory(self._tablets(shard), silence=self._settings.silence)
        try:
            return history.position_at(since, parse(self._head(shard)))
        except Unavailable as error:
            raise Unavailable(f"source {self.name}: {error}") from error

    def _look_up_vindex(self, table: str) -> None:
        """Look up the primary vindex of ``table``, which determines the shard of a row. Raises ``Unavailable``."""
        if table in self._vindexes:
            return
        found: Sequence[Mapping[str, Any]] = ()
        try:
            found = self._vtgate.execute(f"show vschema vindexes on {quoted(table)}", target=self.config.keyspace)
        except Rejected as error:
            if _UNKNOWN_TABLE not in str(error):
                # I2: without the vindex of the table, its rows would go to other partitions.
                raise Unavailable(f"source {self.name}: cannot look up the vindex of {table}: {error}") from error
        columns = str(found[0]["Columns"]).replace("`", "").split(",") if found else []
        kind = str(found[0]["Type"]) if found else ""
        try:
            if found:
                require_computable(kind)
        except UncomputableVindex as error:
            self._warn_of_no_ids(table, f"The primary vindex of the table is {found[0]['Name']}: {error}")
            kind = ""
        self._vindexes[table] = [column.strip() for column in columns], kind

    def _warn_of_no_ids(self, table: str, why: str) -> None:
        changes = f"source {self.name}: the changes of {table} have no keyspace ids"
        log.warning("%s, so no reader can ask for changes of a key range. %s", changes, why)

    def _read_tables(self, *, is_planned: bool) -> None:
        found = self.definitions()
        self._text = text_by_default(self._rows_of, self.config.keyspace)
        for name in self.config.named_tables:
            if name not in found and not (is_planned and name in self._moved):  # it may have moved
                log.warning("source %s: keyspace %s has no table %s", self.name, self.config.keyspace, name)
        self._primary_keys = {name: each.primary for name, each in found.items()}
        warn_of_cascades(self.name, self._tablets(self._shards[0]), found)
        for name in self.config.tables or ():
            self._look_up_vindex(name)
        try:
            self._layouts = self.layout.of_tables(found)
        except Unfit as error:
            raise ConfigError(str(error)) from None

    def _find_tables(self, elsewhere: Mapping[str, str]) -> Mapping[str, Table]:
        """Return the layouts of the wanted tables. ``elsewhere``: keyspaces of moved ones. Raises ``Unavailable``."""
        found = self.layout.of_tables(self.definitions())
        for keyspace in {*elsewhere.values()}:
            names = [name for name, space in elsewhere.items() if space == keyspace and self.is_wanted(name)]
            definitions = ask(partial(self._rows_of, keyspace=keyspace), keyspace, names)
            found |= self._moved_layouts().of_tables(definitions)
        return found

    def definitions(self, keyspace: str = "") -> Mapping[str, Definition]:
        """Return the wanted tables in ``keyspace``, or the source's own, as they are now. Raises ``Unavailable``."""
        return ask(partial(self._rows_of, keyspace=keyspace), keyspace or self.config.keyspace, self.config.tables)

    def rows(self, shard: VitessShard, sql: str) -> Iterator[list[bytes | None]]:
        """Run a statement on the primary of a shard, and yield the values of its rows. Raises ``Unavailable``."""
        try:
            yield from self._vtgate.rows(sql, f"{shard.keyspace}:{shard.name}@primary")
        except Unavailable as error:
            raise Unavailable(f"source {self.name}: the rows of shard {shard.name} cannot be read: {error}") from error

    def _rows_of(self, sql: str, keyspace: str = "") -> list[list[object]]:
        """Run a statement in ``keyspace``, or the source's own, and return its rows."""
        target = f"{keyspace or self.config.keyspace}@{self.config.tablet_type}"
        return [list(row.values()) for row in self._vtgate.execute(sql, target=target)]

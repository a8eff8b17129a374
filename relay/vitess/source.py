"""A keyspace as a source: finds its shards and tables, plans where they start, and opens them.

The topology gives the shards to start with. Those that follow them in reshards come from journals
(``relay.stream.journals``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.config.fields import StartAtGtids
from relay.config.tls import tls_context
from relay.errors import ConfigError, RelayError, Unavailable
from relay.gtid import parse
from relay.keyrange import KeyRange, shards_covering
from relay.mysql_dialect.definitions import Definition, ask, text_by_default
from relay.mysql_dialect.followed_tables import FollowedTables
from relay.mysql_dialect.layouts import LayoutCache, SkippedTables
from relay.mysql_dialect.protection import check_protected
from relay.mysql_dialect.sources import SqlSource, floor_of, left_out_by
from relay.mysql_dialect.tables import Table, Unfit, lay_out, lay_out_keys, missing_tables, require_topic
from relay.process.slow_call import call_all
from relay.records import Shard, StreamId
from relay.source import Opening, ShardReader, StartingPoints
from relay.table import Column, TableSchema
from relay.vitess.cascades import warn_of_cascades
from relay.vitess.client import Vtgate
from relay.vitess.head import Head
from relay.vitess.keyspace_snapshots import KeyspaceSnapshots, rounded
from relay.vitess.moved_tables import moved_to
from relay.vitess.reader import VitessShardReader
from relay.vitess.settings import INTERNAL, VStreamSettings, is_hidden
from relay.vitess.shard import VitessShard
from relay.vitess.start_at_time import ShardHistory
from relay.vitess.tables import Tables
from relay.vitess.tablets import Tablets, collations
from relay.vitess.vindex import of_rows

if TYPE_CHECKING:
    from relay.config import VitessConfig

log = logging.getLogger(__name__)

_UNKNOWN_TABLE = "VT05005"
"""The code of vtgate's error for a table that its vschema does not have."""

_HIDDEN = (
    "is called as Vitess calls tables of an online schema change, whose changes it does not send: rename it, or remove "
    "it from `tables`"
)


class VitessSource(SqlSource):
    """Reads the shards of one keyspace. Call ``connect`` first."""

    config: VitessConfig

    def __init__(self, config: VitessConfig) -> None:
        super().__init__(config)
        self._vtgate = connect(config)
        # The layouts of the wanted tables when `connect` was called. Replaced by `connect`, and not shared: each reader
        # copies it.
        self._layouts: dict[str, Table] = {}
        # Readers' threads share the next five. The dicts have no lock: an entry is added, or the dict replaced, in one
        # step, and a race costs one more question to vtgate.
        # By table, the columns and the type of its primary vindex.
        self._vindexes: dict[str, tuple[list[str], str]] = {}
        # By table, its primary key in the key's own order.
        self._primary_keys: dict[str, list[str]] = {}
        # By table, its first layout that was made, also since `connect`.
        self._seen: dict[str, Table] = {}
        # These two have locks of their own, which are not held while vtgate is asked.
        self.skipped = SkippedTables(config.name, config.keyspace, config.tables)
        self.layout = LayoutCache(self._lay_out, self.skipped)
        # Whether a text column without a character set is text, see ``relay.mysql_dialect.altered.Shape``. Set by
        # `connect`.
        self._text: bool | None = None
        # The shards that the key range covers, as the topology names them.
        self._shards: list[str] = []
        self._settings = VStreamSettings(
            config.keyspace,
            config.tables,
            tablet_type=config.tablet_type.upper(),
            cells=",".join(config.cells or ()),
            silence=config.silence,
            copied_rows_per_second=config.snapshot_rows_per_second,
        )
        self.snapshots = KeyspaceSnapshots(
            config, self.stream, self._vtgate, self._settings, self._find_tables, self._known_tables, self.clock
        )

    def close(self) -> None:
        self._vtgate.close()

    def reload(self, entry: VitessConfig) -> None:
        if entry != self.config:
            raise ConfigError("this source's settings changed; restart the relay to apply them")

    def connect(self, label: str | None = None) -> StreamId:
        if label not in (None, self.config.keyspace):
            raise ConfigError(
                f"source {self.name}: its checkpoints are for keyspace {label}, not {self.config.keyspace}: give the "
                "source of the new keyspace a new name"
            )
        ((now,),) = (row.values() for row in self._vtgate.execute("select unix_timestamp()"))
        self.clock.note(float(str(now)), self.config.vtgate)
        found = self._vtgate.execute("show vitess_shards")
        names = [str(next(iter(row.values()))).partition("/") for row in found]
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
        self._read_tables()
        if label is None:  # later the plan decides what is read, and a column may be gone
            check_protected(self.name, self.config.protect, self.tables())
        return self.stream

    def _check_row_images(self) -> None:
        """Raise ``Unavailable`` if a database does not log every column: what is missing would come as NULL (I1)."""
        calls = [self._tablets(shard).row_images for shard in self._shards]
        images = dict(zip(self._shards, call_all("row-images", calls), strict=True))
        problems = [
            f"binlog_row_image of shard {shard} is {image}"
            for shard, found in images.items()
            for image in sorted(found - {"FULL"})
        ]
        if problems:
            raise Unavailable(
                f"source {self.name}: {'; '.join(problems)}: run `SET GLOBAL binlog_row_image = 'FULL'` on its "
                "databases, and restart its tablets, whose connections keep the old value"
            )

    def tables(self) -> Sequence[TableSchema]:
        return [table.schema for table in {**self._seen, **self._layouts}.values()]

    @property
    def left_out(self) -> Mapping[str, str]:
        return self.skipped.reasons

    def is_wanted(self, table: str) -> bool:
        return self._settings.is_wanted(table)

    def shards(self) -> list[Shard]:
        return [Shard(name) for name in self._shards]

    def starting_points(self, shards: Sequence[Shard]) -> StartingPoints:
        if missing := missing_tables(self.config.named_tables, self.tables()):
            # Only here: a table that was relayed before may have been dropped since, which is relayed, too (I1).
            raise Unavailable(
                f"source {self.name}: keyspace {self.config.keyspace} has no table {', '.join(missing)}: its tables "
                f"are {', '.join(self._layouts) or 'none'}"
            )
        names, now = [shard.name for shard in shards], self.clock()
        start = self.config.start
        if isinstance(start, StartAtGtids):
            if set(start.positions) != set(names):
                raise ConfigError(
                    f"source {self.name}: `start` names the shards {', '.join(sorted(start.positions))}, but key range "
                    f"{self.config.keyrange} has {', '.join(names)}: name each of these"
                )
            return StartingPoints({name: {"gtid": start.positions[name]} for name in names}, now)
        since = self.config.start_time(now)
        if since is not None:
            found = call_all("start-at-time", [partial(self._since, name, since) for name in names])
            return StartingPoints({name: {"gtid": gtid} for name, gtid in zip(names, found, strict=True)}, now)
        # A copy is a snapshot beside the changes from here on, see `KeyspaceSnapshots.is_initial`.
        kind = {"type": "copy"} if start == "copy" else {}
        # I4: `current` becomes a position before anything is read.
        return StartingPoints({name: {**kind, "gtid": self._head(name)} for name in names}, now)

    def open(self, opening: Opening) -> ShardReader:
        self.skipped.keep(opening.keys)
        parents = opening.parents.values()
        relayed = {
            name: lay_out_keys(self.name, name, keys, opening.hashed.get(name))
            for name, keys in opening.keys.items()
            if self.is_wanted(name)
        }
        return VitessShardReader(
            self._vtgate,
            self.stream,
            replace(opening, floor=floor_of(opening), start={**opening.start, "left_out": left_out_by(parents)}),
            self._known_tables(relayed),
            self._settings,
            clock=self.clock,
            heard=partial(self.clock.note, server=self.config.vtgate),
        )

    def _known_tables(self, relayed: Mapping[str, Table] | None = None) -> Tables:
        keyspace = self.config.keyspace
        followed = FollowedTables(
            "",  # names in Vitess' statements are taken without their database
            self.is_wanted,
            self.config.rules,
            lambda: self._text,
            hides_values=bool(self.config.protect),
            rereads=self._rereads,
        )
        ask = partial(collations, self._vtgate, keyspace, self.config.tablet_type)
        return Tables(
            self.layout,
            self._layouts,
            relayed,
            followed=followed,
            keyspace=keyspace,
            collations=ask,
            moved_to=partial(moved_to, self._vtgate),
            skipped=self.skipped,
        )

    def _rereads(self, table: str, columns: Sequence[Column] | None) -> bool:
        if self.config.on_alter != "resnapshot":
            return False
        if columns is None:  # vtgate sends no statements about the tables of an online change
            try:
                found = definitions(self._vtgate, self.config).get(table)
            except RelayError:
                found = None
            if found is None or found.problem or not found.primary:  # I10
                return False
            columns = found.columns
        return not rounded(columns)  # I10

    def _lay_out(self, table: str, columns: tuple[Column, ...], primary: Sequence[str]) -> Table | None:
        """Return the layout and key of ``table``, or None if it is not wanted.

        Called by readers' threads. Raises `Unfit` if the table cannot be relayed, and ``Unavailable`` if vtgate
        does not answer a question about a new table.
        """
        key = self.config.key_columns(table)
        primary = self._in_order(table, primary)
        if table.startswith(INTERNAL) if self.config.tables is None else table not in self.config.tables:
            return None
        if is_hidden(table):  # I1
            raise Unfit.of(self.name, table, _HIDDEN)
        if self.config.tables is None and (key or primary):
            self._look_up_vindex(table)
        hash_key, vindex = self._vindexes.get(table, ([], ""))
        if key:
            self._check_sharding(table, key, hash_key)
            hash_key, vindex = [], ""
        names = [column.name for column in columns]
        compute = of_rows(vindex, names.index(hash_key[0])) if len(hash_key) == 1 and hash_key[0] in names else None
        found = lay_out(
            self.name,
            table,
            columns,
            primary,
            key=key,
            hash_key=hash_key,
            rules=self.config.rules(table),
            where=self.config.conditions(table),
        )
        require_topic(self.config, table)
        found = replace(found, keyspace_id=compute)
        self._seen.setdefault(table, found)
        self.skipped.take_back(table)
        self.skipped.keep((table,))
        return found

    def _check_sharding(self, table: str, key: Sequence[str], vindex: Sequence[str]) -> None:
        """Warn of a ``key`` that rows in different shards may share. ``vindex``: the columns of the primary vindex."""
        lower = [column.lower() for column in key]
        if missing := [column for column in vindex if column and column.lower() not in lower]:
            log.warning(
                "source %s: the changes of a row of %s that moves to another shard come in no order: add %s to its "
                "`key`, or the row may be missing from copies then",
                self.name,
                table,
                ", ".join(missing),
            )

    def _in_order(self, table: str, primary: Sequence[str]) -> Sequence[str]:
        """Return a primary key in its own order, which the stream does not have. Raises ``Unavailable``."""
        if len(primary) < 2:
            return primary
        known = self._primary_keys.get(table, [])
        if set(known) != set(primary):
            found = {name: each.primary for name, each in definitions(self._vtgate, self.config).items()}
            # Another thread may replace it with an older answer, so this table's key is taken from this one.
            self._primary_keys, known = found, found.get(table, [])
        return known if set(known) == set(primary) else primary

    def _tablets(self, shard: str) -> Tablets:
        """Return a shard's, as the topology names it."""
        names = VitessShard.of(self.stream, Shard(shard), self.config.keyspace)
        return Tablets(self._vtgate, names, self._settings.tablet_type, self._settings.cells)

    def _head(self, shard: str) -> str:
        """Return the executed set of ``shard`` now. Raises ``Unavailable``."""
        tablets = self._tablets(shard)
        with closing(Head(tablets, next(iter(self._layouts), "dual"), clock=self.clock)) as asked:
            asked.ask()
            found = asked.poll(self._settings.silence)
        if found is None:
            reason = asked.failed or tablets.explain_silence()
            raise Unavailable(f"source {self.name}: the current position of shard {shard} is not available: {reason}")
        return found[1].position

    def _since(self, name: str, since: float) -> str:
        """Return the position of a shard just before the first transaction since a time. Raises ``Unavailable``."""
        history = ShardHistory(self._tablets(name), silence=self._settings.silence)
        try:
            return history.position_at(since, parse(self._head(name)))
        except Unavailable as error:
            raise Unavailable(f"source {self.name}: {error}") from error

    def _look_up_vindex(self, table: str) -> None:
        """Look up the primary vindex of ``table``, which determines the shard of a row. Raises ``Unavailable``."""
        if table in self._vindexes:
            return
        quoted = table.replace("`", "``")
        found: Sequence[Mapping[str, Any]] = ()
        try:
            found = self._vtgate.execute(f"show vschema vindexes on `{quoted}`", target=self.config.keyspace)
        except Unavailable:
            raise
        except RelayError as error:
            if _UNKNOWN_TABLE not in str(error):
                # I2: without a vindex that the table has, its rows would go to other partitions.
                raise Unavailable(f"source {self.name}: cannot look up the vindex of {table}: {error}") from error
        columns = str(found[0]["Columns"]).replace("`", "").split(",") if found else []
        self._vindexes[table] = [column.strip() for column in columns], str(found[0]["Type"]) if found else ""

    def _read_tables(self) -> None:
        found = definitions(self._vtgate, self.config)
        self._text = text_by_default(_executed(self._vtgate, self.config), self.config.keyspace)
        for name in self.config.named_tables:
            if name not in found:
                log.warning("source %s: keyspace %s has no table %s", self.name, self.config.keyspace, name)
        self._primary_keys = {name: each.primary for name, each in found.items()}
        warn_of_cascades(self.name, self._tablets(self._shards[0]), found)
        for name in self.config.tables or ():
            self._look_up_vindex(name)
        try:
            self._layouts = self.layout.of_tables(found)
        except Unfit as error:
            raise ConfigError(str(error)) from None

    def _find_tables(self) -> Mapping[str, Table]:
        """Return the layouts of the wanted tables that exist now. Raises ``Unavailable``."""
        return self.layout.of_tables(definitions(self._vtgate, self.config))


def connect(entry: VitessConfig) -> Vtgate:
    return Vtgate(entry.vtgate, user=entry.user, password=entry.password, tls=tls_context(entry.tls))


def definitions(vtgate: Vtgate, entry: VitessConfig) -> Mapping[str, Definition]:
    return ask(_executed(vtgate, entry), entry.keyspace, entry.tables)


def _executed(vtgate: Vtgate, entry: VitessConfig) -> Callable[[str], list[list[object]]]:
    """Return what runs a statement in the keyspace and returns its rows."""
    target = f"{entry.keyspace}@{entry.tablet_type}"
    return lambda sql: [list(row.values()) for row in vtgate.execute(sql, target=target)]

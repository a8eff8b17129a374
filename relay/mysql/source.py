"""A database that is spread over shards, each with one or more MySQL or MariaDB servers, as a source."""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import orjson

from relay.config.fields import StartAtGtids, host_port
from relay.errors import ConfigError, RelayError, Unavailable
from relay.gtid import GtidSet, parse
from relay.keyrange import KeyRange
from relay.lineage import Checkpoint, Shard, StreamId
from relay.mysql import connection
from relay.mysql.binlog.events import Statement
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection
from relay.mysql.layouts import Layouts
from relay.mysql.origins import CheckpointTable, Parent, ReplicatedEvents
from relay.mysql.positions import TimestampMap
from relay.mysql.reader import BinlogShardReader, Events, OpenEvents
from relay.mysql.reshard import HandingOver, begin_of_target, first_shards, hop_of, unfinished
from relay.mysql.servers import ShardServers, role_of
from relay.mysql.start import TooOld, executed_before
from relay.source import Opening, ShardReader, StartingPoints
from relay.sql.statements import classify
from relay.sql.tables import Table
from relay.table import Column, TableSchema

if TYPE_CHECKING:
    from relay.config import MySQLConfig

log = logging.getLogger(__name__)


class MySQLSource:
    """Reads the binlogs of one database. ``connect`` comes first."""

    has_journals = True
    snapshots = None

    def __init__(self, config: MySQLConfig) -> None:
        self.config = config
        self.name = config.name
        self.start = str(config.start)
        self.on_gap: Literal["fail", "skip", "resnapshot"] = config.on_gap
        self.stream = StreamId(config.name, config.database)
        self.layouts = Layouts(config)
        self._checkpoints = CheckpointTable.named(config.reshard_checkpoint_table)
        # The servers of each shard; shards that take the place of others are listed after those.
        self._shards: Mapping[str, Sequence[str]] = _checked(config)
        self._times: dict[str, TimestampMap] = {}
        self._tables: dict[str, TableSchema] = {}
        self._ssl = _context(config.tls)

    def __repr__(self) -> str:
        return f"<MySQLSource[{self.name}: {self.config.database}, shards {', '.join(self._shards)}]>"

    def close(self) -> None:
        """Each reader has connections of its own."""

    def reload(self, entry: Any) -> None:
        """Take in other servers, and shards that take the place of those there are. ``RelayError``: nothing changed."""
        if entry.type != "mysql" or entry.database != self.config.database:
            raise ConfigError(
                f"source {self.name}: it reads {self.config.database}: another database is another source"
            )
        self._shards = _checked(entry)
        changed = [name for name in type(entry).model_fields if getattr(entry, name) != getattr(self.config, name)]
        if others := [name for name in changed if name != "shards"]:
            log.warning("source %s: restart the relay for %s to take effect", self.name, ", ".join(others))
        waiting = unfinished(list(self._shards))
        for shard in waiting:
            log.warning(
                "source %s: shard %s is read on: the shards listed after it are not all that take its place",
                self.name,
                shard,
            )
        log.info("source %s: shards %s", self.name, ", ".join(self._shards))

    def connect(self, label: str | None = None) -> StreamId:
        if label is not None and label != self.config.database:
            raise ConfigError(
                f"source {self.name}: its checkpoints are of the database {label}, not of {self.config.database}. Give "
                "the other database a source of another name"
            )
        described = False
        for shard in self._shards:
            try:
                with closing(self._any(shard, verified=True)) as server:
                    if not described:
                        self._tables = {table.table: table for table in self.layouts.describe(server)}
                        described = True
            except Unavailable as error:
                if hop_of(shard, list(self._shards)) is None:
                    raise
                # Whether it is still read the checkpoints say.
                log.warning("source %s: %s", self.name, error)
        return self.stream

    def newest(self) -> str:
        return self.stream.label

    def tables(self) -> Sequence[TableSchema]:
        """Return the tables there were at ``connect``, and those that came since."""
        seen = {table.table: table for table in self.layouts.seen()}
        return list((self._tables | seen).values())

    def config_hash(self) -> str:
        return hashlib.blake2b(orjson.dumps(["mysql", self.config.database]), digest_size=8).hexdigest()

    def starting_points(self, shards: Sequence[Shard], clock: Callable[[], float]) -> StartingPoints:
        names, now = [shard.name for shard in shards], clock()
        if isinstance(self.config.start, StartAtGtids):
            return StartingPoints(self._given(self.config.start.positions, names), now)
        since = self.config.start_time(now)
        starts = {name: self._current(name) if since is None else self._since(name, since) for name in names}
        return StartingPoints({name: {"gtid": executed.position} for name, executed in starts.items()}, now)

    def shards(self) -> list[Shard]:
        keyrange = KeyRange.parse(self.config.keyrange)
        return [Shard(name) for name in first_shards(keyrange, list(self._shards))]

    def open(self, opening: Opening) -> ShardReader:
        """Open a shard, which always has a position: ``read_until`` is not needed to find gaps."""
        shard, start, parents = opening.shard, opening.start, opening.parents
        if shard.name not in self._shards:
            raise RelayError(
                f"source {self.name}: shard {shard.name} is not read to its end, and `shards` does not list it (any "
                "more): list it with its servers, before the shards that take its place"
            )
        is_new = opening.position is None
        if is_new and start.get("type") == "reshard":
            start = {"gtid": begin_of_target(shard.name, parents).position}
            opening = replace(opening, start=start)
        if is_new and "gtid" not in start:
            raise RelayError(f"source {self.name}: shard {shard.name} has no position to begin at, but {dict(start)}")
        events = self._replicated(parents) if shard.parents else None
        return BinlogShardReader(
            self.stream,
            opening,
            self._servers(shard.name),
            self.layouts,
            events=events,
            end=HandingOver(shard.name, lambda: list(self._shards), self._any, self._checkpoints),
            times=self._times_of(shard.name),
        )

    # ------------------------------------------------------------------ where reading begins

    def _given(self, positions: Mapping[str, str], names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        missing, unknown = set(names) - positions.keys(), positions.keys() - set(names)
        if missing or unknown:
            wrong = ", ".join(sorted(missing)) or ", ".join(sorted(unknown))
            raise ConfigError(
                f"source {self.name}: `start: {{gtid: ...}}` needs a position for each of the shards {', '.join(names)}"
                f": {'it has none for' if missing else 'there is no shard'} {wrong}"
            )
        return {name: {"gtid": positions[name]} for name in names}

    def _current(self, shard: str) -> GtidSet:
        """Return what the primary of a shard has executed, or the first server that answers."""
        with closing(self._servers(shard).primary() or self._any(shard)) as server:
            return server.executed()

    def _since(self, shard: str, since: float) -> GtidSet:
        known = self._times_of(shard).find(int(since))
        problems = []
        for address in self._shards[shard]:
            try:
                with closing(self._connect(address)) as server:
                    return executed_before(server, since, known)
            except TooOld as error:
                problems.append(f"{address} has nothing from before {_iso(error.oldest)}")
            except Unavailable as error:
                problems.append(str(error))
        raise Unavailable(
            f"source {self.name}: shard {shard} cannot be read from {_iso(since)} on: {'; '.join(problems)}"
        )

    def _times_of(self, shard: str) -> TimestampMap:
        return self._times.setdefault(shard, TimestampMap())

    # ------------------------------------------------------------------ servers

    def _connect(self, address: str) -> ServerConnection:
        host, port = host_port(address)
        return connection.connect(host, port, self.config.user or "", self.config.password or "", self._ssl)

    def _servers(self, shard: str) -> ShardServers:
        return ShardServers(shard, lambda: self._shards.get(shard, ()), self._connect, max_lag=self.config.max_lag)

    def _any(self, shard: str, *, verified: bool = False) -> ServerConnection:
        """Connect to the first server of a shard that answers. Raises ``Unavailable`` with what each says."""
        problems = []
        for address in self._shards[shard]:
            try:
                server = self._connect(address)
                try:
                    if verified:
                        self._verify(server)
                except BaseException:
                    server.close()
                    raise
                return server
            except Unavailable as error:
                problems.append(str(error))
        raise Unavailable(f"source {self.name}: no server of shard {shard} can be read: {'; '.join(problems)}")

    def _verify(self, server: ServerConnection) -> None:
        server.verify()
        if role_of(server).is_replica:
            server.verify_replica()
        wanted = "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
        if not server.execute(wanted, (self.config.database,)):
            raise Unavailable(
                f"{server.account.address} has no database {self.config.database}, or {self.config.user} may not read "
                f"it: `{server.grant}`"
            )

    def _replicated(self, parents: Mapping[str, Checkpoint]) -> OpenEvents:
        """Return what opens the binlog of a shard that a reshard has made."""
        ended = {
            Shard(name).name: Parent(self.stream.qualified(name), parse(parent.position["gtid"]))
            for name, parent in parents.items()
            if parent.position is not None
        }

        def layout(database: str, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table | None:
            if self._checkpoints.is_it(database, table):
                return self._checkpoints.layout(columns, primary)
            return self.layouts(database, table, columns, primary)

        def wanted(database: str, table: str) -> bool:
            return self._checkpoints.is_it(database, table) or self.layouts.wanted(database, table)

        def empties(event: Statement) -> bool:
            return bool(self.layouts.emptied(classify(event.sql, event.database, event.ansi_quotes)))

        def opened(server: ServerConnection, executed: GtidSet) -> Events:
            at: Callable[[GtidSet], Events] = partial(_binlog, server, layout, wanted)
            own = str(server.server_id) if server.is_mariadb else server.uuid.lower()
            return ReplicatedEvents(ended, self._checkpoints, executed, at, empties=empties, own=own)

        return opened


def tables_of(entry: MySQLConfig) -> Iterable[str]:
    """Return the names of the tables that a source without ``tables`` reads. Raises ``Unavailable``."""
    source = MySQLSource(entry)
    source.connect()
    return [table.table for table in source.tables()]


def _binlog(
    server: ServerConnection,
    layout: Callable[[str, str, Sequence[Column], Sequence[str]], Table | None],
    wanted: Callable[[str, str], bool],
    executed: GtidSet,
) -> Events:
    return BinlogEvents(server, executed, layout, wanted)


def _checked(config: MySQLConfig) -> Mapping[str, Sequence[str]]:
    """Return the servers of each shard. Raises ``ConfigError`` unless whole shards are the key range."""
    try:
        first_shards(KeyRange.parse(config.keyrange), list(config.shards))
    except ValueError as error:
        raise ConfigError(f"source {config.name}: {error}") from error
    return {shard: tuple(servers) for shard, servers in config.shards.items()}


def _context(tls: Mapping[str, str] | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.get("ca"))
        if "cert" in tls:
            context.load_cert_chain(tls["cert"], tls["key"])
    except OSError as error:
        raise ConfigError(f"`tls`: {error.filename or tls.get('ca') or tls.get('cert')}: {error}") from error
    return context


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()

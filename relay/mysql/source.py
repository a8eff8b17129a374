"""The source for a database of one or more shards, each with one or more MySQL or MariaDB servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.config.addresses import host_port
from relay.config.fields import StartAtGtids, iso_time
from relay.config.tls import tls_context
from relay.errors import ConfigError, RelayError, Unavailable
from relay.extras import needs
from relay.gtid import GtidSet
from relay.keyrange import KeyRange
from relay.mysql import connection
from relay.mysql.binlog.dump import Dump
from relay.mysql.binlog.events import EventStream
from relay.mysql.binlog.files import TooOld, executed_before
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection
from relay.mysql.current_server import OpenEvents
from relay.mysql.database_snapshots import ROWS, DatabaseSnapshots
from relay.mysql.filters import require_unfiltered, warn_of_filters
from relay.mysql.layouts import Layouts
from relay.mysql.origins import CheckpointTable, Parent, ReplicatedEvents
from relay.mysql.positions import BinlogPosition
from relay.mysql.readable import check_readable
from relay.mysql.reader import BinlogShardReader
from relay.mysql.reshard import HandoverCheck, first_shards, reshard_of, start_of_target, unfinished
from relay.mysql.roles import Role, role_of
from relay.mysql.servers import ShardServers
from relay.mysql_dialect.catalog import explained
from relay.mysql_dialect.protection import check_protected
from relay.mysql_dialect.sources import SqlSource, floor_of, left_out_by
from relay.mysql_dialect.tables import Table, Unfit, missing_tables
from relay.process.slow_call import call_all
from relay.records import Shard, ShardCheckpoint, StreamId
from relay.source import Opening, ShardReader, StartingPoints
from relay.table import Column, TableSchema

if TYPE_CHECKING:
    from relay.aws.tokens import DatabaseTokens
    from relay.config import MySQLConfig

log = logging.getLogger(__name__)

_FIRST_EVENT = 5.0  # seconds in which a server sends the beginning of its binlog, or refuses to


class MySQLSource(SqlSource):
    """Reads the binlogs of one database. ``connect`` comes first."""

    config: MySQLConfig

    def __init__(self, config: MySQLConfig) -> None:
        super().__init__(config)
        self.layouts = Layouts(config)
        self._checkpoints = CheckpointTable.named(config.reshard_checkpoint_table)
        # The servers of each shard; shards that replace others come after those. ``reload`` replaces the mapping in the
        # worker's thread, and never changes it: the readers' threads read the attribute once for each use.
        self._shards: Mapping[str, Sequence[str]] = _checked(config)
        self._tables: dict[str, TableSchema] = {}
        # The servers whose filters were looked at.
        self._warned_of: set[str] = set()
        self._ssl = tls_context(config.tls)
        self._tokens = _tokens(config)
        readable = partial(self._first_server, verified=True)  # I7: a table that is only hidden is not left out
        self.snapshots = DatabaseSnapshots(
            config, self.layouts, self._addresses, self._connect, readable, self._require_unfiltered, self.clock
        )

    def close(self) -> None:
        """Do nothing: each reader has connections of its own."""

    def reload(self, entry: Any) -> None:
        """Apply other servers, and shards that replace the present ones. On ``RelayError`` nothing has changed."""
        if entry.type != "mysql" or entry.database != self.config.database:
            raise ConfigError(
                f"source {self.name} reads the database {self.config.database}: give another database a source with "
                "another name"
            )
        self._shards = _checked(entry)
        changed = [name for name in type(entry).model_fields if getattr(entry, name) != getattr(self.config, name)]
        if others := [name for name in changed if name != "shards"]:
            log.warning("source %s: restart the relay to apply the new %s", self.name, ", ".join(others))
        for shard in unfinished(tuple(self._shards)):
            log.warning(
                "source %s: still reading shard %s: the shards listed after it do not cover its key range",
                self.name,
                shard,
            )
        log.info("source %s: shards %s", self.name, ", ".join(self._shards))

    def connect(self, label: str | None = None) -> StreamId:
        if label is not None and label != self.config.database:
            raise ConfigError(
                f"source {self.name}: its checkpoints belong to the database {label}, not to {self.config.database}: "
                "give the other database a source with another name"
            )
        described = False
        for shard in self._shards:
            try:
                with closing(self._first_server(shard, verified=True)) as server:
                    if not described:
                        self._tables = self._described(server)
                        described = True
                        for table in missing_tables(self.config.named_tables, self.tables()):
                            self._absent[table] = explained(server.execute, self.config.database, table)
                            log.warning("source %s: %s has no table %s", self.name, server.account.address, table)
                        if label is None:  # later the plan decides what is read, and a column may be gone
                            check_protected(self.name, self.config.protect, self._tables.values())
            except Unavailable as error:
                if reshard_of(shard, tuple(self._shards)) is None:
                    raise
                # The shard may have ended, which only its checkpoint says.
                log.warning("source %s: %s", self.name, error)
        return self.stream

    def _described(self, server: ServerConnection) -> dict[str, TableSchema]:
        try:
            return {table.table: table for table in self.layouts.describe(server)}
        except Unfit as error:
            raise ConfigError(str(error)) from None

    def unreadable(self) -> Mapping[str, str]:
        """Return the servers whose binlog cannot be read now, each with the reason.

        Those of a shard that others replace are left out: it may have ended, and its servers be gone.
        """
        listed = tuple(self._shards)
        lasting = [shard for shard in listed if reshard_of(shard, listed) is None]
        addresses = list(dict.fromkeys(address for shard in lasting for address in self._shards[shard]))
        problems = call_all("check", [partial(self._problem_of, address) for address in addresses])
        return {address: problem for address, problem in zip(addresses, problems, strict=True) if problem}

    def _problem_of(self, address: str) -> str:
        try:
            with closing(self._connect(address)) as server:
                self._verify(server)
                with closing(Dump.from_gtid(server, server.executed())) as dump:
                    dump.read(_FIRST_EVENT)
        except RelayError as error:
            return str(error).removeprefix(f"{address}: ")
        return ""

    def tables(self) -> Sequence[TableSchema]:
        seen = {table.table: table for table in self.layouts.seen()}
        return list((self._tables | seen).values())

    def row_count(self) -> int:
        """Return about how many rows the tables have in one shard. Raises ``Unavailable``."""
        with closing(self._first_server(next(iter(self._shards)))) as server:
            found = server.execute(ROWS, (self.config.database,))
            return sum(int(count or 0) for table, count, *_ in found if self.is_wanted(str(table)))

    @property
    def left_out(self) -> Mapping[str, str]:
        return self.layouts.skipped.reasons

    def is_wanted(self, table: str) -> bool:
        return self.layouts.wanted(self.config.database, table)

    def starting_points(self, shards: Sequence[Shard]) -> StartingPoints:
        if missing := self.missing():
            # Only here: what was relayed before is relayed to its end, although the table was dropped meanwhile (I1).
            raise RelayError(f"source {self.name}: the database {self.config.database} has {missing}")
        names, now = [shard.name for shard in shards], self.clock()
        if isinstance(self.config.start, StartAtGtids):
            return StartingPoints(self._configured(self.config.start.positions, names), now)
        since = self.config.start_time(now)
        starts = {name: self._current(name) if since is None else self._since(name, since) for name in names}
        positions = {name: BinlogPosition(executed.position) for name, executed in starts.items()}
        return StartingPoints({name: position.to_json() for name, position in positions.items()}, now)

    def shards(self) -> list[Shard]:
        keyrange = KeyRange.parse(self.config.keyrange)
        return [Shard(name) for name in first_shards(keyrange, list(self._shards))]

    def open(self, opening: Opening) -> ShardReader:
        """Open a shard. Gaps are found by the position, which it always has, without ``read_until``."""
        shard, parents = opening.shard, opening.parents
        if shard.name not in self._shards:
            raise RelayError(
                f"source {self.name}: shard {shard.name} was not read to its end, but `shards` does not list it: list "
                "it with its servers, before the shards that replace it"
            )
        self.layouts.remember(opening.keys, opening.hashed)
        return BinlogShardReader(
            shard,
            self._position(opening),
            self._servers(shard.name),
            self.layouts,
            self._open_replicated(parents) if shard.parents else self._open_binlog,
            floor=floor_of(opening),
            find_handover=HandoverCheck(shard.name, lambda: tuple(self._shards), self._first_server, self._checkpoints),
            clock=self.clock,
        )

    def _position(self, opening: Opening) -> BinlogPosition:
        start = opening.resume
        if opening.position is None and start.get("type") == "reshard":
            executed = start_of_target(opening.shard.name, opening.parents).position
            return BinlogPosition(executed, left_out=left_out_by(opening.parents.values()))
        if "gtid" not in start:
            raise RelayError(
                f"source {self.name}: shard {opening.shard.name} cannot start at {dict(start)}: it needs a GTID set"
            )
        return BinlogPosition.from_json(start)

    # ------------------------------------------------------------------ where reading begins

    def _configured(self, positions: Mapping[str, str], names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        missing, unknown = set(names) - positions.keys(), positions.keys() - set(names)
        if missing or unknown:
            wrong = ", ".join(sorted(missing)) or ", ".join(sorted(unknown))
            raise ConfigError(
                f"source {self.name}: `start: {{gtid: ...}}` needs one position for each of the shards "
                f"{', '.join(names)}: it has {'none for' if missing else 'one for the unknown shard'} {wrong}"
            )
        return {name: BinlogPosition(positions[name]).to_json() for name in names}

    def _current(self, shard: str) -> GtidSet:
        """Return what the primary of a shard has executed, or else the first server that answers."""
        with closing(self._servers(shard).primary() or self._first_server(shard)) as server:
            return server.executed()

    def _since(self, shard: str, since: float) -> GtidSet:
        problems = []
        for address in self._addresses(shard):
            try:
                with closing(self._connect(address)) as server:
                    return executed_before(server, since)
            except TooOld as error:
                problems.append(f"the binlogs of {address} begin at {iso_time(error.oldest)}")
            except Unavailable as error:
                problems.append(str(error))
        raise Unavailable(
            f"source {self.name}: shard {shard} cannot be read from {iso_time(since)}: {'; '.join(problems)}"
        )

    # ------------------------------------------------------------------ servers

    def _addresses(self, shard: str) -> Sequence[str]:
        """Return the servers of a shard; none if a reload has removed it."""
        return self._shards.get(shard, ())

    def _connect(self, address: str) -> ServerConnection:
        host, port = host_port(address)
        user, password = self.config.user or "", self.config.password or ""
        token = None if self._tokens is None else partial(self._tokens.make, host, port, user)
        return connection.connect(host, port, user, token or password, self._ssl, self.clock)

    def _servers(self, shard: str) -> ShardServers:
        return ShardServers(
            shard,
            lambda: self._addresses(shard),
            self._connect,
            max_lag=self.config.max_lag,
            require=self._require_unfiltered,
        )

    def _first_server(self, shard: str, *, verified: bool = False) -> ServerConnection:
        """Connect to the first server of a shard that answers. Raises ``Unavailable`` with the reason of each."""
        problems = []
        for address in self._addresses(shard):
            try:
                with ExitStack() as stack:
                    server = stack.enter_context(closing(self._connect(address)))
                    if verified:
                        self._verify(server)
                    stack.pop_all()
                    return server
            except Unavailable as error:
                problems.append(str(error))
        reasons = "; ".join(problems) or "`shards` lists none"
        raise Unavailable(f"source {self.name}: no server of shard {shard} can be read: {reasons}")

    def primary(self, shard: str) -> ServerConnection:
        """Connect to the primary of a shard. Raises ``Unavailable``."""
        found = self._servers(shard).primary()
        if found is None:
            listed = ", ".join(self._addresses(shard)) or "none"
            raise Unavailable(
                f"source {self.name}: no server of shard {shard} is a primary that answers; `shards` lists {listed}"
            )
        return found

    def _require_unfiltered(self, server: ServerConnection, role: Role) -> None:
        address = server.account.address
        is_alone = all(len(listed) == 1 for listed in self._shards.values() if address in listed)
        is_origin = is_alone and not role.is_read_only  # I1: another listed server may be where changes are made
        filters = () if is_origin and role.is_primary and not role.in_group else role.filters
        require_unfiltered(server, filters, self.config.database, is_origin=is_origin)
        if address not in self._warned_of:
            self._warned_of.add(address)
            warn_of_filters(self.name, server, filters, self.config.database)

    def _verify(self, server: ServerConnection) -> None:
        server.verify()
        role = role_of(server)
        if role.is_replica:
            server.verify_replica()
        self._require_unfiltered(server, role)
        wanted = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
        found = [str(name) for (name,) in server.execute(wanted, (self.config.database,))]
        if not found:
            raise Unavailable(
                f"{server.account.address} has no database {self.config.database}, or {self.config.user} may not read "
                f"it: create it, or run `{server.grant}`"
            )
        if self.config.database not in found:  # I1: events have the name as it is stored
            address = server.account.address
            raise ConfigError(f"source {self.name}: {address} calls the database {found[0]}: write it so")
        check_readable(server, self.config.database, self.config.tables or ())

    def _open_binlog(self, server: ServerConnection, executed: GtidSet) -> EventStream:
        relayed, spares = self.layouts.is_relayed, self.layouts.spares
        wanted = self.layouts.wanted
        return BinlogEvents(server, executed, self.layouts, wanted, relayed=relayed, spares=spares, raw=True)

    def _open_replicated(self, parents: Mapping[str, ShardCheckpoint]) -> OpenEvents:
        """Return what opens the binlog of a shard that a reshard has created."""
        ended = {
            Shard(name).name: Parent(self.stream.qualified(name), BinlogPosition.from_json(parent.position).executed)
            for name, parent in parents.items()
            if parent.position is not None
        }

        def layout(database: str, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table | None:
            if self._checkpoints.matches(database, table):
                return self._checkpoints.layout(columns, primary)
            return self.layouts(database, table, columns, primary)

        def wanted(database: str, table: str) -> bool:
            return self._checkpoints.matches(database, table) or self.layouts.wanted(database, table)

        def open_events(server: ServerConnection, executed: GtidSet) -> EventStream:
            def open_at(start: GtidSet) -> EventStream:
                return BinlogEvents(server, start, layout, wanted, spares=self.layouts.spares)

            return ReplicatedEvents(ended, self._checkpoints, executed, open_at, self.layouts, own=server.identity)

        return open_events


def _checked(config: MySQLConfig) -> Mapping[str, Sequence[str]]:
    """Return the servers of each shard. Raises ``ConfigError`` unless the shards cover exactly the key range."""
    try:
        first_shards(KeyRange.parse(config.keyrange), list(config.shards))
    except ValueError as error:
        raise ConfigError(f"source {config.name}: {error}") from error
    return {shard: tuple(servers) for shard, servers in config.shards.items()}


def _tokens(config: MySQLConfig) -> DatabaseTokens | None:
    """Return what makes tokens of AWS to log in with, if the source has no password."""
    if config.iam is None:
        return None
    with needs("aws", f'`iam` of the source "{config.name}"'):
        from relay.aws.tokens import DatabaseTokens
    return DatabaseTokens(config.iam.identity(config.iam.region))

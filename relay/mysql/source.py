"""The source for a database with one or more shards, each on one or more MySQL or MariaDB servers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial, reduce
from typing import Any

from relay.config import MySQLConfig
from relay.config.addresses import host_port
from relay.config.tls import tls_context
from relay.config.value_types import iso_time
from relay.errors import ConfigError, RelayError, Unavailable
from relay.extras import needs
from relay.gtid import GtidSet
from relay.keyrange import KeyRange
from relay.mysql import connection
from relay.mysql.binlog.dump import Dump
from relay.mysql.binlog.events import EventStream
from relay.mysql.binlog.files import Unlogged, executed_before
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection
from relay.mysql.current_server import OpenEvents
from relay.mysql.database_snapshots import ROWS, DatabaseSnapshots
from relay.mysql.errors import Denied
from relay.mysql.filters import require_unfiltered, warn_of_filters
from relay.mysql.gtids import common
from relay.mysql.origins import CheckpointTable, Parent, ReplicatedEvents
from relay.mysql.positions import BinlogPosition
from relay.mysql.reader import BinlogShardReader
from relay.mysql.relayed_tables import Layouts
from relay.mysql.reshard import HandoverCheck, first_shards, reshard_of, start_of_target, unfinished
from relay.mysql.roles import Role, role_of
from relay.mysql.servers import ShardServers
from relay.mysql.table_checks import check_readable
from relay.mysql.upstream import Upstreams
from relay.mysql_dialect.catalog import explained
from relay.mysql_dialect.protection import check_protected
from relay.mysql_dialect.sources import SqlSource, floor_of, left_out_by
from relay.mysql_dialect.tables import Table, Unfit, missing_tables
from relay.process.connections import closed_on_error
from relay.process.slow_call import call_all
from relay.records import Shard, ShardCheckpoint, StreamId
from relay.source import Opening, ShardReader
from relay.table import Column, TableSchema

log = logging.getLogger(__name__)

_UNCERTAIN = (
    "source %s: shard %s is read from %s on as if transactions without a known time were older: %s. If they are not, "
    "the relay does not publish them: take a snapshot"
)
_FIRST_EVENT = 5.0  # seconds within which a server sends the beginning of its binlog, or refuses to


class MySQLSource(SqlSource):
    """Reads the binlogs of one database. Call ``connect`` first."""

    config: MySQLConfig
    noun = "database"

    def __init__(self, config: MySQLConfig) -> None:
        super().__init__(config)
        self.layouts = Layouts(config)
        self.skipped = self.layouts.skipped
        self._checkpoints = CheckpointTable.named(config.reshard_checkpoint_table)
        # The servers of each shard. Shards that replace others come after them. ``reload``, in the worker's thread,
        # replaces the mapping and never changes it; readers' threads read the attribute once per use.
        self._shards: Mapping[str, Sequence[str]] = _checked(config)
        self._warned_of: set[str] = set()  # the servers whose filters were already checked
        self._ssl = tls_context(config.tls)
        self._token = _token_maker(config)
        self._upstreams = Upstreams(self.name, self._listed_with, self._connect, self._require_own)
        readable = partial(self._first_server, verified=True)  # I7: a table that is only hidden is not left out
        self.snapshots = DatabaseSnapshots(
            config, self.layouts, self._addresses, self._connect, readable, self._require_unfiltered, self.clock
        )

    def close(self) -> None:
        """Do nothing: each reader has its own connections."""

    def reload(self, entry: Any) -> None:
        """Apply other servers, and shards that replace the present ones. After a ``RelayError`` nothing has changed."""
        if entry.type != "mysql" or entry.database != self.config.database:
            raise ConfigError(
                f"source {self.name} reads the database {self.config.database}. To read the other database, add a "
                "source with another name"
            )
        self._shards = _checked(entry)
        changed = [name for name in type(entry).model_fields if getattr(entry, name) != getattr(self.config, name)]
        if others := [name for name in changed if name != "shards"]:
            log.warning("source %s: restart the relay to apply the new %s", self.name, ", ".join(others))
        for shard in unfinished(tuple(self._shards)):
            why = "the shards listed after it do not cover its key range"
            log.warning("source %s: still reading shard %s: %s", self.name, shard, why)
        log.info("source %s: shards %s", self.name, ", ".join(self._shards))

    def connect(self, label: str | None = None) -> StreamId:
        self._require_label(label)
        described: Sequence[TableSchema] | None = None
        for shard in self._shards:
            try:
                with closing(self._first_server(shard, verified=True)) as server:
                    if described is None:
                        try:
                            described = self.layouts.describe(server)
                        except Unfit as error:
                            raise ConfigError(str(error)) from None
                        for table in missing_tables(self.config.named_tables, self.tables()):
                            self._absent[table] = explained(server.execute, self.config.database, table)
                            log.warning("source %s: %s has no table %s", self.name, server.account.address, table)
                        if label is None:  # later the plan decides what is read, and a column may be gone
                            check_protected(self.name, self.config.protect, described)
            except Unavailable as error:
                if reshard_of(shard, tuple(self._shards)) is None:
                    raise
                # The shard may have ended, which only its checkpoint shows.
                log.warning("source %s: %s", self.name, error)
        return self.stream

    def unreadable(self) -> Mapping[str, str]:
        """Return servers with unreadable binlogs, and why, except of shards that others replace: they may be gone."""
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
        return self.layouts.seen()

    def row_count(self) -> int:
        """Return the approximate number of rows in the tables of one shard. Raises ``Unavailable``."""
        with closing(self._first_server(next(iter(self._shards)))) as server:
            found = server.execute(ROWS, (self.config.database,))
            return sum(int(count or 0) for table, count, *_ in found if self.is_wanted(str(table)))

    def is_wanted(self, table: str) -> bool:
        return self.layouts.wanted(self.config.database, table)

    def shards(self) -> list[Shard]:
        return [Shard(name) for name in first_shards(KeyRange.parse(self.config.keyrange), list(self._shards))]

    def open(self, opening: Opening) -> ShardReader:
        """Open a shard. Gaps are found by its position, which always exists, without ``read_until``."""
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

    def _head(self, shard: str) -> str:
        """Return the position of a shard's primary, or of the first other server that can be read."""
        with closing(self._servers(shard).primary() or self._first_server(shard, verified=True)) as server:
            return server.executed().position

    def _since(self, shard: str, since: float) -> str:
        problems, uncertain, addresses = list[str](), list[GtidSet](), self._addresses(shard)
        for address in addresses:
            try:
                with closing(self._connect(address)) as server:
                    self._verify(server)  # I1: its binlogs may lack what it replicates
                    return executed_before(server, since).position
            except Unavailable as error:
                problems.append(str(error))
                uncertain += [error.executed] if isinstance(error, Unlogged) else []
        if uncertain and len(uncertain) == len(addresses):  # I1: otherwise another server may have the transactions
            log.warning(_UNCERTAIN, self.name, shard, iso_time(since), "; ".join(problems))
            return reduce(common, uncertain).position
        raise Unavailable(
            f"source {self.name}: shard {shard} cannot be read from {iso_time(since)}: {'; '.join(problems)}"
        )

    def _addresses(self, shard: str) -> Sequence[str]:
        """Return the servers of a shard; none if a reload has removed the shard."""
        return self._shards.get(shard, ())

    def _connect(self, address: str) -> ServerConnection:
        host, port = host_port(address)
        user, password = self.config.user or "", self.config.password or ""
        token = None if self._token is None else partial(self._token, host, port, user)
        return connection.connect(host, port, user, token or password, self._ssl, self.clock)

    def _servers(self, shard: str) -> ShardServers:
        addresses, lag = partial(self._addresses, shard), self.config.max_lag
        return ShardServers(shard, addresses, self._connect, max_lag=lag, require=self._require_unfiltered)

    def _first_server(self, shard: str, *, verified: bool = False) -> ServerConnection:
        """Connect to the first server of a shard that answers. Raises ``Unavailable`` with the reasons of all."""
        problems = []
        for address in self._addresses(shard):
            try:
                with closed_on_error(self._connect(address)) as server:
                    if verified:
                        self._verify(server)
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

    def _listed_with(self, address: str) -> Sequence[str]:
        """Return the servers of the shards that list an address, without repetition."""
        return list(dict.fromkeys(each for servers in self._shards.values() if address in servers for each in servers))

    def _is_origin(self, address: str, role: Role) -> bool:
        is_alone = len(self._listed_with(address)) < 2
        return is_alone and not role.is_read_only  # I1: changes may be made on another listed server

    def _require_unfiltered(self, server: ServerConnection, role: Role) -> None:
        refused = self._upstreams.refused
        try:
            self._require_own(server, role)
        except Denied as error:
            refused[server.identity] = str(error)
            raise
        refused.pop(server.identity, None)
        is_origin, database = self._is_origin(server.account.address, role), self.config.database
        sources = [each for each in role.sources if not (is_origin and each.filters.is_of_others(database))]
        self._upstreams.require(server, sources, is_origin=is_origin)  # I1

    def _require_own(self, server: ServerConnection, role: Role) -> None:
        address = server.account.address
        is_origin = self._is_origin(address, role)
        filters = () if is_origin and role.is_primary and not role.in_group else role.filters
        require_unfiltered(server, filters, self.config.database, is_origin=is_origin)
        if address not in self._warned_of:
            self._warned_of.add(address)
            warn_of_filters(self.name, server, filters, self.config.database)

    def _verify(self, server: ServerConnection) -> None:
        role = role_of(server)
        server.verify(is_replica=role.is_replica)
        self._require_unfiltered(server, role)
        wanted = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
        found = [str(name) for (name,) in server.execute(wanted, (self.config.database,))]
        if not found:
            raise Unavailable(
                f"{server.account.address} has no database {self.config.database}, or {self.config.user} may not read "
                f"it: create it, or run `{server.grant}`"
            )
        if self.config.database not in found:  # I1: events contain the name as it is stored
            address = server.account.address
            raise ConfigError(
                f"source {self.name}: on {address} the database is spelled {found[0]}: use this spelling in `database`"
            )
        check_readable(server, self.config.database, self.config.tables or ())

    def _open_binlog(self, server: ServerConnection, executed: GtidSet) -> EventStream:
        of, relayed, spares = self.layouts, self.layouts.is_relayed, self.layouts.spares
        return BinlogEvents(server, executed, of, of.wanted, relayed=relayed, spares=spares, raw=True)

    def _open_replicated(self, parents: Mapping[str, ShardCheckpoint]) -> OpenEvents:
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

        def relayed(database: str, table: str) -> bool:  # I12: a statement about another table stops no shard
            return self._checkpoints.matches(database, table) or self.layouts.is_relayed(database, table)

        def open_events(server: ServerConnection, executed: GtidSet) -> EventStream:
            def open_at(start: GtidSet) -> EventStream:
                return BinlogEvents(server, start, layout, wanted, relayed=relayed, spares=self.layouts.spares)

            return ReplicatedEvents(ended, self._checkpoints, executed, open_at, self.layouts, own=server.identity)

        return open_events


def _checked(config: MySQLConfig) -> Mapping[str, Sequence[str]]:
    """Return the servers of each shard. Raises ``ConfigError`` unless the shards cover exactly the key range."""
    try:
        first_shards(KeyRange.parse(config.keyrange), list(config.shards))
    except ValueError as error:
        raise ConfigError(f"source {config.name}: {error}") from error
    return {shard: tuple(servers) for shard, servers in config.shards.items()}


def _token_maker(config: MySQLConfig) -> Callable[[str, int, str], str] | None:
    """Return what makes AWS tokens for logging in, if the config has no password."""
    if config.iam is None:
        return None
    with needs("aws", f'`iam` of the source "{config.name}"'):
        from relay.aws.tokens import DatabaseTokens
    return DatabaseTokens(config.iam.identity(config.iam.region)).make

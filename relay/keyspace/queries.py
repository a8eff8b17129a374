"""Queries over the shards of a keyspace with ``include_event_token`` and ``compare_event_token`` as in vtgate."""

from __future__ import annotations

import ssl as tls
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pymysql.connections import Connection

from relay.config.addresses import host_port
from relay.errors import Unavailable
from relay.gtid import GtidError, MariaDBSet, parse
from relay.keyrange import KeyRange, shard_range, shards_covering
from relay.keyspace.server import ServerState, WatchedServer, Work
from relay.mysql import connection
from relay.mysql.connection import Login, Password, ServerConnection
from relay.mysql.queries import Answer, answer, reflects
from relay.process.slow_call import call_all
from relay.token import EventToken
from relay.vitess.vindex import NoKeyspaceId, Value, keyspace_id, require_computable

if TYPE_CHECKING:
    from relay.vitess.lookup import LookupVindex

T = TypeVar("T")

IsFresh = Callable[[EventToken], bool]
"""Whether a read with the token would be fresh enough for the comparison."""


@dataclass(eq=False)
class WatchedShard:
    """A shard's servers, replicas first. ``name``: its name in tokens. ``max_lag``: seconds; then others come first."""

    name: str
    servers: Sequence[WatchedServer]
    max_lag: float

    def run(self, work: Work[T], is_fresh: IsFresh) -> T:
        """Return the result of ``work`` on the best server. Raises its errors, and ``Unavailable`` if none answers."""
        problems = []
        for server in sorted(self.servers, key=lambda each: self._rank(each, is_fresh)):
            try:
                return server.run(lambda connection, token: work(connection, self._trusted(token)))
            except Unavailable as error:
                problems.append(str(error))
        raise Unavailable(f"no server of shard {self.name} can be queried: {'; '.join(problems)}")

    def _trusted(self, token: EventToken | None) -> EventToken | None:
        """Return the token, unless two primaries may have two histories: MariaDB's positions look the same in both."""
        if token is None or not _is_mariadb(token):
            return token
        roles = [server.watcher.role for server in self.servers]
        primaries = sum(role is not None and role.is_primary for role in roles)
        return token if primaries <= 1 else None  # I6

    def _rank(self, server: WatchedServer, is_fresh: IsFresh) -> int:
        if server.has_failed:
            return 4
        token = server.token
        if token is None:
            return 3  # its rows are as good, but nothing shows how fresh they are
        if server.watcher.lag > self.max_lag or server.is_silent:
            return 2
        return 0 if is_fresh(token) else 1


def _is_mariadb(token: EventToken) -> bool:
    try:
        return isinstance(parse(token.position), MariaDBSet)
    except GtidError:
        return False


MAX_LAG = 60.0
"""Seconds, as for a source."""

_START = 15.0  # seconds
_CLOSE = 1.0  # seconds

Arguments = Sequence[object] | Mapping[str, object] | None


class KeyspaceQueries:
    """Queries the shards of a keyspace, each on one of its servers. Threads may share it.

    ``keyspace``: ``<source>/<keyspace>``, the beginning of the shards' names in tokens; for ``type: mysql`` the
    keyspace is the database. ``shards``: the servers of each, as ``host:port``, in order of preference: replicas first,
    then the primary; the attribute has their names in key order. ``vindex``: the type of the primary vindex, such as
    ``hash``; a lookup vindex, whose column has the sharding keys then; or None if there is one shard.

    ``connect``: opens a PyMySQL connection for queries to an address, with ``autocommit=True``; ``watch``: one to
    follow the binlog, as ``relay.mysql.connection.connect`` does. ``max_lag``: seconds that a server may lag before
    others are preferred. From ``start`` to ``close``, a thread watches each server. One that cannot be watched is
    queried only if no other can be, without tokens. Sessions are read-only, because a query is repeated on another
    server if the first one fails. No lock is held during a call to a server.
    """

    def __init__(
        self,
        keyspace: str,
        shards: Mapping[str, Sequence[str]],
        vindex: str | LookupVindex | None,
        *,
        connect: Callable[[str], Connection[Any]],
        watch: Callable[[str], ServerConnection],
        max_lag: float = MAX_LAG,
    ) -> None:
        """Raise ValueError for shards that do not cover the key space, or for a vindex that cannot be computed."""
        if keyspace.count("/") != 1:
            raise ValueError(f"{keyspace!r} must be <source>/<keyspace>, as in the tokens of the relay")
        self.keyspace = keyspace
        self.vindex = vindex
        self.max_lag = max_lag
        names = shards_covering(KeyRange(), shards)
        if empty := [name for name in names if not shards[name]]:
            raise ValueError(f"keyspace {keyspace}: no servers are listed for {', '.join(empty)}")
        if isinstance(vindex, str):
            require_computable(vindex)
        elif vindex is None and len(names) > 1:
            raise ValueError(f"keyspace {keyspace} has {len(names)} shards: name its vindex, such as hash")
        self._starts = [shard_range(name).start for name in names]
        self.shards: Sequence[str] = names
        self._addresses = {name: tuple(shards[name]) for name in names}
        self._connect = connect
        self._watch = watch
        self._shards = self._new_shards()

    @classmethod
    def of(
        cls,
        keyspace: str,
        shards: Mapping[str, Sequence[str]],
        vindex: str | LookupVindex | None,
        user: str,
        password: Password,
        *,
        database: str | None = None,
        ssl: tls.SSLContext | None = None,
        max_lag: float = MAX_LAG,
    ) -> Self:
        """Create the queries of one user, who needs the same privileges as for a source with ``type: mysql``."""

        def connect(address: str) -> Connection[Any]:
            opened = Login(*host_port(address), user, password, ssl).connect()
            if database is not None:
                opened.select_db(database)
            return opened

        def watch(address: str) -> ServerConnection:
            return connection.connect(*host_port(address), user, password, ssl)

        return cls(keyspace, shards, vindex, connect=connect, watch=watch, max_lag=max_lag)

    def start(self) -> Self:
        """Watch all servers, until each is watched or has failed, if all: ``Unavailable``. Call it again in a fork."""
        self.close()
        self._shards = self._new_shards()
        servers = self._servers()
        for server in servers:
            server.start()
        until = time.monotonic() + _START
        for server in servers:
            server.tried.wait(max(0.0, until - time.monotonic()))
        if all(server.token is None for server in servers):
            states = [server.state for server in servers]
            self.close()
            raise Unavailable(
                f"no server of keyspace {self.keyspace} can be watched: "
                + "; ".join(f"{state.address}: {state.problem}" for state in states)
            )
        return self

    def close(self) -> None:
        """Stop watching, and close the connections; no thread may be querying."""
        servers = self._servers()
        for server in servers:
            server.stop()
        until = time.monotonic() + _CLOSE
        for server in servers:
            server.close(max(0.0, until - time.monotonic()))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def shard_of(self, sharding_key: Value = None) -> str:
        """Return the shard that has the rows of a sharding key: a value of the vindex's column.

        Raises as ``shards_of``, TypeError, and ``NoKeyspaceId``, a ValueError, for a value with no shard or several.
        """
        (found,) = self.shards_of([sharding_key]).values()
        if len(found) != 1:
            value, several = repr(str(sharding_key)[:40]), ", ".join(found)
            if found:
                said = f"{self.vindex}: the rows for {value} are in several shards ({several}): scatter the query"
            else:
                said = f"{self.vindex} has no keyspace id for {value} at present"
            raise NoKeyspaceId(said)
        return found[0]

    def shards_of(self, sharding_keys: Iterable[Value]) -> dict[Value, list[str]]:
        """Return the shards that have the rows of each sharding key, all lookups at once.

        Raises what ``LookupVindex.keyspace_ids`` does, and ``NoKeyspaceId`` for a value that a vindex cannot compute.
        """
        match self.vindex:
            case None:
                return {key: [self.shards[0]] for key in sharding_keys}
            case str() as name:
                found = {key: [keyspace_id(name, key)] for key in sharding_keys}
            case lookup:
                found = lookup.keyspace_ids(sharding_keys)
        return {key: [self.shards[at] for at in sorted(set(map(self._place, ids)))] for key, ids in found.items()}

    def _place(self, found: bytes) -> int:
        # Keyspace ids compare as if padded with zero bytes, like the bounds.
        return bisect_right(self._starts, found.rstrip(b"\0")) - 1

    def execute(
        self,
        sql: str,
        args: Arguments = None,
        *,
        sharding_key: Value = None,
        include_event_token: bool = False,
        compare_event_token: EventToken | None = None,
    ) -> Answer:
        """Run a query in the shard of ``sharding_key``, if possible on a server that is fresh enough for the token.

        Raises as ``shard_of``, PyMySQL's errors, and ``Unavailable`` if no server of the shard can be queried.
        """
        shard = self.shard_of(sharding_key)
        return self._execute(shard, sql, args, include_event_token, compare_event_token)

    def scatter(
        self,
        sql: str,
        args: Arguments = None,
        *,
        sharding_keys: Iterable[Value] | None = None,
        include_event_token: bool = False,
        compare_event_tokens: Mapping[str, EventToken] | None = None,
    ) -> dict[str, Answer]:
        """Run a query in all shards at once; return the rows, the token and ``fresher`` for each, in key order.

        ``sharding_keys``: keys to whose shards the query is limited. ``compare_event_tokens``: the tokens by shard
        name. Raises as ``execute`` does.
        """
        compare = compare_event_tokens or {}
        if unknown := compare.keys() - set(self.shards):
            raise ValueError(f"keyspace {self.keyspace} has no shard {', '.join(sorted(unknown))}")
        shards = self.shards
        if sharding_keys is not None:
            wanted = {shard for found in self.shards_of(sharding_keys).values() for shard in found}
            shards = [shard for shard in self.shards if shard in wanted]
        calls = [partial(self._execute, name, sql, args, include_event_token, compare.get(name)) for name in shards]
        return dict(zip(shards, call_all(f"scatter-{self.keyspace}", calls), strict=True))

    def run(self, shard: str, work: Work[T], is_fresh: IsFresh = lambda _: True) -> T:
        """Return the result of ``work`` on a server of a shard, with a token taken before.

        ``is_fresh``: whether a read with a token would be fresh enough; such servers come first. If one fails, ``work``
        is repeated on another. Raises as ``execute``.
        """
        return self._shards[shard].run(work, is_fresh)

    def servers(self) -> dict[str, list[ServerState]]:
        """Return the state of each server of each shard."""
        return {name: [server.state for server in shard.servers] for name, shard in self._shards.items()}

    def _execute(self, shard: str, sql: str, args: Arguments, include: bool, compare: EventToken | None) -> Answer:
        def work(opened: Connection[Any], token: EventToken | None) -> Answer:
            return answer(opened, token, sql, args, include, compare)

        return self.run(shard, work, lambda token: compare is None or reflects(token, compare))

    def _new_shards(self) -> dict[str, WatchedShard]:
        shards = {}
        for name, addresses in self._addresses.items():
            qualified = f"{self.keyspace}/{name}"
            servers = [WatchedServer(address, qualified, self._watch, self._connect) for address in addresses]
            shards[name] = WatchedShard(qualified, servers, self.max_lag)
        return shards

    def _servers(self) -> list[WatchedServer]:
        return [server for shard in self._shards.values() for server in shard.servers]

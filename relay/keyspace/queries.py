"""Queries over the shards of a keyspace with ``include_event_token`` and ``compare_event_token``, as vtgate had them.

A query of one sharding key goes to its shard, and there to a server that is watched: see ``relay.mysql.queries`` for
what a token says. It holds for its shard alone.
"""

from __future__ import annotations

import ssl as tls
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Self, TypeVar

from pymysql.connections import Connection

from relay.config.addresses import host_port
from relay.errors import Unavailable
from relay.gtid import GtidError, MariaDBSet, parse
from relay.keyrange import KeyRange, shard_range, shards_covering
from relay.keyspace.server import ServerState, WatchedServer, Work
from relay.mysql import connection
from relay.mysql.connection import ServerConnection
from relay.mysql.login import Login, Password
from relay.mysql.queries import Answer, reflects
from relay.process.slow_call import call_all
from relay.token import EventToken
from relay.vitess.vindex import Value, keyspace_id, require_computable

T = TypeVar("T")

IsFresh = Callable[[EventToken], bool]
"""Whether a read with the token would be fresh enough for what it is compared with."""


class WatchedShard:
    """The servers of a shard in the order in which they are wanted, replicas first. Threads may share it.

    ``name``: the shard's in tokens. ``max_lag``: seconds that a server may be behind before others are wanted more.
    """

    def __init__(self, name: str, servers: Sequence[WatchedServer], max_lag: float) -> None:
        self.name = name
        self.servers = servers
        self.max_lag = max_lag

    def run(self, work: Work[T], is_fresh: IsFresh) -> T:
        """Return what ``work`` makes of a connection to the best server, or to the next one if that cannot be queried.

        Raises ``Unavailable`` with the reason of each server if none can, and what ``work`` raises.
        """
        problems = []
        for server in self._by_rank(is_fresh):
            try:
                return server.run(lambda connection, token: work(connection, self._trusted(token)))
            except Unavailable as error:
                problems.append(str(error))
        raise Unavailable(f"no server of shard {self.name} can be queried: {'; '.join(problems)}")

    def _trusted(self, token: EventToken | None) -> EventToken | None:
        """Return the token, unless the shard may have two histories: positions of MariaDB look the same in both.

        That is while a former primary still accepts writes after another server has taken its place.
        """
        if token is None or not _is_mariadb(token):
            return token
        roles = [server.watcher.role for server in self.servers]
        primaries = sum(role is not None and role.is_primary for role in roles)
        return token if primaries <= 1 else None  # I6

    def _by_rank(self, is_fresh: IsFresh) -> Iterator[WatchedServer]:
        """Yield the first of the best, and rank the others only if that one fails: a query asks for much, and often."""
        best = next((server for server in self.servers if self._rank(server, is_fresh) == 0), None)
        if best is not None:
            yield best
        others = (server for server in self.servers if server is not best)
        yield from sorted(others, key=lambda server: self._rank(server, is_fresh))

    def _rank(self, server: WatchedServer, is_fresh: IsFresh) -> int:
        if server.has_failed:
            return 4
        token = server.token
        if token is None:
            return 3  # its rows are as good, but nothing says how fresh they are
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
    keyspace is the database. ``shards``: the servers of each, as ``host:port``, in the order in which they are wanted:
    replicas first, then the primary. ``vindex``: the type of the primary vindex, such as ``hash``, or None if there is
    one shard.

    ``connect``: opens a PyMySQL connection for queries, with ``autocommit=True``; ``watch``: one to follow the binlog,
    as ``relay.mysql.connection.connect`` does. Both get an address. ``max_lag``: seconds that a server may be behind
    before others are wanted more.

    Each server is watched by a thread, on a connection of its own, from ``start`` to ``close``. A server that cannot be
    watched is queried if no other can, without tokens. Sessions are read-only, since a query is made again on another
    server if the first one fails. No lock is held during a call to a server. ``shards``: their names in key order.
    """

    def __init__(
        self,
        keyspace: str,
        shards: Mapping[str, Sequence[str]],
        vindex: str | None,
        *,
        connect: Callable[[str], Connection[Any]],
        watch: Callable[[str], ServerConnection],
        max_lag: float = MAX_LAG,
    ) -> None:
        """Raises ValueError for shards that do not cover the key space, and for a vindex that cannot be computed."""
        if keyspace.count("/") != 1:
            raise ValueError(f"{keyspace!r} must be <source>/<keyspace>, as in the tokens of the relay")
        self.keyspace = keyspace
        self.vindex = vindex
        self.max_lag = max_lag
        names = shards_covering(KeyRange(), shards)
        if empty := [name for name in names if not shards[name]]:
            raise ValueError(f"keyspace {keyspace}: no servers are listed for {', '.join(empty)}")
        if vindex is not None:
            require_computable(vindex)
        elif len(names) > 1:
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
        vindex: str | None,
        user: str,
        password: Password,
        *,
        database: str | None = None,
        ssl: tls.SSLContext | None = None,
        max_lag: float = MAX_LAG,
    ) -> Self:
        """Make queries of one user, who needs what a source of ``type: mysql`` needs. ``database``: to query."""

        def connect(address: str) -> Connection[Any]:
            opened = Login(*host_port(address), user, password, ssl).connect()
            if database is not None:
                opened.select_db(database)
            return opened

        def watch(address: str) -> ServerConnection:
            return connection.connect(*host_port(address), user, password, ssl)

        return cls(keyspace, shards, vindex, connect=connect, watch=watch, max_lag=max_lag)

    def start(self) -> Self:
        """Watch all servers, and wait until each is watched or cannot be. A forked process calls it for itself.

        Raises ``Unavailable`` if none can be watched.
        """
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

    # ------------------------------------------------------------------ queries

    def shard_of(self, sharding_key: Value = None) -> str:
        """Return the name of the shard that has the rows of a sharding key: the value of the primary vindex's column.

        Raises ``NoKeyspaceId``, a ValueError, for a value that the vindex has no shard for, and TypeError.
        """
        if self.vindex is None:
            return self.shards[0]
        # Keyspace ids compare as if padded with zero bytes, like the bounds.
        found = keyspace_id(self.vindex, sharding_key).rstrip(b"\0")
        return self.shards[bisect_right(self._starts, found) - 1]

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

        Raises ``Unavailable`` if no server of the shard can be queried, PyMySQL's errors for the query itself, and what
        ``shard_of`` raises.
        """
        shard = self.shard_of(sharding_key)
        return self._execute(shard, sql, args, include_event_token, compare_event_token)

    def scatter(
        self,
        sql: str,
        args: Arguments = None,
        *,
        include_event_token: bool = False,
        compare_event_tokens: Mapping[str, EventToken] | None = None,
    ) -> dict[str, Answer]:
        """Run a query in all shards at once, and return the rows, the token and ``fresher`` of each, in key order.

        ``compare_event_tokens``: by the name of the shard. Raises what ``execute`` does.
        """
        compare = compare_event_tokens or {}
        if unknown := compare.keys() - set(self.shards):
            raise ValueError(f"keyspace {self.keyspace} has no shard {', '.join(sorted(unknown))}")
        calls = [
            partial(self._execute, name, sql, args, include_event_token, compare.get(name)) for name in self.shards
        ]
        return dict(zip(self.shards, call_all(f"scatter-{self.keyspace}", calls), strict=True))

    def run(self, shard: str, work: Work[T], is_fresh: IsFresh = lambda _: True) -> T:
        """Return what ``work`` makes of a connection to a server of a shard, and of a token that was taken before.

        ``work`` runs again on another server if that one fails. ``is_fresh``: whether a read with a token would be
        fresh enough; servers where it is come first. Raises what ``execute`` does, and what ``work`` raises.
        """
        return self._shards[shard].run(work, is_fresh)

    def servers(self) -> dict[str, list[ServerState]]:
        """Return the state of each server of each shard."""
        return {name: [server.state for server in shard.servers] for name, shard in self._shards.items()}

    def _execute(self, shard: str, sql: str, args: Arguments, include: bool, compare: EventToken | None) -> Answer:
        def work(opened: Connection[Any], token: EventToken | None) -> Answer:
            with closing(opened.cursor()) as cursor:
                cursor.execute(sql, args)
                rows = cursor.fetchall()
            fresher = compare is not None and reflects(token, compare)
            return Answer(rows, token if include else None, fresher)

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

"""A keyspace of real MariaDB servers: shards, each with a primary and replicas, and the rows of customers in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

from relay.change import Change
from relay.keyspace import KeyspaceQueries, ServerState
from relay.mysql.connection import ServerConnection, connect
from relay.mysql.source import MySQLSource
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.token import EventToken
from relay.vitess.vindex import keyspace_id
from tests.mysql.shards import begin, config, open_at, read_until
from tests.waiting import wait_until

SOURCE = "legacy"
DATABASE = "shop"
KEYSPACE = f"{SOURCE}/{DATABASE}"
VINDEX = "hash"
SELECT = f"SELECT v FROM {DATABASE}.customer WHERE id = %s"
LOW, HIGH = "-80", "80-"
REPLICAS = {LOW: 2, HIGH: 1}
PORT = "SELECT @@port"


def shard_of(number: int) -> str:
    return LOW if keyspace_id(VINDEX, number)[0] < 0x80 else HIGH


def numbers_of(shard: str, count: int) -> list[int]:
    """Return the first customers of a shard."""
    found = (number for number in range(1, 10_000) if shard_of(number) == shard)
    return [next(found) for _ in range(count)]


class Servers:
    """The servers of one shard. ``all``: in the order in which they are wanted: replicas, then the primary."""

    def __init__(self, stack: ExitStack, replicas: int) -> None:
        self.primary = stack.enter_context(MariaDB())
        self.primary.execute(f"CREATE DATABASE {DATABASE}")
        self.primary.execute(f"CREATE TABLE {DATABASE}.customer (id INT PRIMARY KEY, v INT)")
        self.primary.execute(f"GRANT DELETE ON {DATABASE}.* TO {USER}@'%'")
        self.replicas = [stack.enter_context(MariaDB()) for _ in range(replicas)]
        for replica in self.replicas:
            replica.replicate_from(self.primary)
            replica.wait_for(self.primary.gtid)

    @property
    def all(self) -> list[MariaDB]:
        return [*self.replicas, self.primary]


class Keyspace:
    """The shards, what is written to them, and what a relay would publish of it."""

    def __init__(self, *, replicas: Mapping[str, int]) -> None:
        self._stack = ExitStack()
        try:
            self.shards = {name: Servers(self._stack, count) for name, count in replicas.items()}
        except BaseException:
            self._stack.close()
            raise
        self._readers: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for reader in self._readers.values():
            reader.close()
        self._stack.close()

    def queries(self, **settings: Any) -> KeyspaceQueries:
        addresses = {name: [server.address for server in shard.all] for name, shard in self.shards.items()}
        return KeyspaceQueries.of(KEYSPACE, addresses, VINDEX, USER, PASSWORD, **settings)

    def put(self, number: int, v: int) -> str:
        """Write a customer, and return the shard."""
        shard = shard_of(number)
        self.shards[shard].primary.execute(f"REPLACE {DATABASE}.customer VALUES (%s, %s)", (number, v))
        return shard

    def replicated(self) -> None:
        """Wait until every replica that is alive has everything."""
        for shard in self.shards.values():
            for replica in shard.replicas:
                replica.wait_for(shard.primary.gtid)

    def begin_relaying(self) -> None:
        """Begin to read the binlogs of the primaries, as the relay does."""
        primaries = {name: [shard.primary.address] for name, shard in self.shards.items()}
        source = MySQLSource(config(DATABASE, primaries, name=SOURCE))
        source.connect()
        starts = begin(source)
        self._readers = {shard.name: open_at(source, starts[shard.name], shard) for shard in source.shards()}

    def relayed(self, shard: str) -> list[Change]:
        """Return the changes of a shard that were not returned yet, at least one."""
        changes, _ = read_until(self._readers[shard], bool)
        return changes


def read(cursor: Any, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
    cursor.execute(f"SELECT id, v FROM {DATABASE}.customer WHERE id IN %s", ([int(key) for key in keys],))
    return [({"id": number}, str(value).encode()) for number, value in cursor.fetchall()]


def state_of(queries: KeyspaceQueries, server: MariaDB) -> ServerState:
    states = [state for shard in queries.servers().values() for state in shard]
    return next(state for state in states if state.address == server.address)


def wait_for_state(queries: KeyspaceQueries, server: MariaDB, holds: Callable[[ServerState], bool]) -> ServerState:
    def found() -> ServerState | None:
        state = state_of(queries, server)
        return state if holds(state) else None

    return wait_until(found)


def wait_for_position(queries: KeyspaceQueries, server: MariaDB, gtid: str) -> ServerState:
    """Wait until the token of a server is at a position."""
    return wait_for_state(queries, server, partial(_is_at, gtid))


def _is_at(gtid: str, state: ServerState) -> bool:
    return state.token is not None and state.token.position == f"MariaDB/{gtid}"


def port_of(queries: KeyspaceQueries, number: int, compare: EventToken | None = None) -> int:
    """Return the port of the server that a query of a customer goes to."""
    answer = queries.execute(PORT, sharding_key=number, compare_event_token=compare)
    return int(answer.rows[0][0])


def port_in(address: str) -> int:
    return int(address.rpartition(":")[2])


def watching(user: str, password: str, address: str) -> ServerConnection:
    return connect("127.0.0.1", port_in(address), user, password)


def goes_to(queries: KeyspaceQueries, number: int, server: MariaDB) -> None:
    """Wait until queries of a customer go to a server: on a busy host, its watcher may just have been late."""
    wait_until(lambda: port_of(queries, number) == server.port)


def token_of(queries: KeyspaceQueries, server: MariaDB) -> EventToken:
    token = state_of(queries, server).token
    assert token is not None
    return token

"""The loader for MySQL and MariaDB, shared by the threads of an application and with a process that it forks."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pymysql
import pytest

from relay.cache import MemoryStore, QueriesLoader, TokenCache
from relay.mysql.connection import connect
from relay.mysql.watcher import ReplicationWatcher
from relay.services.mariadb import PASSWORD, USER
from tests.waiting import wait_until

pytestmark = pytest.mark.services

COUNT = 200


class Names:
    """Loads the name of a number, and counts the queries and the connections."""

    def __init__(self, server: Any, database: str) -> None:
        self.server, self.database = server, database
        shard = f"legacy/{database}/-"
        self.watcher = ReplicationWatcher(partial(connect, server.host, server.port, USER, PASSWORD), shard)
        self.loader = QueriesLoader(self.connect, self.watcher, self.read, key="{id}")
        self.meanwhile: Callable[[], object] = lambda: None  # called in each read
        self.connections: list[Any] = []
        self.queries = 0

    def connect(self) -> Any:
        self.connections.append(self.server.connect(USER, database=self.database, autocommit=True))
        return self.connections[-1]

    def read(self, cursor: Any, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
        self.meanwhile()
        self.queries += 1
        cursor.execute("SELECT id, name FROM t WHERE id IN %s", ([int(key) for key in keys],))
        return [({"id": number}, name.encode()) for number, name in cursor.fetchall()]


@pytest.fixture
def names(mariadb: Any, unique: str) -> Iterator[Names]:
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.t (id INT PRIMARY KEY, name VARCHAR(20))")
    rows = ", ".join(f"({number}, 'name {number}')" for number in range(COUNT))
    mariadb.execute(f"INSERT INTO {unique}.t VALUES {rows}")
    names = Names(mariadb, unique)
    with names.watcher, closing(names.loader):
        yield names
    mariadb.execute(f"DROP DATABASE {unique}")


def in_threads(count: int, body: Callable[[int], object]) -> None:
    # Daemons, since on a connection that is shared some would wait for ever.
    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 600
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def test_threads_that_share_a_loader_cache_each_key_with_its_own_row(names: Names) -> None:
    """I6: the answers on one connection would reach whichever thread reads first."""
    cache = TokenCache(MemoryStore(), "shop")
    found: dict[str, bytes | None] = {}

    def fill(first: int) -> None:
        for number in range(first, COUNT, 8):
            with suppress(pymysql.err.MySQLError, OSError, ValueError, AttributeError):  # what a shared one raises
                found[str(number)] = cache.get_or_load(str(number), names.loader.load).value

    in_threads(8, fill)
    assert found == {str(number): f"name {number}".encode() for number in range(COUNT)}
    assert len(names.connections) <= 8


def test_loads_at_once_have_a_connection_each_and_later_ones_use_them_again(names: Names) -> None:
    names.meanwhile = threading.Barrier(3, timeout=120).wait
    in_threads(3, lambda number: [names.loader.load(str(number), None) for _ in range(5)])
    assert len(names.connections) == 3
    names.meanwhile = lambda: None
    in_threads(3, lambda number: names.loader.load(str(number), None))
    assert len(names.connections) == 3
    names.loader.close()
    assert not any(connection.open for connection in names.connections)
    assert names.loader.load("1", None).value == b"name 1"


def test_many_keys_are_read_by_one_query_with_one_token(names: Names) -> None:
    loaded = names.loader.load_many({"7": {}, "9": {}, "1000": {}})
    assert {key: each.value for key, each in loaded.items()} == {"7": b"name 7", "9": b"name 9", "1000": None}
    assert names.queries == 1
    (tokens,) = {tuple(each.tokens.values()) for each in loaded.values()}
    assert tokens == (names.watcher.token,)
    assert all(each.fresher for each in loaded.values())


def test_the_token_of_a_load_is_taken_before_its_read(names: Names) -> None:
    """I6: the read may not have seen a transaction that is committed while it runs."""
    before = names.watcher.token

    def insert() -> None:
        names.server.execute(f"REPLACE INTO {names.database}.t VALUES (1, 'later')")
        wait_until(lambda: names.watcher.token != before)

    names.meanwhile = insert
    assert list(names.loader.load("1", None).tokens.values()) == [before]


def test_a_connection_that_the_server_has_closed_is_replaced(names: Names) -> None:
    names.loader.load("1", None)
    names.server.execute(f"KILL {names.connections[0].thread_id()}")
    assert names.loader.load("1", None).value == b"name 1"
    assert len(names.connections) == 2


def test_a_read_that_also_fails_on_a_new_connection_is_an_error(names: Names) -> None:
    names.loader.load("1", None)
    names.server.execute(f"RENAME TABLE {names.database}.t TO {names.database}.gone")
    with pytest.raises(pymysql.err.ProgrammingError, match="doesn't exist"):
        names.loader.load("1", None)
    assert [connection.open for connection in names.connections] == [False, False]


def test_a_forked_process_does_not_read_from_the_connections_of_its_parent(names: Names) -> None:
    """I6: either would get the other's rows, in a server that forks after it has warmed its cache."""
    names.loader.load("1", None)
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def child() -> None:
        send.send(names.loader.load("2", None).value)
        send.send(len(names.connections))

    process = context.Process(target=child)
    process.start()
    assert (receive.recv(), receive.recv()) == (b"name 2", 2)
    process.join(120)
    assert names.loader.load("3", None).value == b"name 3"
    assert len(names.connections) == 1

"""The loader for Vitess always reads the primary's current rows, on connections of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pymysql
import pytest

from relay.cache import Invalidator, MemoryStore, Outcome, TokenCache, VitessLoader
from relay.services.vitess import KEYSPACES

pytestmark = pytest.mark.services


@pytest.fixture
def table(vitess: Any, unique: str) -> Iterator[str]:
    vitess.execute(f"CREATE TABLE {unique} (id BIGINT PRIMARY KEY, name VARCHAR(100))")
    vitess.execute(f"ALTER VSCHEMA ON {unique} ADD VINDEX hash(id) USING hash")
    yield unique
    vitess.execute(f"DROP TABLE {unique}")


class Names:
    """Loads names by id, and records the connections it makes."""

    def __init__(self, vitess: Any, table: str) -> None:
        self.vitess = vitess
        self.table = table
        self.connections: list[Any] = []
        self.meanwhile: Callable[[], object] = lambda: None  # called in each read
        self.loader = VitessLoader(self.connect, next(iter(KEYSPACES)), self.read, key="{id}")

    def connect(self) -> Any:
        # Without the loader's settings all reads would be in one transaction (PyMySQL's default), and on a replica.
        self.connections.append(self.vitess.connect(f"{self.loader.keyspace}@replica", autocommit=False))
        return self.connections[-1]

    def read(self, cursor: Any, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
        self.meanwhile()
        cursor.execute(f"SELECT id, name FROM {self.table} WHERE id IN %s", ([int(key) for key in keys],))
        return [({"id": number}, name.encode()) for number, name in cursor.fetchall()]

    def write(self, number: int, name: str) -> None:
        sql = f"INSERT INTO {self.table} (id, name) VALUES (%s, %s) ON DUPLICATE KEY UPDATE name = VALUES(name)"
        self.vitess.execute(sql, None, (number, name))


@pytest.fixture
def names(vitess: Any, table: str) -> Iterator[Names]:
    names = Names(vitess, table)
    with closing(names.loader):
        yield names


def test_each_load_sees_everything_committed_before_it(names: Names) -> None:
    """I6: not the view of the first read of a transaction."""
    for name in ("ada", "bob", "cy"):
        names.write(1, name)
        loaded = names.loader.load("1", None)
        assert (loaded.value, loaded.tokens, loaded.fresher) == (name.encode(), {}, True)
    assert len(names.connections) == 1


def test_a_load_waits_for_a_transaction_that_has_changed_the_row(vitess: Any, names: Names) -> None:
    """I6: the stream may have the transaction already, if a replica got it first."""
    names.write(1, "ada")
    found: list[bytes | None] = []
    with closing(vitess.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"UPDATE {names.table} SET name = 'bob' WHERE id = 1")
        reader = threading.Thread(target=lambda: found.append(names.loader.load("1", None).value))
        reader.start()
        reader.join(0.5)
        connection.commit()
    reader.join(120)
    assert found == [b"bob"]


def test_reads_go_to_the_primary_even_on_a_connection_to_replicas(names: Names) -> None:
    """I6"""
    names.loader.load("1", None)
    with names.connections[0].cursor() as cursor:
        cursor.execute("SELECT DATABASE()")
        assert cursor.fetchone() == (f"{names.loader.keyspace}@primary",)


def test_many_keys_are_read_at_once_and_keys_without_a_row_have_no_value(names: Names) -> None:
    for number in (1, 2, 3):
        names.write(number, f"name {number}")
    loaded = names.loader.load_many(dict.fromkeys(["3", "4", "1"]))
    assert {key: each.value for key, each in loaded.items()} == {"3": b"name 3", "4": None, "1": b"name 1"}


def test_a_closed_connection_is_replaced(names: Names) -> None:
    names.write(1, "ada")
    names.loader.load("1", None)
    names.connections[0].close()
    assert names.loader.load("1", None).value == b"ada"
    assert len(names.connections) == 2


def test_a_read_that_also_fails_on_a_new_connection_is_an_error(vitess: Any, names: Names) -> None:
    names.write(1, "ada")
    names.loader.load("1", None)
    names.table = "nowhere"
    with pytest.raises(pymysql.err.MySQLError, match="nowhere"):
        names.loader.load("1", None)
    assert [connection.open for connection in names.connections] == [False, False]


def test_threads_never_share_a_connection_and_close_closes_all(names: Names) -> None:
    names.write(1, "ada")
    found: list[bytes | None] = []
    barrier = threading.Barrier(3)
    names.meanwhile = barrier.wait  # so that the three loads run at once
    threads = [
        threading.Thread(target=lambda: found.extend(names.loader.load("1", None).value for _ in range(20)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"ada"] * 60
    assert len(names.connections) == 3
    names.loader.close()
    assert not any(connection.open for connection in names.connections)
    names.meanwhile = lambda: None
    assert names.loader.load("1", None).value == b"ada"


def test_any_invalidation_clears_a_loaded_value(names: Names) -> None:
    """I6: the read has no token with which an older invalidation could be discarded."""
    store = MemoryStore()
    cache = TokenCache(store, "shop")
    names.write(1, "ada")
    assert cache.get_or_load("1", names.loader.load).outcome is Outcome.FILLED
    names.write(1, "bob")
    assert cache.get_or_load("1", names.loader.load).value == b"ada"
    Invalidator(store, "shop").apply([("1", None)])
    assert cache.get_or_load("1", names.loader.load).value == b"bob"

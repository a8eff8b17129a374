"""One cached value made of the rows of two tables in two shards, through relay and consumer (I6)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.cache import (
    ConditionalWrite,
    LoadedValue,
    Outcome,
    RedisStore,
    State,
    TokenCache,
    Tokens,
    entry_key,
    generation_key,
    is_fresher,
    key_text,
)
from relay.cache.entry import decode
from relay.cache.store import KEEP
from relay.mysql import ReplicationWatcher, TokenQueries
from relay.mysql.connection import connect
from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.command_line import run_until_caught_up
from tests.faults.harness import Relay
from tests.waiting import wait_until

pytestmark = pytest.mark.services

CUSTOMERS, ORDERS = "-80", "80-"
TEMPLATE = "page:{customer}"
KEY = key_text(TEMPLATE, {"customer": "ada"})


class Shop:
    """A database on two servers: customers are in one shard, their orders in the other."""

    def __init__(self, database: str, stack: ExitStack) -> None:
        self.database = database
        self.servers = {name: stack.enter_context(MariaDB()) for name in (CUSTOMERS, ORDERS)}
        self.meanwhile: Callable[[], object] = lambda: None  # called after the reads of a load
        self.watched = [CUSTOMERS, ORDERS]
        self.queries: dict[str, TokenQueries] = {}
        for name, server in self.servers.items():
            server.execute(f"CREATE DATABASE {database}")
            server.execute(f"CREATE TABLE {database}.customers (customer VARCHAR(20) PRIMARY KEY, name VARCHAR(20))")
            server.execute(
                f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, customer VARCHAR(20), total DECIMAL(10,2))"
            )
            watched = partial(connect, server.host, server.port, USER, PASSWORD)
            watcher = stack.enter_context(ReplicationWatcher(watched, f"shop/{database}/{name}"))
            connection = stack.enter_context(closing(server.connect(USER, database=database, autocommit=True)))
            self.queries[name] = TokenQueries(connection, watcher)
        self.write(CUSTOMERS, "INSERT INTO customers VALUES ('ada', 'Ada')")
        self.write(ORDERS, "INSERT INTO orders VALUES (1, 'ada', 10)")

    def write(self, shard: str, statement: str) -> None:
        with closing(self.servers[shard].connect(database=self.database, autocommit=True)) as connection:
            connection.cursor().execute(statement)

    def load(self, key: str, compare: Tokens | None) -> LoadedValue:
        customer = key.removeprefix("page:")
        tokens = [self.queries[name].token() for name in self.watched]  # before the reads
        (name,) = self.read(CUSTOMERS, "SELECT name FROM customers WHERE customer = %s", customer)[0]
        orders = self.read(ORDERS, "SELECT total FROM orders WHERE customer = %s ORDER BY id", customer)
        value = f"{name}: {', '.join(str(total) for (total,) in orders)}".encode()
        self.meanwhile()
        by_shard = {token.shard: token for token in tokens if token is not None}
        return LoadedValue(value, by_shard, len(by_shard) == 2 and is_fresher(by_shard, compare))

    def read(self, shard: str, statement: str, *arguments: str) -> Any:
        with closing(self.queries[shard].connection.cursor()) as cursor:
            cursor.execute(statement, arguments)
            return cursor.fetchall()


@pytest.fixture
def shop(unique: str) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(unique, stack)


@pytest.mark.parametrize(
    "engine", ["python", pytest.param("spark", marks=pytest.mark.faults("one rule for both: test_invalidate.py"))]
)
def test_a_value_of_two_shards_is_invalidated_by_both_and_filled_with_the_tokens_of_both(
    engine: str, shop: Shop, kafka: Any, redis_server: Any, tmp_path: Path
) -> None:
    path = tmp_path / "relay.yaml"
    raw = {
        "name": shop.database,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2},
        "sources": [
            {
                "name": "shop",
                "type": "mysql",
                "database": shop.database,
                "tables": ["customers", "orders"],
                "user": USER,
                "password": PASSWORD,
                "shards": {name: [server.address] for name, server in shop.servers.items()},
            }
        ],
        "cache": {
            "url": redis_server.url,
            "namespace": shop.database,
            "keys": {"customers": [TEMPLATE], "orders": [TEMPLATE]},
        },
    }
    path.write_text(yaml.safe_dump(raw))
    relay = [sys.executable, "-m", "relay.cli"]
    run_until_caught_up(path)  # plans, and begins at the heads
    running = Relay([*relay, "run", str(path)], tmp_path / "relay.log")
    consumer = Relay([*relay, "consume", "cache", str(path), "--engine", engine], tmp_path / "consumer.log")
    try:
        wait_until(lambda: consumer.has_logged('"started"'), 120)
        with RedisStore(redis_server.url) as store:
            follow(shop, TokenCache(store, shop.database))
    except AssertionError as failure:
        failure.add_note(f"{running.log()}\n{consumer.log()}")
        raise
    finally:
        running.kill()
        consumer.kill()


def follow(shop: Shop, cache: TokenCache) -> None:
    def get() -> tuple[bytes | None, Outcome]:
        found = cache.get_or_load(KEY, shop.load)
        return found.value, found.outcome

    def wait_for(value: bytes) -> None:
        """Wait until the value has been invalidated, and is filled again."""
        wait_until(lambda: get()[0] == value or None, 60)
        wait_until(lambda: get() == (value, Outcome.HIT) or None, 60)

    others = count()

    def is_cached() -> bool:
        """Write other rows, which tell the cache how far the shards are, and look whether the value was stored."""
        number = next(others)
        shop.write(CUSTOMERS, f"INSERT INTO customers VALUES ('other {number}', '')")
        shop.write(ORDERS, f"INSERT INTO orders VALUES ({1000 + number}, 'other {number}', 1)")
        return get()[1] is Outcome.HIT

    assert get() == (b"Ada: 10.00", Outcome.DROPPED)  # whether the reads may lag is not known yet
    wait_until(lambda: is_cached() or None, 60)
    shop.write(ORDERS, "INSERT INTO orders VALUES (2, 'ada', 5)")
    wait_for(b"Ada: 10.00, 5.00")
    shop.write(CUSTOMERS, "UPDATE customers SET name = 'Countess'")
    wait_for(b"Countess: 10.00, 5.00")

    # A fill that has read before a change of one shard, and ends after its invalidation, is not stored.
    def change_and_wait() -> None:
        shop.meanwhile = lambda: None
        shop.write(CUSTOMERS, "UPDATE customers SET name = 'Lovelace'")
        wait_until(lambda: is_invalidated() or None, 60)

    def is_invalidated() -> bool:
        (found,), _ = cache.store.read([entry_key(shop.database, KEY)], generation_key(shop.database))
        return found is not None and decode(found.meta).state is State.TOMBSTONE

    (stored,), _ = cache.store.read([entry_key(shop.database, KEY)], generation_key(shop.database))
    assert stored is not None
    evict = ConditionalWrite(entry_key(shop.database, KEY), stored.meta, None, None, KEEP)
    assert cache.store.compare_and_set([evict]) == {}
    shop.meanwhile = change_and_wait
    assert get() == (b"Countess: 10.00, 5.00", Outcome.DROPPED)
    wait_for(b"Lovelace: 10.00, 5.00")

    # A loader that has a token of one shard only is not known to be fresher.
    shop.write(ORDERS, "DELETE FROM orders WHERE id = 2")
    wait_until(lambda: is_invalidated() or None, 60)
    watched = shop.watched
    shop.watched = [CUSTOMERS]
    assert get() == (b"Lovelace: 10.00", Outcome.DROPPED)
    shop.watched = watched
    wait_for(b"Lovelace: 10.00")

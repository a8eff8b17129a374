"""Loads while a transaction is in the binlog, and so in the stream, but not yet visible on the primary (AFTER_SYNC)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from relay.cache import Invalidator, MemoryStore, QueriesLoader, TokenCache, VitessLoader
from relay.gtid import parse
from relay.mysql.connection import connect
from relay.mysql.queries import TokenQueries
from relay.mysql.watcher import ReplicationWatcher
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.token import EventToken
from tests.waiting import wait_until

pytestmark = pytest.mark.services

DATABASE = "shop@primary"  # what a tablet's vtgate would be asked for
SHARD = "legacy/shop/-"
PATIENCE = 120.0  # seconds after which a test gives up


class SemiSync:
    """A primary whose replica has a transaction and does not acknowledge it."""

    def __init__(self, server: MariaDB) -> None:
        self.server = server

    @contextmanager
    def unacknowledged(self, sql: str) -> Iterator[Callable[[], None]]:
        """Run a statement that is logged and does not become visible before the function that this yields is called."""
        before = self.server.gtid
        self.server.execute("SET GLOBAL rpl_semi_sync_master_enabled = 1")
        writer = threading.Thread(target=lambda: self.server.execute(sql))
        writer.start()

        def acknowledge() -> None:
            self.server.execute("SET GLOBAL rpl_semi_sync_master_enabled = 0")
            writer.join()

        try:
            wait_until(lambda: self.server.gtid != before)
            yield acknowledge
        finally:
            acknowledge()


@pytest.fixture
def primary() -> Iterator[SemiSync]:
    options: dict[str, str | int] = {
        "rpl-semi-sync-master-wait-point": "AFTER_SYNC",
        "rpl-semi-sync-master-wait-no-slave": 1,
        "rpl-semi-sync-master-timeout": 600_000,
    }
    with MariaDB(options=options) as server:
        server.execute(f"CREATE DATABASE `{DATABASE}`")
        server.execute(f"CREATE TABLE `{DATABASE}`.t (id INT PRIMARY KEY, v VARCHAR(20))")
        server.execute(f"INSERT INTO `{DATABASE}`.t VALUES (1, 'old')")
        yield SemiSync(server)


def opened(server: MariaDB) -> Any:
    return server.connect(USER, database=DATABASE, autocommit=True)


def read(cursor: Any, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
    cursor.execute("SELECT id, v FROM t WHERE id IN %s", ([int(key) for key in keys],))
    return [({"id": number}, value.encode()) for number, value in cursor.fetchall()]


def test_a_load_from_a_primary_after_an_invalidation_waits_until_the_change_is_visible(primary: SemiSync) -> None:
    """I6: the old row, read once its change had invalidated the entry, would never be invalidated again."""
    server = primary.server
    store = MemoryStore()
    cache = TokenCache(store, "shop")
    with (
        closing(VitessLoader(lambda: opened(server), "shop", read, key="{id}")) as loader,
        primary.unacknowledged(f"UPDATE `{DATABASE}`.t SET v = 'new'") as acknowledge,
    ):
        assert server.execute(f"SELECT v FROM `{DATABASE}`.t") == (("old",),)
        Invalidator(store, "shop").apply([("1", EventToken(1, SHARD, f"MariaDB/{server.gtid}"))])
        found: list[bytes | None] = []
        reader = threading.Thread(target=lambda: found.append(cache.get_or_load("1", loader.load).value))
        reader.start()
        reader.join(0.5)
        acknowledge()
        reader.join(PATIENCE)
        assert found == [b"new"]
        assert cache.get_or_load("1", loader.load).value == b"new"


def test_a_token_does_not_contain_a_change_that_is_logged_and_not_visible(primary: SemiSync) -> None:
    """I6: a query that runs now does not see it, although the server's GTID position has it."""
    server = primary.server
    watcher = ReplicationWatcher(partial(connect, server.host, server.port, USER, PASSWORD), SHARD)
    with (
        watcher,
        closing(opened(server)) as connection,
        closing(QueriesLoader(lambda: opened(server), watcher, read, key="{id}")) as loader,
    ):
        queries = TokenQueries(connection, watcher)
        with primary.unacknowledged(f"UPDATE `{DATABASE}`.t SET v = 'new'") as acknowledge:
            change = EventToken(1, SHARD, f"MariaDB/{server.gtid}")
            with ReplicationWatcher(partial(connect, server.host, server.port, USER, PASSWORD), SHARD) as later:
                for each in (queries, TokenQueries(connection, later)):
                    rows, token, fresher = each.execute(
                        f"SELECT v FROM `{DATABASE}`.t", include_event_token=True, compare_event_token=change
                    )
                    assert (rows, fresher) == ((("old",),), False)
                    assert token is not None
                    assert not parse(token.position).contains(parse(change.position))
            assert not loader.load("1", {SHARD: change}).fresher
            acknowledge()
        wait_until(lambda: loader.load("1", {SHARD: change}).fresher)
        assert loader.load("1", {SHARD: change}).value == b"new"

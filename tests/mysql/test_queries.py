"""Queries with tokens, on a primary and its replica of both flavours."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pymysql.constants import SERVER_STATUS

from relay.cache import Cached, Invalidator, MemoryStore, Outcome, PrimaryLoader, QueriesLoader, TokenCache
from relay.errors import RelayError
from relay.mysql.queries import TokenQueries, reflects
from relay.mysql.watcher import ReplicationWatcher
from relay.services.mariadb import USER, MariaDB
from relay.token import EventToken, OriginToken
from tests.mysql.orders import DATABASE, SELECT, SHARD, wait_for, watch
from tests.mysql.reading import is_mysql, position_of
from tests.mysql.server import MySQL
from tests.mysql.shards import begin, open_at, read_until, source_of
from tests.waiting import wait_until


@pytest.fixture(scope="module", params=[MariaDB, MySQL], ids=lambda kind: kind.__name__)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    kind = request.param
    with kind() as primary, kind() as replica:
        primary.execute(f"CREATE DATABASE {DATABASE}")
        primary.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v INT)")
        replica.replicate_from(primary)
        replica.wait_for(primary.gtid)
        yield primary, replica


@pytest.fixture
def primary(servers: tuple[Any, Any]) -> Any:
    return servers[0]


@pytest.fixture
def replica(servers: tuple[Any, Any]) -> Any:
    servers[1].execute("START REPLICA")
    servers[1].wait_for(servers[0].gtid)
    return servers[1]


def stop_applying(replica: Any) -> None:
    replica.execute(f"STOP {'REPLICA' if is_mysql(replica) else 'SLAVE'} SQL_THREAD")


def apply_again(replica: Any, primary: Any) -> None:
    """Apply everything that the primary has executed."""
    replica.execute(f"START {'REPLICA' if is_mysql(replica) else 'SLAVE'} SQL_THREAD")
    replica.wait_for(primary.gtid)


def read(cursor: Any, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
    cursor.execute(f"SELECT id, v FROM {DATABASE}.t WHERE id IN %s", ([int(key) for key in keys],))
    return [({"id": number}, str(value).encode()) for number, value in cursor.fetchall()]


def last_number(position: str) -> int:
    """Return the number of the last transaction in the only domain or server of a position."""
    return int(re.split("[-:]", position)[-1])


@pytest.mark.services
class TestQueries:
    def test_the_token_of_a_query_is_that_of_the_last_transaction(self, primary: Any) -> None:
        primary.execute(f"REPLACE {DATABASE}.t VALUES (1, 1)")
        with watch(primary) as watcher, closing(primary.connect(USER)) as connection:
            assert wait_for(watcher, primary.gtid).position == position_of(primary)
            primary.execute(f"REPLACE {DATABASE}.t VALUES (1, 2)")
            wait_for(watcher, primary.gtid)
            queries = TokenQueries(connection, watcher)
            rows, token, fresher = queries.execute(SELECT, (1,), include_event_token=True)
            assert list(rows) == [(2,)]
            assert token
            assert (token.shard, token.position) == (SHARD, position_of(primary))
            assert abs(token.timestamp - time.time()) < 60
            assert not fresher
            assert queries.execute(SELECT, (1,)).token is None

    def test_a_replica_that_does_not_apply_is_not_fresher(self, primary: Any, replica: Any) -> None:
        """I6: it is once it has applied the change."""
        source = source_of(DATABASE, primary)
        reader = open_at(source, begin(source)["-"])
        with watch(replica) as watcher, closing(replica.connect(USER)) as connection:
            queries = TokenQueries(connection, watcher)
            stop_applying(replica)
            primary.execute(f"REPLACE {DATABASE}.t VALUES (2, 7)")
            (change, *_), _ = read_until(reader, bool)
            ask = partial(queries.execute, SELECT, (2,), include_event_token=True, compare_event_token=change.token)
            answer = ask()
            assert not answer.fresher
            assert list(answer.rows) == []
            apply_again(replica, primary)
            wait_for(watcher, primary.gtid)
            answer = ask()
            assert answer.fresher
            assert list(answer.rows) == [(7,)]
            assert change.token
            assert answer.token
            assert answer.token.position == change.token.position
        reader.close()

    def test_a_query_always_reflects_its_token(self, primary: Any) -> None:
        """I6: also while transactions commit, which the binlog has before queries see them."""
        primary.execute(f"REPLACE {DATABASE}.t VALUES (3, 0)")
        before = last_number(primary.gtid)
        stop = threading.Event()

        def write() -> None:
            with closing(primary.connect()) as connection, connection.cursor() as cursor:
                number = 0
                while not stop.is_set():
                    number += 1
                    cursor.execute(f"UPDATE {DATABASE}.t SET v = {number} WHERE id = 3")

        with watch(primary) as watcher, closing(primary.connect(USER)) as connection:
            queries = TokenQueries(connection, watcher)
            writer = threading.Thread(target=write)
            writer.start()
            answers = [queries.execute(SELECT, (3,), include_event_token=True) for _ in range(1500)]
            stop.set()
            writer.join()
        last = 0
        for rows, token, _ in answers:
            assert token
            # Each update is one transaction, so the number in the position is the least value that the row may have.
            reflected = last_number(token.position) - before
            assert token.position.startswith(f"MySQL56/{primary.uuid}:1-" if is_mysql(primary) else "MariaDB/0-")
            assert rows[0][0] >= reflected >= last
            last = reflected
        assert len({answer.token.position for answer in answers if answer.token}) > 20

    def test_the_watcher_stops_when_the_role_changes(self, primary: Any, replica: Any) -> None:
        with watch(replica) as watcher:
            token = watcher.token
            assert token is not None
            replica.execute("SET GLOBAL read_only = 0")
            wait_until(lambda: watcher.token is None)
            assert "role" in (watcher.error or "")
            with closing(replica.connect(USER)) as connection:
                change = EventToken(1, SHARD, position_of(primary))
                answer = TokenQueries(connection, watcher).execute(
                    SELECT, (1,), include_event_token=True, compare_event_token=change
                )
            assert (answer.token, answer.fresher) == (None, False)
        replica.execute("SET GLOBAL read_only = 1")

    def test_transactions_that_only_a_replica_has_are_in_no_token(self, primary: Any, replica: Any) -> None:
        """I5: a set with them cannot be compared with that of another server."""
        with replica.connect() as connection, connection.cursor() as cursor:
            if not is_mysql(replica):
                cursor.execute("SET gtid_domain_id = 9")
                cursor.execute("CREATE DATABASE before_the_watch")
            with watch(replica) as watcher:
                cursor.execute("CREATE DATABASE scratch")
                primary.execute(f"REPLACE {DATABASE}.t VALUES (4, 1)")
                assert wait_for(watcher, primary.gtid).position == position_of(primary)

    def test_no_token_is_given_where_it_would_be_wrong(self, primary: Any, replica: Any) -> None:
        with watch(primary) as watcher:
            with (
                closing(replica.connect(USER)) as connection,
                pytest.raises(RelayError, match=r"the connection uses server .*, but the watcher uses"),
            ):
                TokenQueries(connection, watcher).execute(SELECT, (1,), include_event_token=True)
            with closing(primary.connect(USER, autocommit=False)) as connection:
                queries = TokenQueries(connection, watcher)
                with pytest.raises(RelayError, match="transaction"):
                    queries.execute(SELECT, (1,), include_event_token=True)
                connection.autocommit(True)
                connection.begin()
                with pytest.raises(RelayError, match="transaction"):
                    queries.execute(SELECT, (1,), include_event_token=True)
                connection.commit()
                assert queries.execute(SELECT, (1,), include_event_token=True).token

    def test_a_cache_that_reads_from_a_replica_keeps_no_value_from_before_a_change(
        self, primary: Any, replica: Any
    ) -> None:
        """I6, with the tokens of a real stream."""
        primary.execute(f"REPLACE {DATABASE}.t VALUES (5, 1)")
        source = source_of(DATABASE, primary)
        reader = open_at(source, begin(source)["-"])
        replica.wait_for(primary.gtid)
        store = MemoryStore()
        cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
        with (
            watch(replica) as watcher,
            closing(PrimaryLoader(partial(primary.connect, USER), read, key="{id}")) as of_primary,
            closing(
                QueriesLoader(partial(replica.connect, USER), watcher, read, key="{id}", primary=of_primary)
            ) as loader,
            closing(QueriesLoader(partial(replica.connect, USER), watcher, read, key="{id}")) as alone,
        ):
            assert cache.get_or_load("5", alone.load) == Cached(b"1", Outcome.DROPPED)  # there are no floors yet
            assert cache.get_or_load("5", loader.load) == Cached(b"1", Outcome.FILLED)
            assert loader.primary_reads == 1
            stop_applying(replica)
            primary.execute(f"REPLACE {DATABASE}.t VALUES (5, 2)")
            changes, _ = read_until(reader, bool)
            invalidator.apply([("5", change.token) for change in changes])
            for key in ("5", "6"):
                assert cache.get_or_load(key, alone.load).outcome is Outcome.DROPPED
            assert cache.get_or_load("5", loader.load) == Cached(b"2", Outcome.FILLED)
            assert loader.primary_reads == 2
            invalidator.apply([("5", change.token) for change in changes])
            apply_again(replica, primary)
            wait_for(watcher, primary.gtid)
            several = cache.get_many(["5", "6"], loader.load_many)
            assert several == {"5": Cached(b"2", Outcome.FILLED), "6": Cached(None, Outcome.FILLED)}
            assert cache.get_many(["5", "6"], alone.load_many)["6"].outcome is Outcome.HIT
            assert loader.primary_reads == 2
        reader.close()

    def test_a_server_that_takes_no_writes_is_refused_as_the_primary(self, primary: Any, replica: Any) -> None:
        """I6: it may lag."""
        replica.execute("SET GLOBAL read_only = 1")
        with closing(PrimaryLoader(partial(replica.connect, USER), read, key="{id}")) as loader:
            with pytest.raises(RelayError, match="is read-only: connect to the one that accepts writes"):
                loader.load("5", None)
            replica.execute("SET GLOBAL read_only = 0")
            assert loader.load("5", None).fresher

    def test_the_watcher_stops_when_its_replica_is_promoted(self, primary: Any, replica: Any) -> None:
        with watch(replica) as watcher:
            replica.promote()
            wait_until(lambda: watcher.token is None)
            assert "role" in str(watcher.error)
        replica.replicate_from(primary)


def test_whether_a_read_is_fresher_depends_on_positions_only() -> None:
    """I5, I6: timestamps come from other clocks."""
    read = EventToken(1_000, SHARD, "MariaDB/0-1-10")
    assert reflects(read, EventToken(900, SHARD, "MariaDB/0-1-9"))
    assert reflects(read, EventToken(2_000, SHARD, "MariaDB/0-1-10"))
    assert not reflects(read, EventToken(1, SHARD, "MariaDB/0-1-11"))
    assert not reflects(read, EventToken(1, SHARD, "MariaDB/0-2-10"))
    assert not reflects(read, EventToken(1, "shop/orders/80-", "MariaDB/0-1-5"))
    assert not reflects(read, EventToken(1, SHARD, "nonsense"))
    assert not reflects(read, EventToken(1, SHARD, ""))
    assert not reflects(None, EventToken(1, SHARD, "MariaDB/0-1-9"))
    made_here = OriginToken(900, SHARD, "MariaDB/0-1-9")
    assert reflects(read, EventToken(2_000, "shop/orders/80-", "MariaDB/7-1-5", made_here))
    not_yet = OriginToken(1, SHARD, "MariaDB/0-1-12")
    assert not reflects(read, EventToken(1, "shop/orders/80-", "MariaDB/7-1-5", not_yet))


class Driver:
    """A connection, and its cursor. A transaction is committed, and watched, right after each query."""

    server_status = SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT

    def __init__(self, watcher: SimpleNamespace) -> None:
        self.watcher = watcher

    def cursor(self) -> Driver:
        return self

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def execute(self, sql: str, arguments: object = None) -> None:
        if sql == SELECT:
            self.watcher.token = EventToken(1001, SHARD, "MariaDB/0-1-6")

    def fetchall(self) -> list[tuple[object, ...]]:
        return [("server_id", "7")]


def test_the_token_of_a_query_is_taken_before_it_is_sent() -> None:
    """I6: it may not have seen a transaction that is committed while it runs."""
    before = EventToken(1000, SHARD, "MariaDB/0-1-5")
    watcher: Any = SimpleNamespace(shard=SHARD, identity="7", token=before)
    connection: Any = Driver(watcher)
    later = EventToken(1001, SHARD, "MariaDB/0-1-6")
    answer = TokenQueries(connection, watcher).execute(SELECT, include_event_token=True, compare_event_token=later)
    assert (answer.token, answer.fresher) == (before, False)


def test_a_watcher_needs_the_qualified_name_of_its_shard() -> None:
    with pytest.raises(ValueError, match="<source>/<database>/<shard>"):
        ReplicationWatcher.of("127.0.0.1", 3306, "", "", "-80")

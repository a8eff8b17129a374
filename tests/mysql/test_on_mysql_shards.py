"""Shards of several real MySQL servers that die, fall behind, lose transactions and purge."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import pymysql
import pytest

from relay.change import Change
from relay.errors import RelayError
from relay.local.process import free_port
from relay.local.sql_server import USER
from relay.mysql.queries import TokenQueries
from relay.mysql.reader import BinlogShardReader
from relay.mysql.servers import role_of
from relay.token import Order, compare
from tests.mysql.reading import connected
from tests.mysql.server import MySQL
from tests.mysql.shards import begin, config, ids, open_at, read_to_head, read_until, resume, short, source_of
from tests.mysql.test_failover import opened, put
from tests.mysql.test_on_mysql_queries import wait_for, watch

pytestmark = pytest.mark.services

DATABASE = "orders"
GROUP = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
SHARD = f"shop/{DATABASE}/-"
SELECT = f"SELECT v FROM {DATABASE}.t WHERE id = %s"


@pytest.fixture
def primary() -> Iterator[MySQL]:
    with MySQL() as server:
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v VARCHAR(100))")
        yield server


@pytest.fixture
def replica(primary: MySQL) -> Iterator[MySQL]:
    with MySQL() as server:
        server.replicate_from(primary)
        server.wait_for(primary.gtid)
        yield server


def load(server: MySQL, stop: threading.Event, seed: int) -> threading.Thread:
    """Write until told to stop."""

    def write() -> None:
        random_ = random.Random(seed)
        with closing(server.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for at in range(10**9):
                if stop.is_set():
                    return
                for _ in range(random_.choice([1, 3, 20])):
                    key = random_.randrange(50)
                    statements = [
                        f"REPLACE {DATABASE}.t (id, v) VALUES ({key}, '{random_.random()}')",
                        f"DELETE FROM {DATABASE}.t WHERE id = {key}",
                        f"UPDATE IGNORE {DATABASE}.t SET id = {key + 1} WHERE id = {key}",
                        f"UPDATE {DATABASE}.t SET v = CONCAT(id, 'x') WHERE id BETWEEN {key} AND {key + 5}",
                    ]
                    cursor.execute(random_.choice(statements))
                connection.commit()
                if random_.random() < 0.02:
                    cursor.execute(f"ALTER TABLE {DATABASE}.t ADD COLUMN c{seed}_{at} INT")

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_a_failover_under_load_neither_loses_nor_doubles(
    primary: MySQL, replica: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I3: the primary is killed, its replica takes its place, and readers die at random as well."""
    random_ = random.Random(3)
    source = source_of(DATABASE, primary, replica)
    position = begin(source)["-"]
    stop = threading.Event()
    writer = load(primary, stop, 1)
    monkeypatch.setattr("relay.mysql.transactions.STREAMED_PAGE", 2_000)
    found: list[Change] = []
    state = {"reader": open_at(source, position)}

    def step() -> None:
        page = state["reader"].read()
        assert page.gap is None
        found.extend(page.changes)
        if page.failed:
            time.sleep(0.1)
        elif random_.random() < 0.1:
            state["reader"].close()
            state["reader"] = resume(source, page.position or {})

    for _ in range(40):
        step()
    stop.set()
    writer.join()
    replica.wait_for(primary.gtid)
    for _ in range(3):
        step()
    primary.kill()
    replica.promote()
    stop.clear()
    writer = load(replica, stop, 2)
    for _ in range(40):
        step()
    stop.set()
    writer.join()
    deadline = time.monotonic() + 30
    while state["reader"].transactions.position != f"MySQL56/{replica.gtid}":  # type: ignore[attr-defined]
        step()
        assert time.monotonic() < deadline
    state["reader"].close()
    clean = open_at(source, position)
    whole, _ = read_to_head(clean, passing=True)
    clean.close()
    assert len(whole) > 200
    assert ids(found) == ids(whole)
    for before, after in pairwise(found):
        assert before.transaction
        assert after.transaction
        same = before.transaction.id == after.transaction.id
        assert compare(before.token, after.token) is (Order.EQUAL if same else Order.OLDER)


@pytest.mark.parametrize("written", [1, 3])
def test_what_a_failover_has_lost_is_a_gap(primary: MySQL, replica: MySQL, written: int) -> None:
    """I9: never silence."""
    source = source_of(DATABASE, primary, replica)
    reader = opened(source)
    put(primary, 1, 2)
    replica.wait_for(primary.gtid)
    shared = primary.gtid
    replica.stop_replication()
    put(primary, 3, 4, v="lost")
    read_until(reader, lambda found: len(found) == 4)
    lost = primary.gtid
    primary.kill()
    replica.promote()
    put(replica, *range(5, 5 + written))
    changes, pages = read_until(reader, lambda found: len(found) == written, passing=True)
    gaps = [page.gap for page in pages if page.gap]
    assert [(gap.reason, gap.begin, gap.end) for gap in gaps] == [
        ("failover lost transactions", {"gtid": f"MySQL56/{lost}"}, {"gtid": f"MySQL56/{shared}"})
    ]
    assert short(changes) == [("INSERT", key, "a") for key in range(5, 5 + written)]
    reader.close()


def test_a_replica_that_is_behind_is_waited_for(primary: MySQL, replica: MySQL) -> None:
    """It may still get what was read."""
    source = source_of(DATABASE, primary, replica)
    reader = opened(source)
    replica.stop_replication()
    put(primary, 1, 2)
    read_until(reader, lambda found: len(found) == 2)
    position = reader.transactions.where()
    primary.kill()
    failures = []
    for _ in range(4):
        page = reader.read()
        assert page.gap is None
        failures.append(page.failed or "")
    assert f"{replica.address} is behind" in failures[-1]
    assert position["gtid"] in failures[-1]
    primary.restart()
    replica.start_replication()
    put(primary, 3)
    changes, pages = read_until(reader, lambda found: len(found) == 1, passing=True)
    assert short(changes) == [("INSERT", 3, "a")]
    assert not any(page.gap for page in pages)
    reader.close()


def test_purged_binlogs_are_read_from_a_server_that_has_them_and_are_a_gap_when_none_has(
    primary: MySQL, replica: MySQL
) -> None:
    """I9."""
    source = source_of(DATABASE, primary, replica)
    position = begin(source)["-"]
    put(primary, 1, 2)
    replica.wait_for(primary.gtid)
    purged = primary.gtid
    primary.purge_binlogs()
    put(primary, 3)
    reader = open_at(source, position)
    changes, pages = read_until(reader, lambda found: len(found) == 3, passing=True)
    assert short(changes) == [("INSERT", key, "a") for key in (1, 2, 3)]
    assert not any(page.gap for page in pages)
    reader.close()
    alone = source_of(DATABASE, primary)
    reader = open_at(alone, position)
    changes, pages = read_until(reader, lambda found: len(found) == 1, passing=True)
    assert [(page.gap.reason, page.gap.begin, page.gap.end) for page in pages if page.gap] == [
        ("purged", position, {"gtid": f"MySQL56/{purged}"})
    ]
    assert short(changes) == [("INSERT", 3, "a")]
    reader.close()


def test_a_replica_that_lags_or_is_promoted_is_left_for_a_better_server(
    primary: MySQL, replica: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.mysql.reader._ROLE_EVERY", 0.2)
    source = source_of(DATABASE, replica, primary, max_lag=2.0)
    reader = opened(source)
    with connected(replica) as server:
        role = role_of(server)
        assert (role.is_replica, role.is_read_only) == (True, True)
        assert role.lag < 30
        replica.execute("STOP REPLICA SQL_THREAD")
        assert role_of(server).lag == float("inf")
        replica.execute("START REPLICA SQL_THREAD")
    put(primary, 1)
    read_until(reader, lambda found: len(found) == 1)
    assert reader.address == replica.address
    replica.stop_replication()
    put(primary, 2)
    read_until(reader, lambda found: len(found) == 1, passing=True)
    assert reader.address == primary.address
    source.reload(config(DATABASE, {"-": [replica.address]}, max_lag=2.0))
    replica.start_replication()
    replica.wait_for(primary.gtid)
    put(primary, 3)
    read_until(reader, lambda found: len(found) == 1 and reader.address == replica.address, passing=True)
    reader.close()


def test_what_only_a_replica_has_breaks_no_position(primary: MySQL, replica: MySQL) -> None:
    """Its own transactions are under its own UUID: other servers have none of them, now or later."""
    source = source_of(DATABASE, replica, primary)
    reader = opened(source)
    put(primary, 1)
    read_until(reader, lambda found: len(found) == 1)
    replica.execute("CREATE DATABASE scratch")
    put(primary, 2)
    changes, pages = read_until(reader, lambda found: len(found) == 1)
    position = pages[-1].position or {}
    assert f"{replica.uuid}:1" in position["gtid"]
    assert changes[0].token
    assert changes[0].token.position == f"MySQL56/{primary.gtid}"
    reader.close()
    replica.kill()
    again = resume(source, position)
    put(primary, 3)
    changes, pages = read_until(again, lambda found: len(found) == 1, passing=True)
    assert short(changes) == [("INSERT", 3, "a")]
    assert not any(page.gap for page in pages)
    again.close()


def test_a_former_primary_tells_positions_of_all_servers(primary: MySQL, replica: MySQL) -> None:
    """I5: what it wrote while it was the primary is under its own UUID, and all have it."""
    before = {"gtid": f"MySQL56/{primary.gtid}"}
    put(primary, 1, 2)
    replica.wait_for(primary.gtid)
    replica.promote()
    primary.replicate_from(replica)
    put(replica, 3)
    primary.wait_for(replica.gtid)
    reader = open_at(source_of(DATABASE, primary, replica), before)
    changes, pages = read_until(reader, lambda found: len(found) == 3)
    assert isinstance(reader, BinlogShardReader)
    assert reader.address == primary.address
    assert changes[-1].token
    assert changes[-1].token.position == f"MySQL56/{replica.gtid}"
    assert "local" not in (pages[-1].position or {})
    for one, two in pairwise(changes):
        assert compare(one.token, two.token) is Order.OLDER
    with watch(primary) as watcher, closing(primary.connect(USER)) as connection:
        answer = TokenQueries(connection, watcher).execute(SELECT, (3,), compare_event_token=changes[-1].token)
        assert answer.fresher
        primary.execute("CREATE DATABASE scratch")
        put(replica, 4)
        primary.wait_for(replica.gtid)
        assert wait_for(watcher, replica.gtid).position == f"MySQL56/{replica.gtid}"
    reader.close()


def test_tables_that_are_emptied_or_gone_are_told(primary: MySQL) -> None:
    """I1, and those that are filled by the statement that makes them."""
    source = source_of(DATABASE, primary)
    reader = opened(source)
    put(primary, 1)
    primary.execute(f"TRUNCATE {DATABASE}.t")
    put(primary, 2)
    primary.execute(f"CREATE TABLE {DATABASE}.copied (PRIMARY KEY (id)) AS SELECT * FROM {DATABASE}.t")
    primary.execute(f"UPDATE {DATABASE}.copied SET id = 3")
    primary.execute(f"DROP TABLE {DATABASE}.copied")
    changes, _ = read_to_head(reader)
    assert short(changes) == [
        ("INSERT", 1, "a"),
        ("TRUNCATE", None, None),
        ("INSERT", 2, "a"),
        ("INSERT", 2, "a"),
        ("DELETE", 2, None),
        ("INSERT", 3, "a"),
        ("TRUNCATE", None, None),
    ]
    reader.close()


def test_tagged_gtids_end_reading_with_what_to_do(primary: MySQL) -> None:
    """I8: `AUTOMATIC:tag` is for sessions; once it was used, no server of the shard can be read."""
    source = source_of(DATABASE, primary)
    reader = opened(source)
    put(primary, 1)
    read_until(reader, lambda found: len(found) == 1)
    with closing(primary.connect()) as connection, connection.cursor() as cursor:
        try:
            cursor.execute("SET gtid_next = 'AUTOMATIC:mine'")
        except pymysql.err.MySQLError:
            pytest.skip("tags are of MySQL 8.4 and later")
        cursor.execute(f"INSERT {DATABASE}.t VALUES (2, 'b')")
    with pytest.raises(RelayError, match="tag"):
        read_until(reader, lambda found: len(found) == 1, passing=True)
    reader.close()
    with pytest.raises(RelayError, match=r"tags \(mine\)"):
        source_of(DATABASE, primary)


def test_a_group_of_group_replication_is_read() -> None:
    """I9: what it lacks of what was read it may still have in its queue, so that is no loss."""
    here = f"127.0.0.1:{free_port()}"
    options: dict[str, str | int] = {"plugin-load-add": "group_replication.so", "performance-schema": 1}
    options |= {"loose-group-replication-group-name": GROUP, "loose-group-replication-start-on-boot": 0}
    options |= {"loose-group-replication-local-address": here, "loose-group-replication-group-seeds": here}
    with MySQL(options=options) as server:
        if not server.execute("SELECT 1 FROM information_schema.PLUGINS WHERE PLUGIN_NAME = 'group_replication'"):
            pytest.skip("this MySQL has no group replication")
        server.execute("SET GLOBAL group_replication_bootstrap_group = ON")
        server.execute("START GROUP_REPLICATION")
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v VARCHAR(100))")
        source = source_of(DATABASE, server)
        reader = opened(source)
        put(server, 1)
        changes, _ = read_until(reader, lambda found: len(found) == 1)
        assert changes[0].token
        assert GROUP in changes[0].token.position
        reader.close()
        ahead = resume(source, {"gtid": f"MySQL56/{server.gtid},{server.uuid}:999"})
        for _ in range(4):
            page = ahead.read()
            assert page.gap is None
            assert "is behind" in (page.failed or "")
            time.sleep(0.5)
        ahead.close()

"""Shards whose servers die, fall behind, lose transactions and purge binlogs, of both flavours."""

from __future__ import annotations

import random
import re
import threading
import time
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

from relay.change import Change
from relay.mysql.reader import BinlogShardReader
from relay.records import Gap
from relay.services.mariadb import MariaDB
from relay.source import Page
from relay.token import Order, compare
from tests.mysql.kept_binlogs import purge_binlogs
from tests.mysql.orders import DATABASE, load, opened, put
from tests.mysql.reading import is_mysql, position_of
from tests.mysql.server import MySQL, mostly_on_mariadb
from tests.mysql.shards import begin, config, ids, open_at, read_to_head, read_until, resume, short, source_of
from tests.reads import pages_of, reason
from tests.waiting import wait_until

pytestmark = pytest.mark.services

OTHER_SERVER = (
    "MySQL: its GTIDs, purges, resets, roles and former primaries are in other tests here and in"
    " test_shards_mysql_only.py, and what chooses the server is tried on MariaDB"
)
ON_MARIADB = mostly_on_mariadb(OTHER_SERVER)
MORE = pytest.mark.faults("another order of kills and closed readers: the same test with one")


@ON_MARIADB
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=MORE)])
def test_a_failover_under_load_neither_loses_nor_duplicates(
    primary: Any, replica: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I3: the primary is killed, its replica is promoted, and readers are closed at random."""
    random_ = random.Random(seed)
    source = source_of(DATABASE, primary, replica)
    position = begin(source)["-"]
    stop = threading.Event()
    writer = load(primary, stop, seed)
    monkeypatch.setattr("relay.mysql.transactions.STREAMED_PAGE", 2_000)
    found: list[Change] = []
    state = {"reader": open_at(source, position)}

    def step() -> None:
        page = state["reader"].read()
        if not isinstance(page, Page):
            time.sleep(0.1)
            return
        assert page.gap is None
        found.extend(page.changes)
        if random_.random() < 0.1:
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
    writer = load(replica, stop, seed + 100)
    for _ in range(40):
        step()
    stop.set()
    writer.join()
    deadline = time.monotonic() + 600
    while state["reader"].transactions.executed_position != position_of(replica):  # type: ignore[attr-defined]
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


@pytest.mark.parametrize(
    ("kind", "written"),
    [(MariaDB, 1), (MariaDB, 3), (MySQL, 1), pytest.param(MySQL, 3, marks=pytest.mark.faults(OTHER_SERVER))],
    indirect=["kind"],
)
def test_transactions_that_a_failover_lost_are_a_gap(primary: Any, replica: Any, written: int) -> None:
    """I9: also once the new primary has as many transactions as were read."""
    source = source_of(DATABASE, primary, replica)
    reader = opened(source)
    put(primary, 1, 2)
    replica.wait_for(primary.gtid)
    shared = primary.gtid
    replica.execute("STOP REPLICA")
    put(primary, 3, 4, v="lost")
    changes, _ = read_until(reader, lambda found: len(found) == 4)
    lost = primary.gtid
    primary.kill()
    replica.promote()
    put(replica, *range(5, 5 + written))
    changes, pages = read_until(reader, lambda found: len(found) == written, passing=True)
    gaps = [page.gap for page in pages if page.gap]
    assert [(gap.reason, gap.begin, gap.end) for gap in gaps] == [
        ("failover lost transactions", {"gtid": position_of(primary, lost)}, {"gtid": position_of(primary, shared)})
    ]
    assert short(changes) == [("INSERT", key, "a") for key in range(5, 5 + written)]
    assert not pages[[bool(page.gap) for page in pages].index(True)].changes
    reader.close()


@pytest.mark.parametrize("kind", [MariaDB], indirect=True)
def test_a_standby_whose_replication_is_set_up_again_is_not_taken_for_a_primary(primary: Any, replica: Any) -> None:
    """I9, I10: while the primary does not answer, nothing shows that transactions are lost, so the reader waits."""
    source = source_of(DATABASE, primary, replica)
    reader = opened(source)
    put(primary, 1)
    replica.wait_for(primary.gtid)
    replica.execute("STOP REPLICA")
    put(primary, 2)
    read_until(reader, lambda found: len(found) == 2)
    primary.kill()
    replica.execute("RESET SLAVE ALL")
    until = time.monotonic() + 4  # much longer than it takes until a loss counts as certain
    while time.monotonic() < until:
        assert [page.gap for page in pages_of([reader.read()]) if page.gap] == []
        time.sleep(0.1)
    primary.restart()
    replica.replicate_from(primary)
    put(primary, 3)
    changes, _ = read_until(reader, lambda found: len(found) == 1, passing=True)
    assert short(changes) == [("INSERT", 3, "a")]
    reader.close()


@pytest.mark.parametrize("kind", [MariaDB], indirect=True)
@pytest.mark.parametrize("rotated", [False, True])
def test_a_hole_in_the_binlog_at_the_position_is_a_gap(primary: Any, rotated: bool) -> None:
    """I9: the server has its own transactions before and after the last one that was read, but not that one."""
    put(primary, 1)
    domain, server, sequence = primary.gtid.split("-")
    with primary.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET gtid_seq_no = {int(sequence) + 9}")
        cursor.execute(f"INSERT {DATABASE}.t VALUES (2, 'a')")
    begin_ = {"gtid": f"MariaDB/{domain}-{server}-{int(sequence) + 5}"}
    end = {"gtid": position_of(primary)}
    if rotated:
        primary.execute("FLUSH BINARY LOGS")
        put(primary, 3)
    reader = open_at(source_of(DATABASE, primary), begin_)
    reads = [reader.read()]
    deadline = time.monotonic() + 600
    while not (gaps := [page.gap for page in pages_of(reads) if page.gap]):
        time.sleep(0.1)
        reads.append(reader.read())
        assert time.monotonic() < deadline, reads[-1]
    (gap,) = gaps
    assert (gap.reason, gap.begin, gap.end) == ("failover lost transactions", begin_, end)
    put(primary, 4)
    changes, pages = read_until(reader, lambda found: len(found) == 1 + rotated, passing=True)
    assert short(changes) == [("INSERT", key, "a") for key in ([3, 4] if rotated else [4])]
    assert not any(page.gap for page in pages)
    reader.close()


@pytest.mark.parametrize("kind", [MariaDB], indirect=True)
@pytest.mark.parametrize("written", [1, 3])
def test_a_transaction_read_in_part_that_a_failover_lost_is_a_gap(
    primary: Any, replica: Any, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: some of its rows were published, and the rest never comes. Nothing waits for its end then."""
    source = source_of(DATABASE, primary, replica)
    reader = opened(source)
    put(primary, 1)
    replica.wait_for(primary.gtid)
    shared = primary.gtid
    replica.execute("STOP REPLICA")
    monkeypatch.setattr("relay.mysql.transactions.STREAMED_PAGE", 100)
    primary.execute(f"INSERT {DATABASE}.t SELECT seq, REPEAT('x', 90) FROM {DATABASE}.seq_10_to_30")
    changes, pages = read_until(reader, lambda found: len(found) > 3)
    half = pages[-1].position or {}
    assert half["transaction"] == primary.gtid
    primary.kill()
    reader.close()
    replica.promote()
    put(replica, *range(1000, 1000 + written))
    again = resume(source, half)
    assert isinstance(again, BinlogShardReader)
    changes, pages = read_until(again, lambda found: len(found) == written, passing=True)
    assert [(page.gap.reason, page.gap.begin, page.gap.end) for page in pages if page.gap] == [
        ("failover lost transactions", half, {"gtid": position_of(primary, shared)})
    ]
    assert short(changes) == [("INSERT", key, "a") for key in range(1000, 1000 + written)]
    assert again.transactions.is_between_transactions
    again.close()


@ON_MARIADB
def test_a_replica_that_is_behind_is_waited_for(primary: Any, replica: Any) -> None:
    """It may still receive what was read."""
    source = source_of(DATABASE, primary, replica)
    reader = opened(source)
    replica.execute("STOP REPLICA")
    put(primary, 1, 2)
    read_until(reader, lambda found: len(found) == 2)
    position = reader.transactions.position.to_json()
    primary.kill()
    failures = []
    for _ in range(4):
        read = reader.read()
        assert not any(page.gap for page in pages_of([read]))
        failures.append(reason(read))
    assert f"{replica.address} is behind" in failures[-1]
    assert position["gtid"] in failures[-1]
    primary.restart()
    replica.execute("START REPLICA")
    put(primary, 3)
    changes, pages = read_until(reader, lambda found: len(found) == 1, passing=True)
    assert short(changes) == [("INSERT", 3, "a")]
    assert not any(page.gap for page in pages)
    reader.close()


@ON_MARIADB
def test_purged_binlogs_are_read_from_a_server_that_has_them(primary: Any, replica: Any) -> None:
    source = source_of(DATABASE, primary, replica)
    position = begin(source)["-"]
    put(primary, 1, 2)
    replica.wait_for(primary.gtid)
    purge_binlogs(primary)
    put(primary, 3)
    reader = open_at(source, position)
    changes, pages = read_until(reader, lambda found: len(found) == 3, passing=True)
    assert short(changes) == [("INSERT", 1, "a"), ("INSERT", 2, "a"), ("INSERT", 3, "a")]
    assert not any(page.gap for page in pages)
    reader.close()


def test_binlogs_that_all_servers_have_purged_are_a_gap(primary: Any) -> None:
    """I9: what follows the gap is read."""
    source = source_of(DATABASE, primary)
    position = begin(source)["-"]
    put(primary, 1, 2)
    purged = primary.gtid
    purge_binlogs(primary)
    put(primary, 3)
    reader = open_at(source, position)
    changes, pages = read_until(reader, lambda found: len(found) == 1, passing=True)
    assert [(page.gap.reason, page.gap.begin, page.gap.end) for page in pages if page.gap] == [
        ("purged", position, {"gtid": position_of(primary, purged)})
    ]
    assert short(changes) == [("INSERT", 3, "a")]
    reader.close()
    again = open_at(source, position)
    gap = next(page.gap for page in pages_of(again.read() for _ in range(5)) if page.gap)
    assert gap.id == next(page.gap for page in pages if page.gap).id
    again.close()


@ON_MARIADB
def test_a_replica_that_lags_is_left_for_a_better_server(
    primary: Any, replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.mysql.current_server._ROLE_EVERY", 0.2)
    source = source_of(DATABASE, replica, primary, max_lag=60.0)  # a replica that has stopped is behind without end
    replica.wait_for(primary.gtid)  # or the primary would be the better one from the start
    reader = opened(source)
    put(primary, 1)
    read_until(reader, lambda found: len(found) == 1)
    assert reader.server.address == replica.address
    replica.execute("STOP REPLICA")
    put(primary, 2)
    read_until(reader, lambda found: len(found) == 1, passing=True)
    assert reader.server.address == primary.address
    source.reload(config(DATABASE, {"-": [replica.address]}, max_lag=60.0))
    replica.execute("START REPLICA")
    replica.wait_for(primary.gtid)
    put(primary, 3)
    read_until(reader, lambda found: len(found) == 1 and reader.server.address == replica.address, passing=True)
    reader.close()


def test_transactions_that_only_a_replica_has_do_not_break_positions(primary: Any, replica: Any) -> None:
    """They have a domain or a UUID of their own: other servers will never have them."""
    source = source_of(DATABASE, replica, primary)
    reader = opened(source)
    put(primary, 1)
    read_until(reader, lambda found: len(found) == 1)
    with replica.connect() as connection, connection.cursor() as cursor:
        if not is_mysql(replica):
            cursor.execute("SET gtid_domain_id = 9")
        cursor.execute("CREATE DATABASE scratch")
    put(primary, 2)
    changes, pages = read_until(reader, lambda found: len(found) == 1)
    position = pages[-1].position or {}
    own = f"{replica.uuid}:1" if is_mysql(replica) else f"9-{replica.server_id}-1"
    assert own in position["gtid"]
    assert changes[0].token
    assert changes[0].token.position == position_of(primary)
    reader.close()
    replica.kill()
    again = resume(source, position)
    put(primary, 3)
    changes, pages = read_until(again, lambda found: len(found) == 1, passing=True)
    assert short(changes) == [("INSERT", 3, "a")]
    assert not any(page.gap for page in pages)
    assert changes[0].token
    assert changes[0].token.position == position_of(primary)
    again.close()


def test_binlogs_that_are_reset_while_they_are_read_are_a_gap(primary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: the server gives the same numbers out again, and the connection from before stays open and silent."""
    monkeypatch.setattr("relay.mysql.current_server._ROLE_EVERY", 0.3)
    reader = opened(source_of(DATABASE, primary))
    put(primary, *range(5))
    read_to_head(reader)
    primary.execute("RESET BINARY LOGS AND GTIDS" if is_mysql(primary) else "RESET MASTER")
    put(primary, 10)

    def gap() -> Gap | None:
        result = reader.read()
        return result.gap if isinstance(result, Page) else None

    found = wait_until(gap, 10)
    assert found.reason == "failover lost transactions"
    assert found.end == {"gtid": position_of(primary)}
    put(primary, 11)
    changes, _ = read_to_head(reader, passing=True)
    assert short(changes) == [("INSERT", 11, "a")]
    reader.close()


@pytest.mark.parametrize("kind", [MariaDB], indirect=True)
def test_a_domain_that_was_read_and_deleted_is_not_a_loss_and_one_that_was_not_read_is(primary: Any) -> None:
    """I9: also for a reader that connects again. A server deletes a domain that only binlogs before the oldest had."""
    source = source_of(DATABASE, primary)
    start = begin(source)["-"]

    def write(*keys: int) -> None:
        with closing(primary.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute("SET gtid_domain_id = 9")
            for key in keys:
                cursor.execute(f"INSERT {DATABASE}.t VALUES ({key}, 'a')")

    write(1, 2)
    with closing(open_at(source, start)) as reader:
        changes, pages = read_to_head(reader)
        assert len(changes) == 2
        early = pages[-1].position or {}
    write(3)
    with closing(open_at(source, early)) as reader:
        changes, pages = read_to_head(reader)
        assert len(changes) == 1
    late = pages[-1].position or {}
    purge_binlogs(primary)
    primary.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (9)")
    assert not re.search(r"\b9-\d+-", primary.gtid)
    put(primary, 4)
    with closing(open_at(source, late)) as reader:
        changes, pages = read_to_head(reader, passing=True)
        assert [page.gap for page in pages if page.gap] == []
        assert short(changes) == [("INSERT", 4, "a")]
    with closing(open_at(source, early)) as reader:
        assert len([page.gap for page in read_to_head(reader, passing=True)[1] if page.gap]) == 1

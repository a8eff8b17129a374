"""Transactions that a crash of MariaDB has cut off in its binlog, read in part before or after it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import pytest

from relay.change import Change
from relay.mysql.source import MySQLSource
from relay.services.mariadb import MariaDB
from relay.source import Page, ShardReader
from tests.mysql.kept_binlogs import binlogs
from tests.mysql.orders import DATABASE, put
from tests.mysql.reading import position_of
from tests.mysql.shards import begin, open_at, read_until, resume, short, source_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.parametrize("kind", [MariaDB], indirect=True)]
# Bytes that the crash removes from the end of the file.
CUT = 5000
cuts = pytest.mark.parametrize("cut", [31, CUT], ids=["before its commit", "in its last event"])

Position = Mapping[str, Any]
HALF = (2, 3, 4)
"""The keys of the transaction that is cut off: each row is an event of its own, and fills a page."""
NEXT = (5, 6, 7, 8)
"""The keys of the transaction that gets its GTID."""


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.mysql.transactions.STREAMED_PAGE", 5_000)


def write_half(server: MariaDB, at: float = 0.0) -> None:
    """Write the transaction, which takes some seconds by the clock of its session, from ``at`` on."""
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET timestamp = {int(at or time.time() - 60)}")
        cursor.execute("BEGIN")
        for key in HALF:
            cursor.execute(f"INSERT t VALUES ({key}, REPEAT('v', 10000))")
            cursor.execute("SET timestamp = UNIX_TIMESTAMP() + 2")
        connection.commit()


def crash(server: MariaDB, cut: int) -> None:
    """Kill a server whose last transaction reaches the disk only in part, and start it again."""
    log = server.data / binlogs(server)[-1]
    server.kill()
    os.truncate(log, log.stat().st_size - cut)
    server.restart()


def write_next(server: MariaDB) -> None:
    server.execute(f"INSERT {DATABASE}.t SELECT seq, 'a' FROM {DATABASE}.seq_{NEXT[0]}_to_{NEXT[-1]}")


def pages(source: MySQLSource, position: Position) -> Iterator[Page]:
    """Yield the pages after ``position``, each from a reader of its own, with the position of the one before it."""
    while True:
        with closing(resume(source, position)) as reader:
            page = wait_until(partial(next_content, reader))
        yield page
        position = page.position or {}


def next_content(reader: ShardReader) -> Page | None:
    read = reader.read()
    return read if isinstance(read, Page) and (read.changes or read.gap) else None


def up_to(source: MySQLSource, position: Position, key: int) -> list[Page]:
    found: list[Page] = []
    for page in pages(source, position):
        found.append(page)
        if key in keys(page.changes):
            return found
    raise AssertionError("unreachable")


def read_half(source: MySQLSource, start: Position) -> list[Page]:
    """Read from before the transaction up to a page that ends in it."""
    with closing(open_at(source, start)) as reader:
        return read_until(reader, lambda found: HALF[0] in keys(found), passing=True)[1]


def keys(changes: Iterable[Change]) -> list[int]:
    return [key for _, key, _ in short(changes)]


@pytest.fixture
def widened(primary: MariaDB) -> MariaDB:
    primary.execute(f"ALTER TABLE {DATABASE}.t MODIFY v LONGTEXT")
    return primary


@cuts
def test_a_transaction_that_never_committed_is_a_gap_wherever_reading_is_resumed(widened: MariaDB, cut: int) -> None:
    """I1, I9: the server gives its GTID to another one, none of whose rows were read."""
    source = source_of(DATABASE, widened)
    start = begin(source)["-"]
    put(widened, 1)
    before = {"gtid": position_of(widened)}
    write_half(widened)
    live = up_to(source, start, HALF[-2])
    assert [key for page in live for key in keys(page.changes)] == [1, *HALF[:2]]
    inside = [page.position for page in live if page.position and "transaction" in page.position]
    assert len(inside) == 2
    crash(widened, cut)
    write_next(widened)
    for position in inside:
        again = up_to(source, position, NEXT[-1])
        assert [(page.gap.reason, page.gap.begin, page.gap.end) for page in again if page.gap] == [
            ("failover lost transactions", position, before)
        ]
        assert [key for page in again for key in keys(page.changes)] == list(NEXT)
    half = read_half(source, start)
    resumed = [*half, *up_to(source, half[-1].position or {}, NEXT[-1])]
    with closing(open_at(source, start)) as reader:
        _, through = read_until(reader, lambda found: NEXT[-1] in keys(found), passing=True)
    for found in (resumed, through):
        assert [page.gap.end for page in found if page.gap] == [before]
        assert [key for page in found for key in keys(page.changes) if key not in HALF] == [1, *NEXT]


@cuts
def test_its_gap_is_the_same_one_until_it_is_decided(widened: MariaDB, cut: int) -> None:
    """I9: under `on_gap: fail` nothing after the gap is committed, and the relay starts again before it."""
    source = source_of(DATABASE, widened)
    start = begin(source)["-"]
    write_half(widened)
    position = up_to(source, start, HALF[0])[-1].position or {}
    crash(widened, cut)
    write_next(widened)
    gaps = [next(pages(source, position)).gap for _ in range(3)]
    assert {gap.id for gap in gaps if gap} == {gaps[0].id if gaps[0] else ""}
    assert all(gaps)


@cuts
@pytest.mark.parametrize("first", [0, 1], ids=["the replica first", "the primary first"])
def test_a_replicas_copy_of_a_committed_transaction_is_not_a_gap(
    widened: MariaDB, replica: MariaDB, cut: int, first: int
) -> None:
    """I3, I9: it replicates the transaction again, and the primary has it all the time."""
    servers = [replica, widened]
    sources = [source_of(DATABASE, *servers), source_of(DATABASE, *reversed(servers))]
    start = begin(sources[0])["-"]
    put(widened, 1)
    widened.execute("FLUSH BINARY LOGS")
    before = widened.gtid
    write_half(widened)
    replica.wait_for(widened.gtid)
    runs = [up_to(sources[first], start, HALF[-2])]
    crash(replica, cut)
    runs.append(read_half(sources[0], start))
    replica.execute("STOP SLAVE")
    replica.execute(f"SET STATEMENT sql_log_bin = 0 FOR DELETE FROM {DATABASE}.t WHERE id IN {HALF}")
    replica.execute(f"SET GLOBAL gtid_slave_pos = '{before}'")
    replica.execute("START SLAVE")
    replica.wait_for(widened.gtid)
    put(widened, 9)
    for source, run in product(sources, runs):
        for count in range(1, len(run) + 1):
            found = [*run[:count], *up_to(source, run[count - 1].position or {}, 9)]
            assert [page.gap for page in found if page.gap] == []
            assert [key for page in found for key in keys(page.changes)] == [1, *HALF, 9]


def test_a_transaction_that_never_committed_is_a_gap_also_where_the_next_one_is_read_from_a_replica(
    widened: MariaDB, replica: MariaDB
) -> None:
    """I1, I9: the replica has only the second one with its GTID."""
    start = begin(source_of(DATABASE, widened))["-"]
    put(widened, 1)
    before = {"gtid": position_of(widened)}
    replica.wait_for(widened.gtid)
    replica.execute("STOP SLAVE")
    write_half(widened)
    position = up_to(source_of(DATABASE, widened), start, HALF[-2])[-1].position or {}
    crash(widened, CUT)
    write_next(widened)
    replica.execute("START SLAVE")
    replica.wait_for(widened.gtid)
    for servers in ([replica, widened], [widened, replica]):
        found = up_to(source_of(DATABASE, *servers), position, NEXT[-1])
        assert [(page.gap.begin, page.gap.end) for page in found if page.gap] == [(position, before)]
        assert [key for page in found for key in keys(page.changes)] == list(NEXT)


def test_a_failover_in_the_middle_of_a_transaction_is_not_a_gap(widened: MariaDB, replica: MariaDB) -> None:
    """I3, I9: whether its primary is gone, or is back without the end of it."""
    source = source_of(DATABASE, widened, replica)
    start = begin(source)["-"]
    write_half(widened)
    replica.wait_for(widened.gtid)
    position = up_to(source, start, HALF[-2])[-1].position or {}
    log, listed = widened.data / binlogs(widened)[-1], source_of(DATABASE, replica, widened)
    widened.kill()
    gone = next(pages(source, position))
    os.truncate(log, log.stat().st_size - CUT)
    widened.restart()
    for page in (gone, next(pages(listed, position))):
        assert page.gap is None
        assert keys(page.changes) == [HALF[-1]]


def test_two_servers_with_one_id_may_have_a_transaction_in_different_files(kind: type[MariaDB]) -> None:
    """I3, I9: as nodes of Galera have, and copied servers."""
    with kind(options={"server-id": 7}) as one, kind(options={"server-id": 7}) as two:
        for server in (one, two):
            server.execute(f"CREATE DATABASE {DATABASE}")
            server.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v LONGTEXT)")
        two.execute("FLUSH BINARY LOGS")
        two.execute("FLUSH BINARY LOGS")
        source = source_of(DATABASE, one)
        start = begin(source)["-"]
        at = time.time() - 60
        for server in (one, two):
            write_half(server, at)
        two.execute("FLUSH BINARY LOGS")
        position = up_to(source, start, HALF[-2])[-1].position or {}
        for servers in ([two, one], [two]):
            found = up_to(source_of(DATABASE, *servers), position, HALF[-1])
            assert [page.gap for page in found if page.gap] == []
            assert [key for page in found for key in keys(page.changes)] == [HALF[-1]]

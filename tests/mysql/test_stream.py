"""The stream of a real server, MariaDB or MySQL: what is the same of both."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from relay.gtid import parse
from relay.mysql.binlog import files
from relay.mysql.binlog.events import Commit, Heartbeat, Rotate, Rows, Statement, TransactionBegin
from relay.mysql.errors import BinlogPurged, Interrupted
from tests.mysql.reading import NUMBERS, connected, reading, session

pytestmark = pytest.mark.services

# What bounds a recursive query.
LIMIT = {"MariaDB": "max_recursive_iterations", "MySQL": "cte_max_recursion_depth"}


@pytest.fixture(params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def own(kind: Any) -> Iterator[Any]:
    """A server that a test may break."""
    with kind(options={"max-allowed-packet": "64M"}) as server:
        yield server


class TestATransaction:
    def test_of_another_database_is_told_without_its_rows(self, server: Any, unique: str) -> None:
        """I4: the position goes on."""
        with session(server, unique) as execute, reading(server, "another") as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            execute("INSERT INTO t VALUES (1)")
            assert [type(each) for each in reader.told()] == [
                TransactionBegin,
                Statement,
                Commit,
                TransactionBegin,
                Commit,
            ]
            assert reader.stream.executed == parse(server.gtid)

    def test_of_ten_thousand_rows_takes_the_memory_of_few(self, server: Any, unique: str) -> None:
        """I11."""
        with session(server, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload CHAR(200))")
            execute(f"SET {LIMIT[type(server).__name__]} = 100000")
            with reading(server, unique) as reader:
                execute("INSERT INTO t " + NUMBERS.format(10000, ", repeat('x', 200)"))
                execute("DELETE FROM t")
                tracemalloc.start()
                try:
                    count = sum(len(each.changes) for each in reader.each() if isinstance(each, Rows))
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
        assert count == 20_000
        assert peak < 4 << 20


class TestAStream:
    def test_goes_on_exactly_after_any_transaction(self, server: Any, unique: str) -> None:
        """I1, I3."""
        with session(server, unique) as execute, reading(server, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            for number in range(5):
                execute(f"INSERT INTO t VALUES ({number})")
            positions = [each.position for each in reader.told() if isinstance(each, TransactionBegin)][1:]
            for number, position in enumerate(positions):
                with reading(server, unique, start=parse(position)) as again:
                    assert again.rows() == [(rest,) for rest in range(number + 1, 5)]

    def test_tells_that_nothing_waits_and_when(self, server: Any, unique: str) -> None:
        """I10."""
        with reading(server, unique) as reader:
            told: list[float] = []
            while not told:  # a server that has just started does not know the time of its log
                told = [
                    each.timestamp for each in reader.stream.read(5) if isinstance(each, Heartbeat) and each.timestamp
                ]
            (now,) = server.execute("SELECT UNIX_TIMESTAMP(NOW(6))")[0]
        assert now - 60 < told[-1] < now

    def test_ends_when_the_server_does_and_goes_on_when_it_is_back(self, own: Any, unique: str) -> None:
        """I1."""
        with session(own, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            with reading(own, unique) as reader:
                execute("INSERT INTO t VALUES (1)")
                assert reader.rows() == [(1,)]
                executed = reader.stream.executed
                own.kill()
                with pytest.raises(Interrupted):
                    reader.until_it_ends()
        own.restart()
        with session(own, unique) as execute, reading(own, unique, start=executed) as reader:
            execute("INSERT INTO t VALUES (2)")
            assert reader.rows() == [(2,)]

    def test_has_rows_of_more_than_a_packet(self, own: Any, unique: str) -> None:
        """I1."""
        sizes = [(1 << 24) - 100, (1 << 24) - 1, 1 << 24, 20_000_000]
        with session(own, unique) as execute, reading(own, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload LONGBLOB)")
            for size in sizes:
                execute(f"INSERT INTO t VALUES ({size}, repeat('x', {size}))")
            rows = reader.rows()
        assert [(row[0], len(row[1])) for row in rows if row] == [(size, size) for size in sizes]

    def test_follows_the_log_into_the_next_file(self, own: Any, unique: str) -> None:
        with session(own, unique) as execute, reading(own, unique) as reader:
            execute("CREATE TABLE t (id INT PRIMARY KEY)")
            execute("INSERT INTO t VALUES (1)")
            before = own.gtid
            execute("FLUSH BINARY LOGS")
            execute("INSERT INTO t VALUES (2)")
            found = list(reader.each())
            with connected(own) as there:
                looked = [files.look_into(there, name) for name in there.binlogs()]
                with pytest.raises(BinlogPurged):
                    files.look_into(there, "binlog.999999")
        assert [event.changes[0][1] for event in found if isinstance(event, Rows)] == [(1,), (2,)]
        assert [event.file for event in found if isinstance(event, Rotate)][-1] == own.binlogs[-1]
        assert looked[-1].before == parse(before)
        assert not looked[0].before
        assert looked[0].begun <= looked[-1].begun

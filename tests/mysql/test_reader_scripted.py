"""What a reader does with answers that real servers give only for moments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.gtid import GtidSet, parse
from relay.mysql.binlog.events import BinlogEvent, Heartbeat, Statement
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Denied, Interrupted, NoTable
from relay.mysql.positions import BinlogPosition
from relay.mysql.reader import BinlogShardReader
from relay.mysql.relayed_tables import Layouts, LoggedStatements
from relay.mysql.servers import ReadableServer, ShardServers
from relay.mysql_dialect.statements import classify
from relay.records import Shard
from tests.mysql.fake_servers import A, B, FakeMariaDB, FakeServer, FakeShard
from tests.mysql.scripted_events import Binlog, transaction
from tests.mysql.shards import config
from tests.reads import pages_of, read_page
from tests.waiting import wait_until


def reader(servers: ShardServers, position: Mapping[str, Any], *events: list[BinlogEvent]) -> BinlogShardReader:
    return BinlogShardReader(
        Shard("-"),
        BinlogPosition.from_json(position),
        servers,
        Layouts(config("shop", {"-": ["one:3306"]})),
        Binlog(iter(events)),
        clock=time.time,
    )


def test_a_table_that_an_alteration_makes_unknown_is_not_to_be_read_again() -> None:
    """I10: the relay would end with a snapshot of a table without a primary key."""
    followed = Layouts(config("shop", {"-": ["one:3306"]}, tables=["t"], on_alter="resnapshot")).followed()
    for created, reread in (("CREATE TABLE t (id INT PRIMARY KEY)", {"t"}), ("DROP TABLE t", set())):
        followed.apply(classify(created, "shop"), created, 0)
        sql = r"ALTER TABLE t ADD c INT DEFAULT 5 COMMENT 'x\\y'"
        applied = followed.apply(classify(sql, "shop"), sql, 0)
        assert applied is not None
        assert ({*applied.reread}, {*applied.unseen}) == (reread, {"t"})


def test_of_a_table_that_is_left_out_nothing_is_noted_unless_it_was_relayed_before() -> None:
    """I12: no snapshot could read it."""
    layouts = Layouts(config("shop", {"-": ["one:3306"]}, on_alter="resnapshot"))
    statements = LoggedStatements(layouts)

    def noted() -> list[str]:
        statements.begin()
        sql = "ALTER TABLE odd ADD c INT DEFAULT 5"
        statements.read(Statement(sql, "shop", 1, 0), classify(sql, "shop"), parse("MariaDB/0-1-1"), "0-1-2")
        (applied,) = statements.published
        return [*applied.unseen, *applied.reread]

    layouts.skipped.skip("odd", "has no primary key", lacks_key=True)
    layouts._keyed = frozenset({"odd"})  # by now
    assert noted() == []
    layouts.remember({"odd": [["id", "long"]]}, {})
    assert noted() == ["odd", "odd"]


def warnings_of_failed_reads(error: Unavailable, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of 30 reads in a row, each of which ends with ``error``."""

    class Failing:
        def __call__(self, server: object, executed: object) -> Failing:
            return self

        def read(self, timeout: float) -> list[BinlogEvent]:
            raise error

        def close(self) -> None:
            """Nothing is open."""

    shard, position = FakeShard(FakeMariaDB("0-1-51", "0-1-51")), BinlogPosition.from_json({"gtid": "MariaDB/0-1-50"})
    layouts = Layouts(config("shop", {"-": ["one:3306"]}))
    reading = BinlogShardReader(Shard("-"), position, shard.servers, layouts, Failing(), clock=time.time)
    for _ in range(30):
        reading.read()
    reading.close()
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def test_a_lost_connection_is_named_instead_of_warned_of_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """I10"""
    said = warnings_of_failed_reads(Interrupted("one:3306: the server closed the connection"), caplog)
    assert len(said) == 10
    assert "its connection is lost every few seconds. Look for a time limit on connections" in said[-1]


def test_what_a_server_refuses_again_and_again_is_not_called_a_lost_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I10: each error says what to do."""
    said = warnings_of_failed_reads(Unavailable("one:3306: binlog truncated in the middle of event"), caplog)
    assert len(said) == 60  # each read tries twice
    assert {text.rpartition(": ")[2] for text in said} == {"binlog truncated in the middle of event"}


def test_a_heartbeat_moves_the_progress_only_after_the_backlog_was_read() -> None:
    """I4: MySQL also sends them while it skips what was read before, with a backlog still ahead."""
    now = int(time.time())
    shard = FakeShard(FakeServer("one", f"{A}:1-102"))
    old = now - 36_000
    reading = reader(
        shard.servers,
        {"gtid": f"MySQL56/{A}:1-100"},
        [Heartbeat(now)],
        [],  # ends a page
        transaction(f"{A}:101", f"MySQL56/{A}:1-101", old),
        [],
        [Heartbeat(now)],
        [],
        transaction(f"{A}:102", f"MySQL56/{A}:1-102", old + 1),
        [],
        [Heartbeat(now)],
    )
    page = read_page(reading)
    for _ in range(40):
        if page.progress is not None and page.progress > now - 60:
            break
        assert page.progress in (None, old - 1, old, old + 1)
        page = read_page(reading)
    reading.close()
    assert page.position == {"gtid": f"MySQL56/{A}:1-102"}
    assert page.progress is not None
    assert now - 60 < page.progress <= now


def test_the_sequence_numbers_of_every_server_in_a_page_are_remembered() -> None:
    """I9: they show what a third server has in common with two whose transactions were in one page."""
    read = [
        event
        for n in range(51, 111)
        for event in transaction(f"0-{1 if n <= 100 else 2}-{n}", f"MariaDB/0-{1 if n <= 100 else 2}-{n}")
    ]
    one = FakeMariaDB("0-2-110", "0-1-100,0-2-110")
    other = FakeMariaDB("0-3-105", "0-1-100,0-3-105")
    current: list[FakeMariaDB] = [one]
    servers = ShardServers("-", lambda: ["one:3306"], lambda address: current[0], max_lag=10.0)

    def events() -> Iterator[list[BinlogEvent]]:
        yield read
        yield []
        current[0] = other
        raise Interrupted("gone")

    reading = reader(servers, {"gtid": "MariaDB/0-1-50"})
    reading.server.open_events = Binlog(events())
    gap = wait_until(lambda: next((page.gap for page in pages_of([reading.read()]) if page.gap), None))
    reading.close()
    assert gap.end == {"gtid": "MariaDB/0-1-100"}


def test_a_statement_that_was_read_before_its_server_was_lost_is_in_the_next_page() -> None:
    """I1"""

    def events() -> Iterator[list[BinlogEvent]]:
        begun, *_, ended = transaction("0-1-51", "MariaDB/0-1-51")
        yield [begun, Statement("ALTER TABLE t ADD a INT", "shop", 1, 0), ended]
        raise Interrupted("gone")

    servers = ShardServers("-", lambda: ["one:3306"], lambda address: FakeMariaDB("0-1-51", "0-1-51"), max_lag=10.0)
    reading = reader(servers, {"gtid": "MariaDB/0-1-50"})
    reading.server.open_events = Binlog(events())
    page = read_page(reading)
    reading.close()
    assert page.position == {"gtid": "MariaDB/0-1-51"}
    assert [each.statement for each in page.schema_changes] == ["ALTER TABLE t ADD a INT"]
    assert page.token == page.schema_changes[0].token


class WithTables(FakeMariaDB):
    """Has a table with a cascade. ``fault``: why SHOW CREATE TABLE fails. ``asked``: the names in what it was asked."""

    def __init__(self, fault: Unavailable | None) -> None:
        super().__init__("0-1-53", "0-1-53")
        self.fault = fault
        self.asked: list[Sequence[object] | None] = []

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        if "TABLE_TYPE" in statement:
            self.asked.append(arguments)
            return []
        if not statement.startswith("SHOW CREATE TABLE"):
            return super().execute(statement, arguments)
        if self.fault is not None:
            fault, self.fault = self.fault, None if isinstance(self.fault, Interrupted) else self.fault
            raise fault
        return [("t", "CONSTRAINT `late` FOREIGN KEY (`id`) REFERENCES `u` (`id`) ON DELETE CASCADE")]


@pytest.mark.parametrize("fault", [None, Denied("SHOW VIEW (1142)"), NoTable("gone (1146)"), Interrupted("lost")])
def test_a_foreign_key_is_asked_for_after_a_statement_and_nothing_waits_for_the_answer(
    fault: Unavailable | None, caplog: pytest.LogCaptureFixture
) -> None:
    """I10: whoever may not see the table would not see it after a new connection either."""
    server = WithTables(fault)
    events: list[BinlogEvent] = []
    for n in (51, 52):
        begun, *_, ended = transaction(f"0-1-{n}", f"MariaDB/0-1-{n}")
        events += [begun, Statement("ALTER TABLE t COMMENT ''", "shop", 1, 0), ended]
    events += transaction("0-1-53", "MariaDB/0-1-53")
    servers = ShardServers("-", lambda: ["one:3306"], lambda address: server, max_lag=10.0)
    reading = reader(servers, {"gtid": "MariaDB/0-1-50"})

    def after(_: ServerConnection, executed: GtidSet) -> Binlog:
        number = int(executed.last.rpartition("-")[2])
        return Binlog(iter([events[3 * (number - 50) :]]))

    reading.server.open_events = after
    wait_until(lambda: any(page.position == {"gtid": "MariaDB/0-1-53"} for page in pages_of([reading.read()])))
    reading.close()
    assert server.asked[-1] == ("shop", "t")
    is_seen = not isinstance(fault, (Denied, NoTable))
    assert caplog.text.count("changes by the foreign key late to shop.t are not relayed") == (1 if is_seen else 0)
    unseen = 2 if isinstance(fault, Denied) else 0
    assert caplog.text.count("cannot look up the foreign keys of shop.t: SHOW VIEW (1142)") == unseen


def test_transactions_of_a_former_primary_are_not_local_while_the_new_primary_does_not_answer() -> None:
    """I9: those that the new one lacks are lost."""
    old = FakeServer("one", f"{A}:1-200,{B}:1-5", replica=True, uuid=A)
    shard = FakeShard(old, FakeServer("two", f"{A}:1-150,{B}:1-9", uuid=B))
    shard.down.add("two:3306")
    events = [transaction(f"{A}:{n}", f"MySQL56/{A}:1-{n}") for n in range(101, 201)]
    reading = reader(shard.servers, {"gtid": f"MySQL56/{A}:1-100"}, *events)
    page = read_page(reading)
    while page.position == {"gtid": f"MySQL56/{A}:1-100"}:
        page = read_page(reading)
    assert page.position is not None
    assert "local" not in page.position
    alone = FakeShard(old)
    reading = reader(alone.servers, {"gtid": f"MySQL56/{A}:1-100"}, *events)
    position = read_page(reading).position
    assert position is not None
    assert "local" in position  # no other server is known that could have it
    assert isinstance(alone.servers.find(reading.transactions.position, {}), ReadableServer)

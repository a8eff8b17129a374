"""What a reader makes of servers that say what real ones say in passing only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from relay.gtid import GtidSet
from relay.lineage import Shard as ShardOf
from relay.lineage import StreamId
from relay.mysql.binlog.events import COMMIT, BinlogEvent, Heartbeat, Rows, TransactionBegin
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Interrupted
from relay.mysql.layouts import Layouts
from relay.mysql.positions import BinlogPosition
from relay.mysql.reader import BinlogShardReader
from relay.mysql.servers import ReadableServer, ShardServers
from relay.sql.tables import lay_out
from relay.table import Column
from tests.mysql.shards import config
from tests.mysql.test_servers import A, B, Scripted, Shard
from tests.mysql.test_servers_of_mariadb import ScriptedMariaDB
from tests.reads import pages_of, read_page

TABLE = lay_out("shop", "t", [Column("id", "int")], ["id"])


class Binlog:
    """Gives what it is told to, and says what was asked for."""

    def __init__(self, events: Iterator[list[BinlogEvent]]) -> None:
        self.events = events

    def __call__(self, server: ServerConnection, executed: GtidSet) -> Binlog:
        return self

    def read(self, timeout: float) -> list[BinlogEvent]:
        return next(self.events, [])

    def close(self) -> None:
        """Nothing is open."""


def reader(servers: ShardServers, position: Mapping[str, Any], *events: list[BinlogEvent]) -> BinlogShardReader:
    return BinlogShardReader(
        StreamId("shop", "shop"),
        ShardOf("-"),
        BinlogPosition.from_json(position),
        servers,
        Layouts(config("shop", {"-": ["one:3306"]})),
        Binlog(iter(events)),
    )


def transaction(gtid: str, position: str, at: int = 1_700_000_000) -> list[BinlogEvent]:
    row = int(gtid.replace(":", "-").rpartition("-")[2])
    return [TransactionBegin(gtid, position, at, None, False), Rows(TABLE, [(None, (row,))], 10), COMMIT]


def test_a_heartbeat_says_nothing_before_all_has_come_that_there_was_at_the_beginning() -> None:
    """I4: MySQL sends them while it passes over what was read before, a backlog still ahead."""
    now = int(time.time())
    shard = Shard(Scripted("one", f"{A}:1-102"))
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


def test_what_was_read_of_each_server_is_remembered_also_within_one_page() -> None:
    """I9: it says what a third server has in common with two whose transactions came at once."""
    read = [
        event
        for n in range(51, 111)
        for event in transaction(f"0-{1 if n <= 100 else 2}-{n}", f"MariaDB/0-{1 if n <= 100 else 2}-{n}")
    ]
    one = ScriptedMariaDB("0-2-110", "0-1-100,0-2-110")
    other = ScriptedMariaDB("0-3-105", "0-1-100,0-3-105")
    current: list[ScriptedMariaDB] = [one]
    servers = ShardServers("-", lambda: ["one:3306"], lambda address: current[0], max_lag=10.0)

    def events() -> Iterator[list[BinlogEvent]]:
        yield read
        yield []
        current[0] = other
        raise Interrupted("gone")

    reading = reader(servers, {"gtid": "MariaDB/0-1-50"})
    reading.server.open_events = Binlog(events())
    gap = None
    for _ in range(60):
        gap = next((page.gap for page in pages_of([reading.read()]) if page.gap), None)
        if gap:
            break
        time.sleep(0.1)
    reading.close()
    assert gap is not None
    assert gap.end == {"gtid": "MariaDB/0-1-100"}


def test_transactions_of_a_former_primary_are_not_taken_for_its_own_while_the_new_one_does_not_answer() -> None:
    """I9: what the new one lacks of them is lost."""
    old = Scripted("one", f"{A}:1-200,{B}:1-5", replica=True, uuid=A)
    shard = Shard(old, Scripted("two", f"{A}:1-150,{B}:1-9", uuid=B))
    shard.down.add("two:3306")
    events = [transaction(f"{A}:{n}", f"MySQL56/{A}:1-{n}") for n in range(101, 201)]
    reading = reader(shard.servers, {"gtid": f"MySQL56/{A}:1-100"}, *events)
    page = read_page(reading)
    while page.position == {"gtid": f"MySQL56/{A}:1-100"}:
        page = read_page(reading)
    assert page.position is not None
    assert "local" not in page.position
    alone = Shard(old)
    reading = reader(alone.servers, {"gtid": f"MySQL56/{A}:1-100"}, *events)
    position = read_page(reading).position
    assert position is not None
    assert "local" in position  # no other server is known that could have it
    assert isinstance(alone.servers.find(reading.transactions.position, {}), ReadableServer)

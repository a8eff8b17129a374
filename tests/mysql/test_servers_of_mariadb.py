"""Which server of a shard is read, where servers of MariaDB say what they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.mysql.positions import BinlogPosition
from relay.mysql.servers import LostPosition, ReadableServer, ShardServers
from tests.mysql.test_servers import Scripted


class ScriptedMariaDB(Scripted):
    """``state``: the last of each server in each domain of its binlog; ``made_with``: what it had replicated."""

    def __init__(self, position: str, state: str, made_with: str = "", **more: Any) -> None:
        super().__init__("one", position, **more)
        self.flavour, self.version, self.uuid = "MariaDB", "11.4.2-MariaDB", ""
        self.state, self.made_with = state, made_with
        self.sets(log_slave_updates="OFF", read_only="OFF", gtid_domain_id="0")

    def sets(self, **settings: str) -> None:
        self.settings = {**self.settings, **settings}

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        answers = {"pos": self.gtids, "state": self.state}
        if "gtid_slave_pos" in statement:
            return [(self.made_with,)]
        return [(answers[statement.rpartition("_")[2]],)]

    def cursor(self, _: object) -> Any:
        replicates = super().cursor(_)

        class Cursor:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *error: object) -> None:
                """Nothing is open."""

            def execute(self, statement: str) -> None:
                assert statement == "SHOW ALL SLAVES STATUS"

            def fetchall(self) -> Any:
                with replicates as cursor:
                    return cursor.fetchall()

        return Cursor()


class Shard:
    """A shard of one server, with a clock of its own."""

    def __init__(self, server: ScriptedMariaDB) -> None:
        self.now = 1000.0
        self.servers = ShardServers(
            "-", lambda: ["one:3306"], lambda address: server, max_lag=10.0, clock=lambda: self.now
        )

    def find(self, executed: str) -> ReadableServer | LostPosition:
        for _ in range(10):
            try:
                return self.servers.find(BinlogPosition(executed), {})
            except Unavailable as error:
                waits = error
                self.now += 0.5
        raise waits


def test_a_domain_that_was_idle_since_the_server_was_made_is_no_loss() -> None:
    """I9, I10: nothing of it is in the binlog, and what was read of it the server has all the same."""
    shard = Shard(ScriptedMariaDB("0-2-520", "0-1-480,0-2-520", made_with="0-1-480,1-1-7"))
    assert isinstance(shard.find("MariaDB/0-1-450,1-1-7"), ReadableServer)
    assert isinstance(shard.find("MariaDB/0-1-450,1-1-8"), LostPosition)


def test_a_domain_that_a_server_knows_nothing_of_is_lost_once_and_reading_goes_on() -> None:
    """I9, I10."""
    shard = Shard(ScriptedMariaDB("0-2-520", "0-1-480,0-2-520"))
    loss = shard.find("MariaDB/0-1-450,1-1-7")
    assert isinstance(loss, LostPosition)
    assert loss.resume.position == "MariaDB/0-1-450"
    assert isinstance(shard.find(loss.resume.position), ReadableServer)


def test_a_replica_that_does_not_log_what_it_replicates_is_refused_though_it_can_be_written_to() -> None:
    """I1, I10: both are what MariaDB does unless it is told otherwise."""
    server = ScriptedMariaDB("", "", made_with="0-1-5000", replica=True)
    server.sets(read_only="OFF")
    with pytest.raises(Unavailable, match="log_slave_updates"):
        Shard(server).find("MariaDB/")
    server.sets(log_slave_updates="ON")
    assert isinstance(Shard(server).find("MariaDB/"), ReadableServer)

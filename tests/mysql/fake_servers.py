"""Servers of a shard that answer what a test says, without a connection."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql

from relay.errors import Unavailable
from relay.gtid import parse
from relay.mysql.connection import Login, ServerConnection
from relay.mysql.errors import Interrupted, NoTable
from relay.mysql.positions import BinlogPosition
from relay.mysql.servers import LostPosition, ReadableServer, ShardServers
from relay.process.service_clock import ServiceClock

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


class FakeServer(ServerConnection):
    """A MySQL server. ``lag``: of a replica; None while it does not replicate."""

    def __init__(
        self, name: str, executed: str, *, replica: bool = False, lag: int | None = 0, purged: str = "", uuid: str = A
    ) -> None:
        self.account = Login(name, 3306, "relay", "")
        self.flavour = "MySQL56"
        self.version = "8.0.40"
        self.server_id = 1
        self.uuid = uuid
        self.gtids = executed
        self.purged = purged
        self.status = [{"Seconds_Behind_Source": lag}] if replica else []
        self.denies = False
        # Sessions that wait for semi-synchronous replicas, and all of them.
        self.waiting, self.sessions = 0, 3
        self.settings = {
            "log_bin": "ON",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_row_metadata": "FULL",
            "gtid_mode": "ON",
            "read_only": "ON" if replica else "OFF",
        }
        self.clock = ServiceClock()
        self._connection: Any = self

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        if "gtid_executed" in statement:
            return [(self.gtids, time.time())]
        if "semi_sync" in statement:
            return [
                ("Rpl_semi_sync_source_wait_sessions", str(self.waiting)),
                ("Threads_connected", str(self.sessions)),
            ]
        if (of_tables := _answer(statement)) is not None:
            return of_tables
        assert "gtid_purged" in statement
        return [(self.purged, time.time())]

    def refresh(self) -> None:
        """Its settings stay."""

    def sets(self, **settings: str) -> None:
        self.settings = {**self.settings, **settings}

    def close(self) -> None:
        """There is no connection."""

    @contextmanager
    def cursor(self, _: object) -> Iterator[Any]:
        status, denies = self.status, self.denies

        class Cursor:
            def execute(self, statement: str, _: object) -> None:
                assert statement == "SHOW REPLICA STATUS"
                if denies:
                    raise pymysql.err.OperationalError(1227, "Access denied; you need (at least one of) ...")

            def fetchall(self) -> Sequence[Mapping[str, object]]:
                return status

        yield Cursor()


def _answer(statement: str) -> Sequence[tuple[Any, ...]] | None:
    """Return what a server without tables answers to those who look at them; None for another statement."""
    if "information_schema" in statement:
        return []
    if statement.startswith("SHOW CREATE TABLE"):
        raise NoTable("there is none (1146)")
    return [(time.time(),)] if statement == "SELECT @@timestamp" else None


class FakeMariaDB(FakeServer):
    """A MariaDB server. ``state``: of its binlog. ``made_with``: its ``gtid_slave_pos``."""

    def __init__(self, position: str, state: str, made_with: str = "", **more: Any) -> None:
        super().__init__("one", position, **more)
        self.flavour, self.version, self.uuid = "MariaDB", "11.4.2-MariaDB", ""
        self.state, self.made_with = state, made_with
        self.sets(log_slave_updates="OFF", read_only="OFF", gtid_domain_id="0")

    def binlogs(self) -> list[str]:
        raise Unavailable("it has no binlogs")

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        if (of_tables := _answer(statement)) is not None:
            return of_tables
        variable, _, more = statement.partition(",")
        answers = {"pos": self.gtids, "state": self.state}
        answer = self.made_with if "gtid_slave_pos" in variable else answers[variable.rpartition("_")[2]]
        return [(answer, time.time()) if more else (answer,)]

    def cursor(self, _: object) -> Any:
        replicates = super().cursor(_)

        class Cursor:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *error: object) -> None:
                """Nothing is open."""

            def execute(self, statement: str, _: object) -> None:
                assert statement == "SHOW ALL SLAVES STATUS"

            def fetchall(self) -> Any:
                with replicates as cursor:
                    return cursor.fetchall()

        return Cursor()


class FakeShard:
    """A shard with a clock of its own."""

    def __init__(self, *servers: FakeServer, max_lag: float = 10.0) -> None:
        self.known = {server.account.address: server for server in servers}
        self.down: set[str] = set()
        # By address: what connects instead.
        self.silent: dict[str, Any] = {}
        self.now = 1000.0
        self.servers = ShardServers(
            "-", lambda: list(self.known), self._connect, max_lag=max_lag, clock=lambda: self.now
        )

    def _connect(self, address: str) -> ServerConnection:
        if address in self.down:
            raise Interrupted(f"{address} is down")
        if address in self.silent:
            return self.silent[address].connect(address)  # type: ignore[no-any-return]
        return self.known[address]

    def find(self, executed: str, local: str = "", unfinished: Sequence[str] = ()) -> str | LostPosition:
        partial = {gtid: {"t": 1} for gtid in unfinished}
        found = self.servers.find(BinlogPosition(parse(executed).position, partial, parse(local)), {})
        return found.server.account.host if isinstance(found, ReadableServer) else found

    def find_after_retries(self, executed: str) -> ReadableServer | LostPosition:
        """Find a server, over some seconds if that takes several tries."""
        for _ in range(10):
            try:
                return self.servers.find(BinlogPosition(executed), {})
            except Unavailable as error:
                failure = error
                self.now += 0.5
        raise failure

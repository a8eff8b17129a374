"""Which server of a shard is read, where servers of MySQL say what they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

from relay.errors import RelayError, Unavailable
from relay.gtid import parse
from relay.mysql.connection import Login, ServerConnection
from relay.mysql.errors import BinlogPurged, Diverged, Interrupted
from relay.mysql.positions import BinlogPosition
from relay.mysql.roles import role_of
from relay.mysql.servers import LostPosition, ReadableServer, ShardServers

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


class Scripted(ServerConnection):
    """A MySQL server that answers what the test says. ``lag``: of a replica; None while it does not replicate."""

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
        self.settings = {
            "log_bin": "ON",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_row_metadata": "FULL",
            "gtid_mode": "ON",
            "read_only": "ON" if replica else "OFF",
        }
        self._connection: Any = self

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        if "gtid_executed" in statement:
            return [(self.gtids,)]
        assert "gtid_purged" in statement
        return [(self.purged,)]

    def refresh(self) -> None:
        """Its settings stay."""

    def close(self) -> None:
        """There is no connection."""

    @contextmanager
    def cursor(self, _: object) -> Iterator[Any]:
        status, denies = self.status, self.denies

        class Cursor:
            def execute(self, statement: str) -> None:
                assert statement == "SHOW REPLICA STATUS"
                if denies:
                    raise pymysql.err.OperationalError(1227, "Access denied; you need (at least one of) ...")

            def fetchall(self) -> Sequence[Mapping[str, object]]:
                return status

        yield Cursor()


class Shard:
    """A shard with a clock of its own."""

    def __init__(self, *servers: Scripted, max_lag: float = 10.0) -> None:
        self.known = {server.account.address: server for server in servers}
        self.down: set[str] = set()
        self.now = 1000.0
        self.servers = ShardServers(
            "-", lambda: list(self.known), self._connect, max_lag=max_lag, clock=lambda: self.now
        )

    def _connect(self, address: str) -> ServerConnection:
        if address in self.down:
            raise Interrupted(f"{address} is down")
        return self.known[address]

    def find(self, executed: str, local: str = "", unfinished: Sequence[str] = ()) -> str | LostPosition:
        partial = {gtid: {"t": 1} for gtid in unfinished}
        found = self.servers.find(BinlogPosition(parse(executed).position, partial, parse(local)), {})
        return found.server.account.host if isinstance(found, ReadableServer) else found


def test_the_first_server_that_has_what_was_read_and_is_near_is_read() -> None:
    one, two = Scripted("one", f"{A}:1-50", replica=True, lag=500), Scripted("two", f"{A}:1-100")
    shard = Shard(one, two)
    assert shard.find(f"{A}:1-40") == "two"
    shard.down.add("two:3306")
    assert shard.find(f"{A}:1-40") == "one"
    shard.down.clear()
    one.status = [{"Seconds_Behind_Source": 3}]
    assert shard.find(f"{A}:1-40") == "one"
    assert shard.find(f"{A}:1-60") == "two"
    shard.servers.failed("one:3306", Interrupted("lost"))
    assert shard.find(f"{A}:1-40") == "two"
    shard.now += 10
    assert shard.find(f"{A}:1-40") == "one"
    one.status = [{"Seconds_Behind_Source": None}]
    assert shard.find(f"{A}:1-40") == "two"


def test_a_primary_that_lacks_what_was_read_is_a_loss_once_that_is_sure() -> None:
    """I9. A UUID and number name one transaction: what both have is known exactly."""
    new = Scripted("new", f"{A}:1-90,{B}:1-7", uuid=B)
    shard = Shard(new, Scripted("old", ""))
    shard.down.add("old:3306")
    with pytest.raises(Unavailable, match="new:3306 lacks transactions"):
        shard.find(f"{A}:1-100")
    shard.now += 2
    assert shard.find(f"{A}:1-100") == LostPosition("failover lost transactions", parse(f"{A}:1-90"))
    shard.down.clear()
    shard.known["old:3306"].gtids = f"{A}:1-100"
    assert shard.find(f"{A}:1-100") == "old"


def test_a_primary_that_lacks_a_transaction_that_was_read_in_part_is_a_loss() -> None:
    """I9: else half of it would stay published, and nothing would say so."""
    shard = Shard(Scripted("new", f"{A}:1-90,{B}:1-7", uuid=B))
    assert shard.find(f"{A}:1-90") == "new"
    with pytest.raises(Unavailable, match="new:3306 lacks transactions"):
        shard.find(f"{A}:1-90", unfinished=[f"{A}:91"])
    shard.now += 2
    lost = shard.find(f"{A}:1-90", unfinished=[f"{A}:91"])
    assert lost == LostPosition("failover lost transactions", parse(f"{A}:1-90"))
    behind = Shard(Scripted("replica", f"{A}:1-90", replica=True))
    with pytest.raises(Unavailable, match="replica:3306 is behind"):
        behind.find(f"{A}:1-90", unfinished=[f"{A}:91"])
    behind.known["replica:3306"].gtids = f"{A}:1-91"
    assert behind.find(f"{A}:1-90", unfinished=[f"{A}:91"]) == "replica"


def test_a_replica_that_lacks_what_was_read_is_waited_for() -> None:
    shard = Shard(Scripted("replica", f"{A}:1-90", replica=True))
    for _ in range(5):
        shard.now += 10
        with pytest.raises(Unavailable, match="replica:3306 is behind"):
            shard.find(f"{A}:1-100")


@pytest.mark.parametrize("read_only", ["ON", "OFF"])
def test_a_member_of_a_group_that_lacks_what_was_read_is_waited_for(read_only: str) -> None:
    """I9: it has it in its queue, also one that has just become the primary; and no SHOW REPLICA STATUS says so."""
    member = Scripted("member", f"{A}:1-90")
    member.settings = {**member.settings, "group_replication_group_name": B, "read_only": read_only}
    shard = Shard(member)
    for _ in range(5):
        shard.now += 10
        with pytest.raises(Unavailable, match="member:3306 is behind"):
            shard.find(f"{A}:1-100")
    member.gtids = f"{A}:1-100"
    assert shard.find(f"{A}:1-100") == "member"
    assert role_of(member).is_replica == (read_only == "ON")


def test_what_is_purged_everywhere_is_a_loss_only_when_every_server_says_so() -> None:
    """I9: one that does not answer may have it."""
    one, two = Scripted("one", f"{A}:1-100", purged=f"{A}:1-80"), Scripted("two", f"{A}:1-100", purged=f"{A}:1-60")
    shard = Shard(one, two)
    shard.servers.failed("one:3306", BinlogPurged("one: purged"))
    assert shard.find(f"{A}:1-50") == "two"
    shard.servers.failed("two:3306", BinlogPurged("two: purged"))
    shard.down.add("two:3306")
    with pytest.raises(Unavailable, match=r"Remove from `shards`"):
        shard.find(f"{A}:1-50,{B}:1-9")
    shard.down.clear()
    one.gtids = two.gtids = f"{A}:1-100,{B}:1-9"
    assert shard.find(f"{A}:1-50,{B}:1-9") == LostPosition("purged", parse(f"{A}:1-60,{B}:1-9"))
    assert shard.find(f"{A}:1-60,{B}:1-9") == "one"


def test_what_a_replica_alone_has_is_not_asked_of_others() -> None:
    shard = Shard(Scripted("one", f"{A}:1-100"))
    assert shard.find(f"{A}:1-100,{B}:1-3", local=f"{B}:1-3") == "one"
    replica = Scripted("replica", f"{A}:1-100,{B}:1-3", replica=True, uuid=B)
    role = role_of(replica)
    assert role.is_local(replica, f"{B}:4")
    assert not role.is_local(replica, f"{A}:101")
    assert not role_of(Scripted("primary", f"{B}:1")).is_local(replica, f"{B}:4")


@pytest.mark.parametrize("replica", [True, False])
def test_one_that_does_not_say_whether_it_is_a_replica_is_neither_read_nor_a_loss(replica: bool) -> None:
    """I9, I10: taken for a primary it would have lost what it only lacks; taken for a near replica, have it all."""
    server = Scripted("one", f"{A}:1-100", replica=replica)
    shard = Shard(server)
    server.denies = True
    for executed in (f"{A}:1-50", f"{A}:1-150"):
        for _ in range(3):
            shard.now += 10
            with pytest.raises(
                Unavailable, match=r"`GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON .* TO relay`"
            ):
                shard.find(executed)


def test_a_server_that_refuses_as_another_history_is_asked_again_later() -> None:
    shard = Shard(Scripted("replica", f"{A}:1-100", replica=True))
    shard.servers.failed("replica:3306", Diverged("other"))
    with pytest.raises(Unavailable, match="another history"):
        shard.find(f"{A}:1-50")
    shard.now += 60
    assert shard.find(f"{A}:1-50") == "replica"


def test_a_position_of_the_other_flavour_is_final() -> None:
    with pytest.raises(RelayError, match=r"MariaDB/0-1-5 cannot be read from one:3306") as raised:
        Shard(Scripted("one", "")).find("MariaDB/0-1-5")
    assert not isinstance(raised.value, Unavailable)

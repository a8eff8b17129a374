"""Which server of a shard is read, and when no server can continue."""

from __future__ import annotations

import math

import pytest

from relay.errors import RelayError, Unavailable
from relay.gtid import parse
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import BinlogPurged, Denied, Diverged, Interrupted
from relay.mysql.positions import BinlogPosition
from relay.mysql.roles import Role, role_of
from relay.mysql.servers import LostPosition, ReadableServer
from tests.mysql.fake_servers import A, B, FakeMariaDB, FakeServer, FakeShard


def test_the_first_server_that_has_what_was_read_and_does_not_lag_is_read() -> None:
    one, two = FakeServer("one", f"{A}:1-50", replica=True, lag=500), FakeServer("two", f"{A}:1-100")
    shard = FakeShard(one, two)
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


def test_a_server_that_leaves_out_changes_is_not_read() -> None:
    """I1: although it is the first one, and has what was read. While no other one answers, the reason is said."""
    shard = FakeShard(FakeServer("filtered", f"{A}:1-50", replica=True), FakeServer("primary", f"{A}:1-50"))

    def require(server: ServerConnection, role: Role) -> None:
        if role.is_replica:
            raise Denied(f"{server.account.address}: it does not replicate changes of shop.t")

    shard.servers.require = require
    assert shard.find(f"{A}:1-40") == "primary"
    shard.down.add("primary:3306")
    with pytest.raises(Unavailable, match=r"filtered:3306: it does not replicate changes of shop\.t"):
        shard.find(f"{A}:1-40")


def test_a_primary_that_lacks_what_was_read_is_a_loss_once_that_is_certain() -> None:
    """I9. A UUID and a number name one transaction, so the common part is known exactly."""
    new = FakeServer("new", f"{A}:1-90,{B}:1-7", uuid=B)
    shard = FakeShard(new, FakeServer("old", ""))
    shard.down.add("old:3306")
    with pytest.raises(Unavailable, match="new:3306 lacks transactions"):
        shard.find(f"{A}:1-100")
    shard.now += 2
    assert shard.find(f"{A}:1-100") == LostPosition("failover lost transactions", parse(f"{A}:1-90"))
    shard.down.clear()
    shard.known["old:3306"].gtids = f"{A}:1-100"
    assert shard.find(f"{A}:1-100") == "old"


def test_a_standby_without_a_primary_is_neither_a_loss_nor_the_primary() -> None:
    """I9: between RESET SLAVE ALL and CHANGE MASTER it looks like a primary that has lost what it lacks."""
    standby = FakeServer("standby", f"{A}:1-90", uuid=B)
    standby.settings = {**standby.settings, "read_only": "ON"}
    shard = FakeShard(FakeServer("primary", f"{A}:1-100"), standby)
    shard.down.add("primary:3306")
    for _ in range(5):
        shard.now += 10
        with pytest.raises(Unavailable, match="standby:3306 neither replicates nor accepts writes, and is behind"):
            shard.find(f"{A}:1-100")
    assert shard.servers.primary() is None
    assert shard.servers.primary_may_be_silent
    assert math.isinf(role_of(standby).lag)
    assert shard.find(f"{A}:1-90") == "standby"  # it has all, so it can be read, but not for the newest
    shard.down.clear()
    assert shard.find(f"{A}:1-90") == "primary"


def test_a_writable_server_that_lacks_something_is_not_a_loss_before_it_has_written_or_all_others_answer() -> None:
    """I9: a standby may be writable."""
    standby = FakeServer("standby", f"{A}:1-90", uuid=B)
    shard = FakeShard(FakeServer("primary", f"{A}:1-100"), standby)
    shard.down.add("primary:3306")
    for _ in range(5):
        shard.now += 10
        with pytest.raises(Unavailable, match=r"it is unknown whether this is the primary.*Remove from `shards`"):
            shard.find(f"{A}:1-100")
    standby.gtids = f"{A}:1-90,{B}:1"
    lost = LostPosition("failover lost transactions", parse(f"{A}:1-90"))
    assert shard.find_after_retries(f"MySQL56/{A}:1-100") == lost
    standby.gtids = f"{A}:1-90"
    del shard.known["primary:3306"]
    assert shard.find_after_retries(f"MySQL56/{A}:1-100") == lost


def test_what_a_new_primary_of_mariadb_has_written_shows_by_its_server_id() -> None:
    """I9: until it has as many transactions as were read, its set does not show it."""
    new = FakeMariaDB("0-1-90", "0-1-90")
    shard = FakeShard(new)
    new.server_id = 2
    shard.known["old:3306"] = new
    shard.down.add("old:3306")
    read = {"0": {"1": 100, "2": 40}}
    position = BinlogPosition("MariaDB/0-1-100")
    for gtids, state in (("0-1-90", "0-1-90"), ("0-1-90", "0-2-40,0-1-90")):
        new.gtids, new.state = gtids, state
        for _ in range(3):
            shard.now += 10
            with pytest.raises(Unavailable, match="it is unknown whether this is the primary"):
                shard.servers.find(position, read)
    new.gtids, new.state = "0-2-91", "0-1-90,0-2-91"
    with pytest.raises(Unavailable):
        shard.servers.find(position, read)
    shard.now += 10
    assert shard.servers.find(position, read) == LostPosition("failover lost transactions", parse("MariaDB/0-1-90"))


def test_a_primary_that_lacks_a_transaction_read_in_part_is_a_loss() -> None:
    """I9: otherwise half of it would stay published without a gap."""
    shard = FakeShard(FakeServer("new", f"{A}:1-90,{B}:1-7", uuid=B))
    assert shard.find(f"{A}:1-90") == "new"
    with pytest.raises(Unavailable, match="new:3306 lacks transactions"):
        shard.find(f"{A}:1-90", unfinished=[f"{A}:91"])
    shard.now += 2
    lost = shard.find(f"{A}:1-90", unfinished=[f"{A}:91"])
    assert lost == LostPosition("failover lost transactions", parse(f"{A}:1-90"))
    behind = FakeShard(FakeServer("replica", f"{A}:1-90", replica=True))
    with pytest.raises(Unavailable, match="replica:3306 is behind"):
        behind.find(f"{A}:1-90", unfinished=[f"{A}:91"])
    behind.known["replica:3306"].gtids = f"{A}:1-91"
    assert behind.find(f"{A}:1-90", unfinished=[f"{A}:91"]) == "replica"


def test_a_primary_of_mariadb_with_others_in_the_place_of_a_transaction_read_in_part_is_a_loss() -> None:
    """I9: its position does not say so, since it has the last GTID of a domain for all before it."""
    shard = FakeShard(FakeMariaDB("0-2-95", "0-1-90,0-2-95"))
    with pytest.raises(Unavailable, match="one:3306 lacks transactions"):
        shard.find("0-1-90", unfinished=["0-1-91"])
    shard.now += 2
    assert shard.find("0-1-90", unfinished=["0-1-91"]) == LostPosition("failover lost transactions", parse("0-1-90"))
    same = FakeShard(FakeMariaDB("0-2-95", "0-1-91,0-2-95"))
    assert same.find("0-1-90", unfinished=["0-1-91"]) == "one"


def test_a_replica_that_lacks_what_was_read_is_waited_for() -> None:
    shard = FakeShard(FakeServer("replica", f"{A}:1-90", replica=True))
    for _ in range(5):
        shard.now += 10
        with pytest.raises(Unavailable, match="replica:3306 is behind"):
            shard.find(f"{A}:1-100")


@pytest.mark.parametrize("read_only", ["ON", "OFF"])
def test_a_member_of_a_group_that_lacks_what_was_read_is_waited_for(read_only: str) -> None:
    """I9: its queue has them, even if it has just become the primary; SHOW REPLICA STATUS does not show that."""
    member = FakeServer("member", f"{A}:1-90")
    member.settings = {**member.settings, "group_replication_group_name": B, "read_only": read_only}
    shard = FakeShard(member)
    for _ in range(5):
        shard.now += 10
        with pytest.raises(Unavailable, match="member:3306 is behind"):
            shard.find(f"{A}:1-100")
    member.gtids = f"{A}:1-100"
    assert shard.find(f"{A}:1-100") == "member"
    assert role_of(member).is_replica == (read_only == "ON")


def test_a_primary_that_waits_for_semi_synchronous_replicas_has_lost_nothing_of_its_own() -> None:
    """I9: its binlog has what it has not executed yet. What another server made it will never have."""
    primary = FakeServer("primary", f"{A}:1-90,{B}:1-5", uuid=A)
    primary.waiting = 1
    shard = FakeShard(primary)
    for _ in range(5):
        shard.now += 10
        with pytest.raises(Unavailable, match="primary:3306 waits for its replicas to acknowledge what was read"):
            shard.find(f"{A}:1-91,{B}:1-5")
    assert isinstance(shard.find_after_retries(f"MySQL56/{A}:1-90,{B}:1-6"), LostPosition)
    primary.gtids = f"{A}:1-91,{B}:1-5"
    assert shard.find(f"{A}:1-91,{B}:1-5") == "primary"


def test_what_was_reset_is_lost_although_the_primary_waits_for_semi_synchronous_replicas() -> None:
    """I9: under load one always waits, and the numbers of what is lost are given out again."""
    primary = FakeServer("primary", f"{A}:1-2", uuid=A)
    primary.waiting = 1
    lost = LostPosition("failover lost transactions", parse(f"{A}:1-2"))
    shard = FakeShard(primary)
    shard.servers.failed("primary:3306", Diverged("its binlogs were reset"))
    assert shard.find_after_retries(f"MySQL56/{A}:1-3") == lost


def test_more_transactions_than_there_are_sessions_are_not_all_waiting_for_semi_synchronous_replicas() -> None:
    """I9: each holds its session."""
    primary = FakeServer("primary", f"{A}:1-90", uuid=A)
    primary.waiting, primary.sessions = 1, 20
    shard = FakeShard(primary)
    for _ in range(5):
        shard.now += 10
        with pytest.raises(Unavailable, match="waits for its replicas"):
            shard.find(f"{A}:1-110")
    lost = LostPosition("failover lost transactions", parse(f"{A}:1-90"))
    assert shard.find_after_retries(f"MySQL56/{A}:1-111") == lost


def test_purged_binlogs_are_a_loss_only_when_every_server_has_purged_them() -> None:
    """I9: one that does not answer may still have them."""
    one, two = FakeServer("one", f"{A}:1-100", purged=f"{A}:1-80"), FakeServer("two", f"{A}:1-100", purged=f"{A}:1-60")
    shard = FakeShard(one, two)
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


def test_transactions_that_only_a_replica_has_are_not_required_of_other_servers() -> None:
    shard = FakeShard(FakeServer("one", f"{A}:1-100"))
    assert shard.find(f"{A}:1-100,{B}:1-3", local=f"{B}:1-3") == "one"
    replica = FakeServer("replica", f"{A}:1-100,{B}:1-3", replica=True, uuid=B)
    role = role_of(replica)
    assert role.is_local(replica, f"{B}:4")
    assert not role.is_local(replica, f"{A}:101")
    assert not role_of(FakeServer("primary", f"{B}:1")).is_local(replica, f"{B}:4")


@pytest.mark.parametrize("replica", [True, False])
def test_a_server_that_does_not_tell_its_role_is_neither_read_nor_a_loss(replica: bool) -> None:
    """I9, I10: taken for a primary it would have lost what it lacks; taken for a current replica it would have all."""
    server = FakeServer("one", f"{A}:1-100", replica=replica)
    shard = FakeShard(server)
    server.denies = True
    for executed in (f"{A}:1-50", f"{A}:1-150"):
        for _ in range(3):
            shard.now += 10
            with pytest.raises(
                Unavailable, match=r"`GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON .* TO relay`"
            ):
                shard.find(executed)


def test_a_server_that_refuses_the_position_is_asked_again_later() -> None:
    shard = FakeShard(FakeServer("replica", f"{A}:1-100", replica=True))
    shard.servers.failed("replica:3306", Diverged("other"))
    with pytest.raises(Unavailable, match="a different history"):
        shard.find(f"{A}:1-50")
    shard.now += 60
    assert shard.find(f"{A}:1-50") == "replica"


def test_a_position_of_the_other_flavour_is_final() -> None:
    with pytest.raises(
        RelayError, match=r"cannot continue from the position MariaDB/0-1-5 on one:3306, which is a MySQL"
    ) as raised:
        FakeShard(FakeServer("one", f"{A}:1-5")).find("MariaDB/0-1-5")
    assert not isinstance(raised.value, Unavailable)


def test_a_domain_that_was_idle_since_the_server_was_copied_is_not_a_loss() -> None:
    """I9, I10: its binlog has nothing of the domain, but its data has what was read."""
    shard = FakeShard(FakeMariaDB("0-2-520", "0-1-480,0-2-520", made_with="0-1-480,1-1-7"))
    assert isinstance(shard.find_after_retries("MariaDB/0-1-450,1-1-7"), ReadableServer)
    assert isinstance(shard.find_after_retries("MariaDB/0-1-450,1-1-8"), LostPosition)


def test_a_domain_that_a_server_does_not_have_is_lost_once_and_reading_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I9, I10: and more of it was before its oldest binlog than was read."""
    monkeypatch.setattr("relay.mysql.servers.purged", lambda _: parse("MariaDB/0-1-20,1-1-8"))
    shard = FakeShard(FakeMariaDB("0-2-520", "0-1-480,0-2-520"))
    loss = shard.find_after_retries("MariaDB/0-1-450,1-1-7")
    assert isinstance(loss, LostPosition)
    assert loss.resume.position == "MariaDB/0-1-450"
    assert isinstance(shard.find_after_retries(loss.resume.position), ReadableServer)


def test_a_writable_replica_that_does_not_log_what_it_replicates_is_refused() -> None:
    """I1, I10: both are defaults of MariaDB."""
    server = FakeMariaDB("", "", made_with="0-1-5000", replica=True)
    server.sets(read_only="OFF")
    with pytest.raises(Unavailable, match="log_slave_updates"):
        FakeShard(server).find_after_retries("MariaDB/")
    server.sets(log_slave_updates="ON")
    assert isinstance(FakeShard(server).find_after_retries("MariaDB/"), ReadableServer)

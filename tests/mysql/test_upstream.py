"""A replica is read only if the server that it replicates from is known to leave nothing out: I1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Denied, Interrupted
from relay.mysql.filters import Filters
from relay.mysql.roles import ReplicatedFrom, role_of
from relay.mysql.upstream import Upstreams
from relay.services.mariadb import MariaDB
from tests.mysql.fake_servers import A, B, FakeMariaDB, FakeServer
from tests.mysql.orders import DATABASE
from tests.mysql.server import MySQL, mostly_on_mariadb
from tests.mysql.shards import begin, open_at, read_to_head, short, source_of
from tests.waiting import wait_until

OTHER_SERVER = "MySQL: what follows from the origin of the newest transaction is tried on both servers here"

ON_MARIADB = mostly_on_mariadb(OTHER_SERVER)


@pytest.fixture
def chain(kind: Any, primary: Any) -> Iterator[Any]:
    """Start a server between the primary and a replica. Return the three."""

    @contextmanager
    def start(**options: str) -> Iterator[tuple[Any, Any]]:
        with kind(options=options) as between, kind() as leaf:
            between.replicate_from(primary)
            leaf.replicate_from(between)
            primary.execute("CREATE DATABASE passed_on")  # MariaDB does not pass on the GTIDs of what is left out
            leaf.wait_for(primary.gtid)
            yield between, leaf

    with ExitStack() as stack:
        yield lambda options=(): stack.enter_context(start(**dict(options)))


class FakeReplica(FakeServer):
    """A MySQL replica of ``source``, which says what it ``received``, and does not show what was the newest."""

    def __init__(self, name: str, source: str, received: str, *, uuid: str = A, channel: str = "") -> None:
        super().__init__(name, f"{A}:1-9", replica=True, uuid=uuid)
        more = {"Source_Host": "db", "Source_Port": 3306, "Source_UUID": source, "Retrieved_Gtid_Set": received}
        self.status = [{**self.status[0], **more, "Channel_Name": channel}]  # type: ignore[dict-item]

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        if "performance_schema" in statement:
            raise Denied("SELECT command denied (1142)")
        return super().execute(statement, arguments)


def upstreams(*listed: FakeServer, down: Sequence[str] = ()) -> Upstreams:
    servers = {each.account.address: each for each in listed}

    def connect(address: str) -> ServerConnection:
        if address in down:
            raise Interrupted(f"{address} is down")
        return servers[address]

    return Upstreams("s", lambda address: [*servers, *down], connect, lambda *_: None)


def require(checked: Upstreams, server: FakeServer) -> None:
    checked.require(server, role_of(server).sources, is_origin=False)


C = "5e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_a_source_that_did_not_make_what_it_sent_has_to_be_listed() -> None:
    """I1"""
    require(upstreams(), FakeReplica("one", B, f"{B}:1-3"))
    with pytest.raises(Denied, match=f"from the server {B} at db:3306, .* changes of other servers \\({C}\\)"):
        require(upstreams(), FakeReplica("one", B, f"{C}:1-3"))
    with pytest.raises(Denied, match=f"passes on changes of other servers \\({C}\\)"):
        require(upstreams(FakeReplica("two", B, f"{C}:1-3", uuid=C)), FakeReplica("one", B, f"{C}:1-3"))
    require(upstreams(FakeServer("two", "", uuid=B)), FakeReplica("one", B, f"{C}:1-3"))
    # What the listed server replicates from has to be known as well; two may replicate from each other.
    with pytest.raises(Denied, match=f"replicates from two:3306, which may leave .* replicates from the server {C} at"):
        require(upstreams(FakeReplica("two", C, f"{A[:-1]}1:1-3", uuid=B)), FakeReplica("one", B, f"{C}:1-3"))
    require(upstreams(FakeReplica("two", A, f"{C}:1-3", uuid=B)), FakeReplica("one", B, f"{C}:1-3"))


def test_what_is_unknown_is_said_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """I1: a listed server that does not answer may be the source; a replica may not have received anything yet."""
    for checked, server, said in (
        (upstreams(down=["two:3306"]), FakeReplica("one", B, f"{C}:1-3"), "two:3306 is down"),
        (upstreams(), FakeReplica("one", "", f"{C}:1-3"), "to which it is not connected"),
    ):
        caplog.clear()
        require(checked, server)
        require(checked, server)
        assert [said in each.getMessage() for each in caplog.records] == [True]
    caplog.clear()
    require(upstreams(), FakeReplica("one", B, f"{C}:1-3", channel="group_replication_recovery"))
    assert not caplog.records


def test_a_new_source_of_a_replica_that_was_read_is_judged_by_what_it_sends(caplog: pytest.LogCaptureFixture) -> None:
    """I1: a new primary has written nothing at first."""
    promoted, between = upstreams(), upstreams()
    for checked in (promoted, between):
        require(checked, FakeReplica("one", B, f"{B}:1-3"))
        caplog.clear()
        require(checked, FakeReplica("one", C, f"{B}:1-3"))
        require(checked, FakeReplica("one", C, f"{B}:1-3"))
        assert "it is unknown whether the server that it replicates from leaves changes out" in caplog.text
    caplog.clear()
    require(promoted, FakeReplica("one", C, f"{B}:1-3,{C}:1"))
    assert not caplog.records
    with pytest.raises(Denied, match="passes on changes of other servers"):
        require(between, FakeReplica("one", C, f"{B}:1-4"))


def test_a_source_that_made_something_once_is_left_when_it_passes_on_what_others_make() -> None:
    """I1: of a MySQL set nothing says which transaction is the newest, but what is added to it is."""
    checked = upstreams()
    require(checked, FakeReplica("one", B, f"{B}:1,{C}:1-3"))
    require(checked, FakeReplica("one", B, f"{B}:1,{C}:1-3"))
    with pytest.raises(Denied, match="passes on changes of other servers"):
        require(checked, FakeReplica("one", B, f"{B}:1,{C}:1-4"))
    require(checked, FakeReplica("one", B, f"{B}:1-2,{C}:1-4"))


def test_what_a_replica_has_executed_does_not_prove_that_a_source_passes_changes_on() -> None:
    """I12: another channel may have brought it, or a former source, so a channel that is idle would stop the shard."""
    checked, idle = upstreams(), FakeReplica("one", B, "")
    for executed in (f"{C}:1-3", f"{C}:1-4"):
        idle.gtids = executed
        require(checked, idle)


def test_a_primary_that_replicates_too_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """I12: one that was promoted, and still has its replication."""
    promoted = FakeReplica("one", B, f"{C}:1-3")
    upstreams().require(promoted, role_of(promoted).sources, is_origin=True)
    assert "which `shards` does not list" in caplog.text


def test_a_listed_server_that_is_away_is_no_excuse_if_it_was_another_one(caplog: pytest.LogCaptureFixture) -> None:
    """I1: the check would be off while any listed server is away."""
    down = ["two:3306"]
    checked, server = upstreams(FakeServer("two", "", uuid=C), down=down), FakeReplica("one", B, f"{C}:1-3")
    require(checked, server)
    assert "two:3306 is down" in caplog.text
    down.clear()
    again = upstreams(FakeServer("two", "", uuid=C), down=down)
    with pytest.raises(Denied, match="which `shards` does not list"):
        require(again, server)
    down.append("two:3306")
    again._answers.clear()
    again._asked.clear()
    with pytest.raises(Denied, match="which `shards` does not list"):
        require(again, server)


def test_a_replica_of_a_server_that_was_refused_is_refused_although_that_is_the_origin() -> None:
    """I1: such as a primary that does not log some of its changes."""
    checked = upstreams()
    checked.refused[B] = "its binlog_ignore_db is shop"
    with pytest.raises(Denied, match="from db:3306, which may leave changes out: its binlog_ignore_db is shop"):
        require(checked, FakeReplica("one", B, f"{B}:1-3"))


def test_an_answer_of_a_listed_server_that_nobody_expects_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """I12"""

    class Odd(FakeServer):
        def refresh(self) -> None:
            raise KeyError("log_bin")

    require(upstreams(Odd("two", "", uuid=B)), FakeReplica("one", B, f"{C}:1-3"))
    assert "log_bin" in caplog.text


def test_each_of_several_sources_of_a_mariadb_makes_transactions_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """I1: the position says only of all of them together what was received."""

    def of(position: str, *sources: str) -> Sequence[ReplicatedFrom]:
        is_exact = len(sources) == 1
        return [ReplicatedFrom(each, each, "db:3306", position, is_exact, Filters({})) for each in sources]

    server, checked, alone = FakeMariaDB("", ""), upstreams(), upstreams()
    server.server_id = 9
    for position in ("1-1-5,2-2-7", "1-1-5,2-2-8"):
        checked.require(server, of(position, "1", "2"), is_origin=False)
    assert not caplog.records
    upstreams().require(server, of("1-1-5,2-2-8", "1", "2", "3"), is_origin=False)
    assert "the server 3, which is not among the servers" in caplog.text
    alone.require(server, of("1-1-5,2-2-7", "1"), is_origin=False)
    with pytest.raises(Denied, match=r"changes of other servers \(2\)"):
        alone.require(server, of("1-1-5,2-2-8", "1"), is_origin=False)


def identity(server: Any) -> str:
    return str(server.server_id) if isinstance(server, MariaDB) else str(server.uuid)


@pytest.mark.services
def test_a_replica_behind_a_server_that_is_not_listed_is_not_read(primary: Any, chain: Any) -> None:
    """I1: that server may leave changes out, and its replica has executed all the same."""
    between, leaf = chain({"replicate-ignore-table": f"{DATABASE}.t"})
    said = f"it replicates from the server {identity(between)} at {between.address}, which `shards` does not list"
    with pytest.raises(Unavailable, match=said):
        source_of(DATABASE, leaf)
    source = source_of(DATABASE, leaf, primary)
    with closing(open_at(source, begin(source)["-"])) as reader:
        primary.execute(f"INSERT {DATABASE}.t VALUES (1, 'a')")
        assert short(read_to_head(reader)[0]) == [("INSERT", 1, "a")]
    # A server that is listed and leaves changes out makes those behind it incomplete as well.
    unreadable = source_of(DATABASE, primary, leaf, between).unreadable()
    filter_ = rf"its Replicate_Ignore_Table is {DATABASE}.t"
    assert f"replicates from {between.address}, which may leave changes out: " in unreadable[leaf.address]
    assert all(filter_ in unreadable[each.address] for each in (between, leaf))


@pytest.mark.services
def test_a_replica_of_the_primary_and_one_behind_a_listed_server_are_read(
    primary: Any, chain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: each server that the changes pass is known."""
    between, leaf = chain()
    for servers in ((between,), (leaf, between)):
        source = source_of(DATABASE, *servers)
        assert source.unreadable() == {}
    assert "leaves changes out" not in caplog.text
    between.kill()
    source_of(DATABASE, leaf, between)  # that nobody can ask it now is said, and is no reason to read nothing
    assert "it is unknown whether the server that it replicates from leaves changes out" in caplog.text
    assert between.address in caplog.text


@pytest.mark.services
def test_a_server_that_makes_some_transactions_itself_and_passes_on_others_is_found(
    primary: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: that a server made one transaction does not prove that it makes all."""
    monkeypatch.setattr("relay.mysql.current_server._ROLE_EVERY", 0.2)
    between, leaf = chain()
    own = "SET gtid_domain_id = 9" if isinstance(primary, MariaDB) else "DO 1"
    with closing(between.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(own)
        cursor.execute("CREATE DATABASE scratch")
    leaf.wait_for(between.gtid)
    source = source_of(DATABASE, leaf)
    with closing(open_at(source, begin(source)["-"])) as reader:
        read_to_head(reader)
        primary.execute(f"INSERT {DATABASE}.t VALUES (1, 'a')")
        wait_until(lambda: "passes on changes of other servers" in str(reader.read()), 30)


@pytest.mark.services
@pytest.mark.parametrize("kind", [MySQL], indirect=True)
def test_mysql_shows_which_transaction_is_the_newest(kind: Any, primary: Any) -> None:
    """I1: the set of what came from a server does not."""
    with kind() as between, kind(options={"performance-schema": 1}) as leaf:
        between.execute("CREATE DATABASE scratch")
        between.replicate_from(primary)
        leaf.replicate_from(between)
        leaf.wait_for(f"{between.gtid},{primary.gtid}")
        primary.execute("CREATE DATABASE other")
        leaf.wait_for(primary.gtid)
        with pytest.raises(Unavailable, match=f"from the server {between.uuid} at {between.address}, which `shards`"):
            source_of(DATABASE, leaf)
        source_of(DATABASE, leaf, between)


@pytest.mark.services
@ON_MARIADB
def test_a_replica_of_a_new_primary_that_is_not_listed_is_read_on(
    kind: Any, primary: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: a new primary has written nothing yet. What it writes shows that it is one."""
    monkeypatch.setattr("relay.mysql.current_server._ROLE_EVERY", 0.2)
    with kind() as new, kind() as leaf:
        for each in (new, leaf):
            each.replicate_from(primary)
            each.wait_for(primary.gtid)
        source = source_of(DATABASE, leaf)
        with closing(open_at(source, begin(source)["-"])) as reader:
            read_to_head(reader)
            primary.kill()
            new.promote()
            leaf.replicate_from(new)
            wait_until(lambda: [reader.read(), "it is unknown whether" in caplog.text][1], 30)
            new.execute(f"INSERT {DATABASE}.t VALUES (1, 'a')")
            leaf.wait_for(new.gtid)
            assert short(read_to_head(reader)[0]) == [("INSERT", 1, "a")]

"""Servers whose filters leave out changes are not read: I1. Nothing in their binlogs shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.mysql.filters import Filters, require_unfiltered
from relay.mysql.source import MySQLSource
from relay.services.mariadb import MariaDB
from tests.mysql.fake_servers import FakeServer
from tests.mysql.orders import DATABASE
from tests.mysql.segments import head, segment_of
from tests.mysql.server import MySQL
from tests.mysql.shards import begin, open_at, read_to_head, short, source_of
from tests.reads import read_page
from tests.waiting import wait_until

IGNORE = {
    MariaDB: f"SET GLOBAL replicate_ignore_table = '{DATABASE}.t'",
    MySQL: f"CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({DATABASE}.t)",
}

OTHER_SERVER = pytest.mark.faults(
    "MySQL: that its filters are read and refused is tried on it here, and what follows from that on MariaDB"
)
mostly_on_mariadb = pytest.mark.parametrize("kind", [MariaDB, pytest.param(MySQL, marks=OTHER_SERVER)], indirect=True)


class FakeBefore82(FakeServer):
    """MySQL before 8.2. ``ignores``: the databases that its binlog leaves out. ``asked``: how often it said so."""

    def __init__(self, name: str, executed: str, *, ignores: str = "") -> None:
        super().__init__(name, executed)
        self.ignores = ignores
        self.asked = 0

    def named_rows(self, statement: str) -> Sequence[Mapping[str, object]]:
        if statement != "SHOW MASTER STATUS":
            raise Unavailable("You have an error in your SQL syntax (1064)")
        self.asked += 1
        return [{"Binlog_Do_DB": "", "Binlog_Ignore_DB": self.ignores}]


@pytest.mark.parametrize(
    ("lists", "left_out", "relayed"),
    [
        ({}, [], ["a", "b", ""]),
        ({"Do_DB": "shop, other"}, [], ["a", ""]),
        ({"Do_DB": "other", "Ignore_DB": ""}, ["a", ""], []),
        ({"Ignore_DB": "mysql,shop"}, ["a", ""], []),
        ({"Ignore_DB": "sho,shopping"}, [], ["a", ""]),
        ({"Ignore_Table": "mysql.user,shop.a"}, ["a", ""], ["b"]),
        ({"Ignore_Table": "mysql.user,shopping.a"}, [], ["a", ""]),
        ({"Do_Table": "shop.a"}, ["b", ""], ["a"]),
        ({"Do_Table": "shop.a", "Wild_Ignore_Table": "shop.%"}, ["b", ""], ["a"]),
        ({"Wild_Do_Table": "shop.%"}, [], ["a", ""]),
        ({"Wild_Do_Table": "sh_p.a%"}, ["b", ""], ["a"]),
        ({"Wild_Do_Table": r"sh\_p.%"}, ["a", "b", ""], []),
        ({"Wild_Ignore_Table": "%.tmp%,innodb_memcache.%"}, ["tmp1", ""], ["a"]),
        ({"Wild_Ignore_Table": "innodb.%"}, [], ["a", ""]),
        ({"Wild_Do_Table": "shop.%", "Wild_Ignore_Table": "shop.tmp%"}, [], ["tmp1", "a", ""]),
    ],
)
def test_filters_leave_out_what_the_server_leaves_out(
    lists: dict[str, str], left_out: list[str], relayed: list[str]
) -> None:
    """I1. The empty name stands for all tables."""
    filters = Filters.of({f"Replicate_{name}": value for name, value in lists.items()}, "Replicate")
    assert [table for table in left_out if filters.against("shop", table) is None] == []
    assert [table for table in relayed if filters.against("shop", table) is not None] == []


def test_a_table_may_come_by_any_of_several_replications() -> None:
    """I1: of two primaries, one may have another database."""
    server, listed = FakeBefore82("one", ""), ("shop", "orders")
    of_shop, of_orders = (Filters.of({"Replicate_Do_DB": name}, "Replicate") for name in listed)
    require_unfiltered(server, [of_shop, of_orders], "shop", ["t"])
    with pytest.raises(Unavailable, match=r"does not replicate changes of shop\.t: its Replicate_Do_DB is orders"):
        require_unfiltered(server, [of_orders], "shop", ["t"])


def test_a_part_of_the_database_that_one_of_several_replications_leaves_out_is_missing() -> None:
    """I1"""
    server = FakeBefore82("one", "")
    whole, part = Filters.of({}, "Replicate"), Filters.of({"Replicate_Ignore_Table": "shop.t"}, "Replicate")
    require_unfiltered(server, [whole, part], "shop", ["u"])
    with pytest.raises(
        Unavailable, match=r"does not replicate changes of shop\.t: its Replicate_Ignore_Table is shop\.t"
    ):
        require_unfiltered(server, [whole, part], "shop", ["t"])


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"Replicate_Ignore_Server_Ids": "4242"}, "Ignore_Server_Ids is 4242"),
        ({"Replicate_Ignore_Domain_Ids": "7"}, "Ignore_Domain_Ids is 7"),
        ({"Replicate_Rewrite_DB": "shop->other"}, "Rewrite_DB is shop->other"),
        ({"Replicate_Rewrite_DB": "(a,b),(other,shop)"}, r"Rewrite_DB is \(a,b\)"),
        ({"Replicate_Of_A_Later_Server": "x"}, "Of_A_Later_Server is x"),
        ({"Replicate_Rewrite_DB": "(a,b),(shops,c)", "Replicate_Ignore_Server_Ids": ""}, None),
        ({"Replicate_Do_DB": "shop", "Seconds_Behind_Source": "0"}, None),
    ],
)
def test_a_replica_is_only_read_if_all_that_it_says_of_its_filters_is_understood(
    status: dict[str, str], said: str | None
) -> None:
    """I1"""
    server, replications = FakeBefore82("one", ""), [Filters.of(status, "Replicate")]
    if said is None:
        require_unfiltered(server, replications, "shop", ["t"])
        return
    with pytest.raises(Unavailable, match=f"it may leave out changes that it replicates: its Replicate_{said}"):
        require_unfiltered(server, replications, "shop", ["t"])


def test_a_replica_that_skips_errors_is_not_read() -> None:
    """I1"""
    server, replications = FakeBefore82("one", ""), [Filters.of({}, "Replicate")]
    for name, value in {
        "slave_skip_errors": "1062",
        "replica_exec_mode": "IDEMPOTENT",
        "replicate_events_marked_for_skip": "FILTER_ON_SLAVE",
    }.items():
        before, server.settings = server.settings, {**server.settings, name: value}
        with pytest.raises(Unavailable, match=f"may leave out changes that it replicates: its {name} is {value}, not"):
            require_unfiltered(server, replications, "shop", ["t"])
        require_unfiltered(server, [], "shop", ["t"])
        server.settings = before
    require_unfiltered(server, replications, "shop", ["t"])


@pytest.mark.services
def test_a_replica_with_rules_that_are_not_lists_of_tables_is_not_read(kind: Any, primary: Any) -> None:
    """I1: its executed set says that it has all."""
    is_mariadb = kind is MariaDB
    with kind(options={"slave-skip-errors" if is_mariadb else "replica-skip-errors": "1062"}) as replica:
        replica.replicate_from(primary)
        with pytest.raises(Unavailable, match=r"its (slave|replica)_skip_errors is 1062"):
            source_of(DATABASE, replica)
    options = {"replicate-rewrite-db": f"{DATABASE}->other"}
    cases: list[tuple[dict[str, str], str, str]] = [(options, "", "Replicate_Rewrite_DB is")]
    if is_mariadb:  # MySQL takes none together with GTIDs
        cases += [({}, "CHANGE MASTER TO IGNORE_SERVER_IDS = (4242)", "Replicate_Ignore_Server_Ids is 4242")]
        cases += [({}, "CHANGE MASTER TO DO_DOMAIN_IDS = (7)", "Replicate_Do_Domain_Ids is 7")]
    for given, change, said in cases:
        with kind(options=given) as replica:
            replica.replicate_from(primary)
            if change:
                replica.stop_replication()
                replica.execute(change)
                replica.start_replication()
            with pytest.raises(Unavailable, match=f"may leave out changes that it replicates: its {said}"):
                source_of(DATABASE, replica)


def test_the_filters_of_a_binlog_are_asked_for_in_the_words_of_each_version() -> None:
    """I1"""
    server, lower = FakeBefore82("one", "", ignores="shop"), FakeBefore82("two", "", ignores="Shop")
    lower.settings = {**lower.settings, "lower_case_table_names": "1"}
    for each in (server, server, lower):
        with pytest.raises(Unavailable, match="leaves out changes of tables of shop: remove `binlog_ignore_db`"):
            require_unfiltered(each, [], "shop", [])
    assert server.asked == 1


@pytest.mark.services
@pytest.mark.parametrize("options", [{"binlog-ignore-db": "shop"}, {"binlog-do-db": "other"}])
def test_a_server_whose_binlog_leaves_out_the_database_is_refused(kind: Any, options: dict[str, str]) -> None:
    """I1"""
    [name] = options
    with kind(options=options) as server:
        server.execute("CREATE DATABASE shop")
        server.execute("CREATE TABLE shop.t (id INT PRIMARY KEY)")
        with pytest.raises(Unavailable, match=rf"leaves out .* of shop: remove `{name.replace('-', '_')}`"):
            source_of("shop", server)


@pytest.mark.services
@mostly_on_mariadb
def test_a_statement_that_a_filtered_binlog_may_leave_out_is_warned_about(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: rows are filtered by the database of their table, statements by the one in which they are executed."""
    with kind(options={"binlog-do-db": "shop"}) as server:
        for statement in ("CREATE DATABASE shop", "CREATE DATABASE other", "CREATE TABLE shop.t (id INT PRIMARY KEY)"):
            server.execute(statement)
        source = source_of("shop", server)
        start = begin(source)["-"]
        with server.connect(database="other", autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT shop.t VALUES (1)")
            cursor.execute("TRUNCATE shop.t")
        reader = open_at(source, start)
        changes, _ = read_to_head(reader)
        reader.close()
    assert [change.operation.value for change in changes] == ["INSERT"]
    assert "a TRUNCATE, DROP or ALTER of tables of shop that is executed in another database" in caplog.text


@pytest.mark.services
@mostly_on_mariadb
def test_a_server_that_replicates_other_databases_is_read_if_it_may_be_where_the_database_is_written(
    kind: Any, primary: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: with reference data from elsewhere. It takes writes, and no other server is listed."""
    with kind(options={"replicate-do-db": "reference"}) as server:
        for each in (server, primary):
            each.execute("CREATE DATABASE own")
            each.execute("CREATE TABLE own.t (id INT PRIMARY KEY, v VARCHAR(100))")
        server.replicate_from(primary)
        server.execute("SET GLOBAL read_only = OFF")
        source = source_of("own", server)
        assert "this replica is filtered by database: a TRUNCATE" in caplog.text
        reader = open_at(source, begin(source)["-"])
        server.execute("INSERT own.t VALUES (1, 'a')")
        changes, _ = read_to_head(reader)
        assert short(changes) == [("INSERT", 1, "a")]
        reader.close()
        # A server that is listed with it may be the one where the database is written, even while that is down.
        assert (
            "If own is written here, and not replicated, list"
            in source_of("own", primary, server).unreadable()[server.address]
        )
        server.execute("SET GLOBAL read_only = ON")
        with pytest.raises(Unavailable, match="its Replicate_Do_DB is reference"):
            source_of("own", server)


@pytest.mark.services
@mostly_on_mariadb
def test_a_replica_is_left_once_a_filter_is_set(kind: Any, primary: Any) -> None:
    """I1: its executed set goes on, and says that it has all."""
    with kind() as replica:
        replica.replicate_from(primary)
        source = source_of(DATABASE, replica, primary)
        reader: Any = open_at(source, begin(source)["-"])
        primary.execute(f"INSERT {DATABASE}.t VALUES (10, 'a')")
        replica.wait_for(primary.gtid)
        assert [short(read_to_head(reader)[0]), reader.server.address] == [[("INSERT", 10, "a")], replica.address]
        replica.stop_replication()
        replica.execute(IGNORE[kind])
        replica.start_replication()
        wait_until(lambda: [read_to_head(reader), reader.server.address == primary.address][1], 30)
        primary.execute(f"INSERT {DATABASE}.t VALUES (11, 'b')")
        assert short(read_to_head(reader)[0]) == [("INSERT", 11, "b")]
        reader.close()


def inserted(source: MySQLSource, primary: Any, replica: Any, table: str) -> list[tuple[str, Any, Any]]:
    """Insert a row into a table, and return what is read of it once the replica has it."""
    with closing(open_at(source, begin(source)["-"])) as reader:
        primary.execute(f"INSERT {DATABASE}.{table} VALUES (1, 'a')")
        replica.wait_for(primary.gtid)
        return short(read_to_head(reader)[0])


@pytest.mark.services
def test_a_replica_that_leaves_out_changes_is_not_read(kind: Any, primary: Any) -> None:
    """I1, I7: neither its binlog nor its rows, although it has executed all that its primary has."""
    primary.execute(f"CREATE TABLE {DATABASE}.u (id INT PRIMARY KEY, v VARCHAR(100))")
    with kind(options={"replicate-ignore-table": f"{DATABASE}.t"}) as replica:
        replica.replicate_from(primary)
        filter_ = rf"its Replicate_Ignore_Table is {DATABASE}\.t"
        said = rf"{replica.address}: it does not replicate changes of .*{DATABASE}.*: {filter_}"
        for tables in (None, ["t"], ["u", "t"]):
            with pytest.raises(Unavailable, match=said):
                source_of(DATABASE, replica, tables=tables)
        source = source_of(DATABASE, replica, primary)
        assert inserted(source, primary, replica, "t") == [("INSERT", 1, "a")]
        segment = segment_of(source, head(source), "t")
        assert [change.key for change in read_page(segment).changes] == [{"id": 1}]
        segment.close()
        unfiltered = source_of(DATABASE, replica, tables=["u"])
        assert inserted(unfiltered, primary, replica, "u") == [("INSERT", 1, "a")]

"""Servers whose filters leave out changes are not read: I1. Nothing in their binlogs shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.mysql.filters import Filters, require_unfiltered, warn_of_filters
from relay.mysql.roles import role_of
from relay.mysql.source import MySQLSource
from relay.services.mariadb import MariaDB
from tests.mysql.fake_servers import A, FakeServer
from tests.mysql.group import Group
from tests.mysql.mariadb_10 import MariaDB10
from tests.mysql.orders import DATABASE
from tests.mysql.segments import head, segment_of
from tests.mysql.server import MySQL, mostly_on_mariadb
from tests.mysql.shards import begin, open_at, read_to_head, short, source_of
from tests.reads import read_page
from tests.waiting import wait_until

WARNING = "a TRUNCATE, DROP or ALTER of tables of shop that is executed in another database"

IGNORE = {
    MariaDB: f"SET GLOBAL replicate_ignore_table = '{DATABASE}.t'",
    MySQL: f"CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({DATABASE}.t)",
}

OTHER_SERVER = "MySQL: that its filters are read and refused is tried on it here, and what follows from that on MariaDB"

RDS = (
    "mysql.plugin,mysql.rds_monitor,mysql.rds_sysinfo,mysql.rds_history,mysql.rds_replication_status,"
    "mysql.rds_configuration,innodb_memcache.config_options,innodb_memcache.cache_policies"
)
"""What RDS for MySQL has each replica ignore. Users cannot change it."""
OF_SYSTEM = "mysql.%,information_schema.%,performance_schema.%,sys.%"

ON_MARIADB = mostly_on_mariadb(OTHER_SERVER)


class FakeBefore82(FakeServer):
    """MySQL before 8.2. ``ignores``: the databases that its binlog leaves out. ``asked``: how often it said so."""

    def __init__(self, name: str, executed: str, *, ignores: str = "") -> None:
        super().__init__(name, executed)
        self.ignores = ignores
        self.asked = 0

    def named_rows(self, statement: str) -> Sequence[Mapping[str, object]]:
        if statement == "SHOW REPLICA STATUS":
            return []
        if statement != "SHOW MASTER STATUS":
            raise Unavailable("You have an error in your SQL syntax (1064)")
        self.asked += 1
        return [{"Binlog_Do_DB": "", "Binlog_Ignore_DB": self.ignores}]


@pytest.mark.parametrize("prefix", ["Binlog", "Replicate"])
@pytest.mark.parametrize(
    ("lists", "name"),
    [
        ({}, None),
        ({"Do_DB": "shop, other"}, None),
        ({"Do_DB": "shop", "Ignore_DB": "shop"}, None),
        ({"Ignore_DB": "sho,shopping"}, None),
        ({"Do_DB": "other", "Ignore_DB": ""}, "Do_DB"),
        ({"Ignore_DB": "mysql,shop"}, "Ignore_DB"),
    ],
)
def test_a_filter_by_database_leaves_out_what_the_server_leaves_out(
    prefix: str, lists: dict[str, str], name: str | None
) -> None:
    """I1"""
    filters = Filters.of({f"{prefix}_{each}": value for each, value in lists.items()}, prefix)
    assert filters.against("shop") == name


def test_each_of_several_replications_has_to_bring_all_changes_of_the_database() -> None:
    """I1"""
    server, whole = FakeBefore82("one", ""), Filters.of({}, "Replicate")
    require_unfiltered(server, [whole, whole], "shop")
    for name, value in (("Do_DB", "orders"), ("Do_DB", "shop"), ("Ignore_Table", "shop.t")):
        part = Filters.of({f"Replicate_{name}": value}, "Replicate")
        with pytest.raises(Unavailable, match=f"changes that it replicates: its Replicate_{name} is {value}: remove"):
            require_unfiltered(server, [whole, part], "shop")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"Replicate_Ignore_Server_Ids": "4242"}, "Ignore_Server_Ids is 4242"),
        ({"Replicate_Ignore_Domain_Ids": "7"}, "Ignore_Domain_Ids is 7"),
        ({"Replicate_Rewrite_DB": "shop->other"}, "Rewrite_DB is shop->other"),
        ({"Replicate_Rewrite_DB": "(a,b),(other,shop)"}, r"Rewrite_DB is \(a,b\)"),
        ({"Replicate_Of_A_Later_Server": "x"}, "Of_A_Later_Server is x"),
        ({"Replicate_Rewrite_DB": "(a,b),(shops,c)", "Replicate_Ignore_Server_Ids": ""}, r"Rewrite_DB is \(a,b\)"),
        ({"Replicate_Do_DB": "shop", "Seconds_Behind_Source": "0"}, "Do_DB is shop"),
        ({"Replicate_Ignore_DB": "other"}, "Ignore_DB is other"),
        ({"Replicate_Ignore_Table": "shop.u"}, r"Ignore_Table is shop\.u"),
        ({"Replicate_Wild_Ignore_Table": f"{OF_SYSTEM},shop.tmp%"}, "Wild_Ignore_Table is mysql"),
        ({"Replicate_Wild_Ignore_Table": "my%.%"}, "Wild_Ignore_Table is my"),
        ({"Replicate_Wild_Ignore_Table": r"innodb\_memcache.%"}, "Wild_Ignore_Table is innodb"),
        ({"Replicate_Wild_Ignore_Table": "%.tmp"}, "Wild_Ignore_Table is %"),
        ({"Replicate_Ignore_Table": f"{RDS},other.t"}, r"Ignore_Table is mysql\.plugin"),
        ({"Replicate_Wild_Do_Table": "mysql.%"}, "Wild_Do_Table is mysql"),
        ({"Replicate_Do_Table": "mysql.user"}, "Do_Table is mysql"),
        ({"Replicate_Wild_Do_Table": "shop.t%"}, "Wild_Do_Table is shop"),
        ({"Replicate_Wild_Do_Table": "shop.%", "Replicate_Wild_Ignore_Table": "shop.tmp%"}, "Wild_Ignore_Table is"),
        ({"Replicate_Wild_Do_Table": "shop.%", "Seconds_Behind_Source": "0"}, None),
        ({"Replicate_Do_DB": "", "Seconds_Behind_Source": "0"}, None),
        ({"Replicate_Ignore_Table": RDS}, None),
        ({"Replicate_Ignore_Table": "mysql.ibbackup_binlog_marker", "Replicate_Wild_Ignore_Table": OF_SYSTEM}, None),
        ({"Replicate_Wild_Do_Table": "shop.%", "Replicate_Wild_Ignore_Table": "mysql.backup_%"}, None),
    ],
)
def test_a_replica_is_only_read_if_all_that_it_says_of_its_filters_is_understood(
    status: dict[str, str], said: str | None
) -> None:
    """I1"""
    server, replications = FakeBefore82("one", ""), [Filters.of(status, "Replicate")]
    if said is None:
        require_unfiltered(server, replications, "shop")
        return
    with pytest.raises(Unavailable, match=f"it may leave out changes that it replicates: its Replicate_{said}"):
        require_unfiltered(server, replications, "shop")


@pytest.mark.parametrize("database", ["sys", "Sys", "performance_schema", "performanceXschema", "mysql", "mysql.shop"])
def test_a_filter_of_system_tables_may_leave_out_those_of_a_database_that_it_matches(database: str) -> None:
    """I1: servers compare `database.table` as a whole, and patterns without regard to case."""
    said = Filters.of({"Replicate_Wild_Ignore_Table": OF_SYSTEM}, "Replicate")
    assert said.unproven(database) == "Wild_Ignore_Table"
    assert said.unproven("mysqls") is None


def test_a_replica_whose_settings_may_skip_or_change_rows_is_not_read() -> None:
    """I1"""
    server, replications = FakeBefore82("one", ""), [Filters.of({}, "Replicate")]
    for name, value in {
        "slave_skip_errors": "1062",
        "replica_exec_mode": "IDEMPOTENT",
        "slave_type_conversions": "ALL_LOSSY,ALL_NON_LOSSY",
        "replica_type_conversions": "ALL_LOSSY",
        "slave_run_triggers_for_rbr": "YES",
        "replicate_events_marked_for_skip": "FILTER_ON_SLAVE",
    }.items():
        before, server.settings = server.settings, {**server.settings, name: value}
        with pytest.raises(Unavailable, match=f"may leave out changes that it replicates: its {name} is {value}, not"):
            require_unfiltered(server, replications, "shop")
        require_unfiltered(server, [], "shop")
        server.settings = before
    server.settings = {**server.settings, "slave_type_conversions": "ALL_NON_LOSSY", "replica_type_conversions": ""}
    require_unfiltered(server, replications, "shop")


@pytest.mark.parametrize("read_only", ["ON", "OFF"])
def test_a_member_of_a_group_whose_settings_may_skip_rows_is_not_read(read_only: str) -> None:
    """I1: SHOW REPLICA STATUS does not show what it applies; a primary has applied as a secondary, too."""
    member = FakeBefore82("one", "")
    member.sets(group_replication_group_name=A, read_only=read_only, replica_exec_mode="STRICT")
    require_unfiltered(member, role_of(member).filters, "shop")
    member.sets(replica_exec_mode="IDEMPOTENT")
    with pytest.raises(Unavailable, match="its replica_exec_mode is IDEMPOTENT, not STRICT"):
        require_unfiltered(member, role_of(member).filters, "shop")


@pytest.mark.services
def test_a_secondary_of_a_group_that_skips_what_it_cannot_apply_is_left() -> None:
    """I1"""
    with Group(2) as group:
        group.primary.execute(f"CREATE DATABASE {DATABASE}")
        (secondary,) = (each for each in group.members if each is not group.primary)
        wait_until(lambda: secondary.execute(f"SHOW DATABASES LIKE '{DATABASE}'") or None)
        source_of(DATABASE, secondary)
        secondary.execute("SET GLOBAL replica_exec_mode = IDEMPOTENT")
        with pytest.raises(Unavailable, match="its replica_exec_mode is IDEMPOTENT, not STRICT"):
            source_of(DATABASE, secondary)


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
                replica.execute("STOP REPLICA")
                replica.execute(change)
                replica.execute("START REPLICA")
            with pytest.raises(Unavailable, match=f"may leave out changes that it replicates: its {said}"):
                source_of(DATABASE, replica)


def test_the_filters_of_a_binlog_are_asked_for_in_the_words_of_each_version() -> None:
    """I1"""
    server, lower = FakeBefore82("one", "", ignores="shop"), FakeBefore82("two", "", ignores="Shop")
    lower.settings = {**lower.settings, "lower_case_table_names": "1"}
    for each in (server, server, lower):
        with pytest.raises(Unavailable, match="leaves out changes of tables of shop: remove `binlog_ignore_db`"):
            require_unfiltered(each, [], "shop")
    assert server.asked == 2  # it may close its binlog at any time


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
@ON_MARIADB
def test_a_statement_that_a_filtered_binlog_may_leave_out_is_warned_about(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: rows are filtered by the database of their table, statements by the one in which they are executed."""
    with kind(options={"binlog-do-db": "shop"}) as server:
        for statement in ("CREATE DATABASE shop", "CREATE DATABASE other", "CREATE TABLE shop.t (id INT PRIMARY KEY)"):
            server.execute(statement)
        connected = source_of("shop", server)
        start = begin(connected)["-"]
        assert WARNING in caplog.text
        caplog.clear()
        source = MySQLSource(connected.config)  # as after a failover, from a server that did not answer before
        with server.connect(database="other", autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT shop.t VALUES (1)")
            cursor.execute("TRUNCATE shop.t")
        reader = open_at(source, start)
        changes, _ = read_to_head(reader)
        reader.close()
    assert [change.operation.value for change in changes] == ["INSERT"]
    assert caplog.text.count(WARNING) == 1


def test_a_mariadb_that_does_not_say_whether_it_renames_the_database_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I1: its status has no word of `replicate_rewrite_db` before 10.11."""
    server = FakeBefore82("one", "")
    for status, warns in (
        ({"Replicate_Do_DB": "", "Replicate_Rewrite_DB": ""}, False),
        ({"Replicate_Do_DB": ""}, True),
    ):
        warn_of_filters("s", server, [Filters.of(status, "Replicate")], "shop")
        assert ("does not say whether `replicate_rewrite_db` renames shop" in caplog.text) is warns


@pytest.mark.services
@pytest.mark.parametrize("kind", [MariaDB, MariaDB10])
def test_mariadb_says_whether_it_renames_databases(kind: type[MariaDB]) -> None:
    """I1"""
    with kind(options={"replicate-rewrite-db": "a->b"}) as server:
        server.execute("CHANGE MASTER TO master_host = '127.0.0.1'")
        assert server.replication["Replicate_Rewrite_DB"] == "a->b"


@pytest.mark.services
@ON_MARIADB
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


def inserted(source: MySQLSource, primary: Any, replica: Any, table: str) -> list[tuple[str, Any, Any]]:
    """Insert a row into a table, and return what is read of it once the replica has it."""
    with closing(open_at(source, begin(source)["-"])) as reader:
        primary.execute(f"INSERT {DATABASE}.{table} VALUES (1, 'a')")
        replica.wait_for(primary.gtid)
        return short(read_to_head(reader)[0])


@pytest.mark.services
def test_statements_pass_a_filter_for_all_tables_of_the_database(kind: Any, primary: Any) -> None:
    """I1: also one that is executed in another database, or names tables of another one."""
    statements = ("INSERT {}.t VALUES (1, 'a')", "TRUNCATE {}.t", "DROP TABLE {}.t", "DROP DATABASE {}")
    with kind(options={"replicate-wild-do-table": f"{DATABASE}.%"}) as replica:
        primary.execute(f"CREATE TABLE {DATABASE}.u (id INT PRIMARY KEY)")
        replica.replicate_from(primary)
        replica.wait_for(primary.gtid)
        source = source_of(DATABASE, replica)
        with closing(open_at(source, begin(source)["-"])) as reader:
            with primary.connect(database="mysql", autocommit=True) as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement.format(DATABASE))
            replica.wait_for(primary.gtid)
            changes, _ = read_to_head(reader)
    assert [(change.operation.value, change.table) for change in changes] == [
        ("INSERT", "t"),
        ("TRUNCATE", "t"),
        ("TRUNCATE", "t"),
        ("TRUNCATE", "t"),
        ("TRUNCATE", "u"),
    ]


@pytest.mark.services
def test_a_replica_that_ignores_system_tables_is_read(kind: Any, primary: Any) -> None:
    options = {"replicate-ignore-table": "mysql.rds_monitor", "replicate-wild-ignore-table": "mysql.%"}
    with kind(options=options) as replica:
        replica.replicate_from(primary)
        replica.wait_for(primary.gtid)
        assert inserted(source_of(DATABASE, replica), primary, replica, "t") == [("INSERT", 1, "a")]


@pytest.mark.services
def test_a_replica_that_leaves_out_changes_is_not_read(kind: Any, primary: Any) -> None:
    """I1, I7: neither its binlog nor its rows, although it has executed all that its primary has."""
    primary.execute(f"CREATE TABLE {DATABASE}.u (id INT PRIMARY KEY, v VARCHAR(100))")
    with kind(options={"replicate-ignore-table": f"{DATABASE}.t"}) as replica:
        replica.replicate_from(primary)
        filter_ = rf"its Replicate_Ignore_Table is {DATABASE}\.t"
        said = rf"{replica.address}: it may leave out changes that it replicates: {filter_}"
        # `DROP TABLE t, u` is left out, too.
        for tables in (None, ["t"], ["u"]):
            with pytest.raises(Unavailable, match=said):
                source_of(DATABASE, replica, tables=tables)
        source = source_of(DATABASE, replica, primary)
        assert inserted(source, primary, replica, "t") == [("INSERT", 1, "a")]
        segment = segment_of(source, head(source), "t")
        assert [change.key for change in read_page(segment).changes] == [{"id": 1}]
        segment.close()

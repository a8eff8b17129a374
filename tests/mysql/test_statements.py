"""Statements of a real server become records, however they are written: I1, I3, I8."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from pymysql.err import IntegrityError

from relay.change import SchemaChange
from relay.errors import ConfigError
from relay.mysql.source import MySQLSource
from relay.services.mariadb import MariaDB
from relay.token import Order, compare
from tests.mysql.logged_statements import short
from tests.mysql.reading import session
from tests.mysql.shards import begin, check_refused, open_at, read_to_head, resume, source_of
from tests.mysql.shards import short as shorter

pytestmark = pytest.mark.services


def read(source: MySQLSource, start: Any) -> list[SchemaChange]:
    """Read to the head twice, from the start and in every place again, and return the statements."""
    with closing(open_at(source, start)) as reader:
        _, pages = read_to_head(reader)
    found = [each for page in pages for each in page.schema_changes]
    for page in pages:
        left = found[found.index(page.schema_changes[-1]) + 1 :] if page.schema_changes else None
        if left is not None and page.position is not None:
            with closing(resume(source, page.position)) as reader:
                _, again = read_to_head(reader)
            ids = [each.event_id for page in again for each in page.schema_changes]
            assert ids == [each.event_id for each in left]  # I3
    return found


def test_statements_are_found_however_they_are_written(server: Any, unique: str) -> None:
    with session(server, unique) as execute:
        execute("create table t (id int primary key, v varchar(20))")
        execute("create table `or``der` (id int primary key)")
        execute("create table u (id int primary key)")
        source = source_of(unique, server, tables=["t", "or`der", "u"])
        start = begin(source)["-"]
        execute("insert t values (1, 'a')")
        for sql in (
            "DROP TABLES `or``der` , " + unique + " . u",
            "/* DROP TABLE t */ ALTER -- x\n TABLE /*!40000 `t` */ ADD COLUMN n INT # DROP v",
            "CREATE TABLE `or``der` (id INT PRIMARY KEY, `a b` INT)",
            "CREATE TABLE other (id INT PRIMARY KEY)",
            "CREATE TEMPORARY TABLE u (id INT PRIMARY KEY)",
            "DROP TEMPORARY TABLE u",
            f"RENAME TABLE t TO tmp, `or``der` TO {unique}.t, tmp TO `or``der`",
            "CREATE INDEX i ON t (`a b`)",
            "CREATE VIEW u AS SELECT 'ALTER TABLE t ADD x INT' AS a",
            "DROP VIEW u",
            "CREATE TABLE u LIKE t",
            "DROP TABLE IF EXISTS other, t, `missing`, `or``der`",
        ):
            execute(sql)
        found = read(source, start)
    assert [short(each) for each in found] == [
        ("DROP", ("or`der", None, "?", None), ("u", None, "?", None)),
        ("ALTER", ("t", None, "id v", "id v n")),
        ("CREATE", ("or`der", None, None, "id a b")),
        (
            "RENAME",
            ("t", "tmp", "id v n", "id v n"),
            ("or`der", "t", "id a b", "id a b"),
            ("tmp", "or`der", "id v n", "id v n"),
        ),
        ("INDEX", ("t", None, "id a b", "id a b")),
        ("CREATE", ("u", None, None, "id a b")),
        ("DROP", ("t", None, "id a b", None), ("or`der", None, "id v n", None)),
    ]
    assert found[1].statement.startswith("/* DROP TABLE t */ ALTER -- x")
    assert len({each.event_id for each in found}) == len(found)
    tokens = [each.token for each in found]
    assert all(compare(a, b) is Order.OLDER for a, b in pairwise(tokens))


def test_a_table_that_is_created_with_its_rows_is_one_record_with_the_token_of_the_rows(
    mariadb: MariaDB, unique: str
) -> None:
    with session(mariadb, unique) as execute:
        execute("create table t (id int primary key)")
        source = source_of(unique, mariadb)
        start = begin(source)["-"]
        execute("insert t values (1), (2)")
        execute("create table u (primary key (id)) select id, 'x' as v from t")
        with closing(open_at(source, start)) as reader:
            changes, _ = read_to_head(reader)
        (found,) = read(source, start)
    assert short(found) == ("CREATE", ("u", None, None, "id v"))
    assert [change.token for change in changes if change.table == "u"] == [found.token] * 2


def test_a_database_that_is_dropped_is_one_record_of_all_its_tables(mariadb: MariaDB, unique: str) -> None:
    with session(mariadb, unique) as execute:
        execute("create table t (id int primary key)")
        execute("create table u (id int primary key)")
        source = source_of(unique, mariadb)
        start = begin(source)["-"]
        execute("insert t values (1)")
        execute(f"drop database {unique}")
        found = read(source, start)
    kinds = [short(each) for each in found]
    assert kinds == [("DROP DATABASE", ("t", None, "id", None), ("u", None, "?", None))]


def test_text_is_not_guessed_in_a_database_of_binary_text(mariadb: MariaDB, unique: str) -> None:
    with session(mariadb, unique) as execute:
        execute(f"alter database {unique} character set binary")
        execute("create table t (id int primary key)")
        source = source_of(unique, mariadb, tables=["t"])
        start = begin(source)["-"]
        execute("insert t values (1)")
        execute("alter table t add v varchar(9)")
        execute("insert t values (2, 'x')")
        execute("alter table t add w varchar(9) character set utf8mb4")
        found = read(source, start)
    assert [short(each) for each in found] == [
        ("ALTER", ("t", None, "id", "?")),
        ("ALTER", ("t", None, "id v", "id v w")),
    ]
    assert found[1].tables[0].after is not None
    assert [column.type for column in found[1].tables[0].after.columns] == ["int", "bytes", "string"]


def test_columns_are_known_without_rows_of_a_table_that_stood_when_reading_began(primary: Any, unique: str) -> None:
    """I8: and not those of a table that a statement was about in between."""
    with session(primary, unique) as execute:
        for table in ("t", "u"):
            execute(f"create table {table} (id int primary key, v varchar(20))")
        source = source_of(unique, primary)
        start = begin(source)["-"]
        execute("alter table u add a int")
        with closing(open_at(source, start)) as reader:
            _, pages = read_to_head(reader)
            execute(f"set timestamp = {int(time.time()) + 5}")
            execute("alter table t add a int")
            execute("alter table u add b int")
            pages += read_to_head(reader)[1]
    found = [short(each) for page in pages for each in page.schema_changes]
    assert found == [
        ("ALTER", ("u", None, "?", "?")),
        ("ALTER", ("t", None, "id v", "id v a")),
        ("ALTER", ("u", None, "?", "?")),
    ]


def test_names_are_found_in_any_case_on_a_server_that_has_them_in_lower_case(unique: str) -> None:
    """I1: statements are logged as they were written, and rows with the names that the server has."""
    with MariaDB(options={"lower-case-table-names": 1}) as server, session(server, unique) as execute:
        execute("CREATE TABLE Orders (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2")
        with pytest.raises(ConfigError, match=f"the database is spelled {unique}: use this spelling"):
            source_of(unique.upper(), server)
        source = source_of(unique, server, tables=["orders"])
        start = begin(source)["-"]
        execute("INSERT Orders VALUES (1)")
        execute("TRUNCATE ORDERS")
        execute("INSERT orders VALUES (2)")
        execute(f"RENAME TABLE Orders TO Old, {unique.upper()}.OLD TO {unique.upper()}.ORDERS")
        found = read(source, start)
        with closing(open_at(source, start)) as reader:
            changes, _ = read_to_head(reader)
        execute("ALTER TABLE Orders TRUNCATE PARTITION p0")
        check_refused(source, start, f"rows of {unique}.orders without logging them")
    assert [change.operation.value for change in changes] == ["INSERT", "TRUNCATE", "INSERT"]
    assert [short(each) for each in found] == [
        ("TRUNCATE", ("orders", None, "id", "id")),
        ("RENAME", ("orders", "old", "id", "id"), ("old", "orders", "id", "id")),
    ]


def test_a_table_that_a_procedure_alters_after_it_has_used_a_temporary_one_is_a_real_one(
    server: Any, unique: str
) -> None:
    """I1: MySQL marks all of its statements then."""
    body = "INSERT other VALUES (1, 1); TRUNCATE t; ALTER TABLE t ADD n INT; CREATE INDEX i ON t (n)"
    with session(server, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        execute(f"CREATE PROCEDURE p() BEGIN {body}; END")
        source = source_of(unique, server)
        start = begin(source)["-"]
        execute("CREATE TEMPORARY TABLE other (id INT PRIMARY KEY, v INT)")
        execute("CALL p()")
        with closing(open_at(source, start)) as reader:
            changes, pages = read_to_head(reader)
    assert [change.operation.value for change in changes] == ["TRUNCATE"]
    assert [short(each)[0] for page in pages for each in page.schema_changes] == ["TRUNCATE", "ALTER", "INDEX"]


@pytest.mark.parametrize("form", ["STATEMENT", "MIXED"])
def test_a_temporary_table_of_a_session_is_not_taken_for_the_table_of_its_name(
    mariadb: Any, unique: str, form: str
) -> None:
    """I7: only flags of the events say so where a session logs statements, and a TRUNCATE empties copies."""
    server = mariadb
    with session(server, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        source = source_of(unique, server)
        start = begin(source)["-"]
        execute("INSERT t VALUES (1, 1)")
        execute(f"SET SESSION binlog_format = {form}")
        for name in ("t", "other"):
            execute(f"CREATE TEMPORARY TABLE {name} (id INT PRIMARY KEY, v INT)")
        for sql in ("TRUNCATE t", "ALTER TABLE t ADD n INT", "CREATE INDEX i ON t (n)", "TRUNCATE t", "DROP TABLE t"):
            execute(sql)
        with closing(open_at(source, start)) as reader:
            changes, pages = read_to_head(reader)
            assert [change.operation.value for change in changes] == ["INSERT"]
            assert [short(each) for page in pages for each in page.schema_changes] == []
            execute("TRUNCATE other")
            execute("TRUNCATE t")
            changes, pages = read_to_head(reader)
        assert [change.operation.value for change in changes] == ["TRUNCATE"]
        assert [short(each)[0] for page in pages for each in page.schema_changes] == ["TRUNCATE"]


def test_an_alter_table_that_is_logged_in_two_phases_is_one_statement_where_it_ends(unique: str) -> None:
    """I8: it is logged when it begins, when nothing is altered yet, and again when it ends or is given up."""
    with MariaDB(options={"binlog-alter-two-phase": 1}) as server, session(server, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        source = source_of(unique, server)
        start = begin(source)["-"]
        execute("INSERT t VALUES (1, 1), (2, 1)")
        with pytest.raises(IntegrityError):
            execute("ALTER TABLE t ADD n INT, ADD UNIQUE (v)")
        execute("ALTER TABLE t ADD n INT")
        execute("INSERT t VALUES (3, 3, 3)")
        found = read(source, start)
        with closing(open_at(source, start)) as reader:
            changes, _ = read_to_head(reader)
    assert [short(each) for each in found] == [("ALTER", ("t", None, "id v", "id v n"))]
    assert [change.key for change in changes] == [{"id": 1}, {"id": 2}, {"id": 3}]
    first, second, third = (change.token for change in changes)
    assert compare(first, found[0].token) is compare(second, found[0].token) is Order.OLDER
    assert compare(third, found[0].token) is Order.NEWER


def test_a_table_that_is_renamed_is_emptied_under_the_name_before_and_one_that_is_exchanged_is_not(
    server: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: rotated tables, and the end of an online schema change, whose rows are a copy."""
    with session(server, unique) as execute, session(server, f"{unique}_other"):
        for table in ("t", "u", "t_new"):
            execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
        source = source_of(unique, server, tables=["t", "u"])
        start = begin(source)["-"]
        for table in ("t", "u", "t_new"):
            execute(f"INSERT {table} VALUES (1, 1)")
        execute("RENAME TABLE t TO t_old, t_new TO t")
        execute("RENAME TABLE t TO t_2024")
        execute("CREATE TABLE t LIKE t_2024")
        execute("INSERT t VALUES (2, 2)")
        execute(f"ALTER TABLE u ADD n INT, RENAME TO {unique}_other.u")
        with closing(open_at(source, start)) as reader:
            changes, pages = read_to_head(reader)
        again = read(source, start)
    emptied = ("TRUNCATE", None, None)
    assert [(change.table, short_form) for change, short_form in zip(changes, shorter(changes), strict=True)] == [
        ("t", ("INSERT", 1, 1)),
        ("u", ("INSERT", 1, 1)),
        ("t", emptied),
        ("t", ("INSERT", 2, 2)),
        ("u", emptied),
    ]
    assert [each for page in pages for each in page.schema_changes] == again
    assert [each.kind for each in again] == ["RENAME", "RENAME", "CREATE", "ALTER"]
    assert "table t has the rows of t_new now" in caplog.text


@pytest.mark.parametrize(
    ("statements", "tables"),
    [
        (["RENAME TABLE t TO old, other TO t"], {"t": "other"}),
        (["DROP TABLE u", "ALTER TABLE other RENAME u"], {"u": "other"}),
        (["RENAME TABLE t TO x, u TO t, x TO u"], {"t": "u", "u": "x"}),
        (["RENAME TABLE t TO old"], {}),
        (["RENAME TABLE other TO another"], {}),
    ],
)
def test_a_table_that_gets_the_rows_of_another_is_warned_of(
    statements: list[str], tables: dict[str, str], server: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I7: its copy keeps the rows from before, since no change shows them."""
    with session(server, unique) as execute:
        for table in ("t", "u", "other"):
            execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
        source = source_of(unique, server, tables=["t", "u"])
        start = begin(source)["-"]
        for statement in statements:
            execute(statement)
        with closing(open_at(source, start)) as reader:
            read_to_head(reader)
    said = [record.getMessage() for record in caplog.records if "which no change shows" in record.getMessage()]
    assert [each.split(": ")[1] for each in said] == [
        f"table {new} has the rows of {old} now, which no change shows" for new, old in tables.items()
    ]


def test_a_table_that_was_dropped_without_a_binlog_is_emptied_where_it_is_created_again(
    server: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1, I7: else a copy keeps the rows from before."""
    with session(server, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        source = source_of(unique, server)
        with closing(open_at(source, begin(source)["-"])) as reader:
            execute("INSERT t VALUES (1, 1)")
            for is_logged in (1, 0):
                execute(f"SET SESSION sql_log_bin = {is_logged}")
                execute("DROP TABLE t")
                execute("SET SESSION sql_log_bin = 1")
                execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
                execute("INSERT t VALUES (2, 2)")
            changes, _ = read_to_head(reader)
    emptied = ("TRUNCATE", None, None)
    assert shorter(changes) == [("INSERT", 1, 1), emptied, ("INSERT", 2, 2), emptied, ("INSERT", 2, 2)]
    assert caplog.text.count("nothing in the binlog has removed the table before it") == 1


def test_a_function_whose_changes_are_logged_as_a_statement_is_refused(
    server: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: only its call is logged, which names no table. A trigger of another table shows in a warning at least."""
    with session(server, unique) as execute:
        for table in ("t", "other"):
            execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
        execute(
            "CREATE FUNCTION f(n INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
            " BEGIN INSERT t VALUES (n); RETURN n; END"
        )
        source = source_of(unique, server, tables=["t"])
        start = begin(source)["-"]
        execute("SET SESSION binlog_format = STATEMENT")
        for at in (1, 2):
            execute(f"INSERT other VALUES ({at})")
        with closing(open_at(source, start)) as reader:
            read_to_head(reader)
        assert caplog.text.count("triggers to relayed tables are not in the binlog: 'INSERT other") == 1
        execute("SELECT f(1)")
        assert execute("SELECT * FROM t") == ((1,),)
        check_refused(source, start, f"may affect tables of {unique} is logged as a statement")


@pytest.mark.parametrize("change", ["UPDATE w SET v = 2", "SELECT f()", "INSERT x VALUES (1)"])
def test_a_change_in_another_database_that_is_logged_as_a_statement_is_warned_of(
    change: str, server: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: a view, a function and a trigger there may change a relayed table, and nothing in the binlog names it."""
    with session(server, unique) as execute, session(server, f"{unique}_other") as elsewhere:
        execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        execute("INSERT t VALUES (1, 1)")
        elsewhere(f"CREATE VIEW w AS SELECT * FROM {unique}.t")
        elsewhere("CREATE TABLE x (id INT PRIMARY KEY)")
        elsewhere(f"CREATE TRIGGER r AFTER INSERT ON x FOR EACH ROW UPDATE {unique}.t SET v = 2")
        elsewhere(
            "CREATE FUNCTION f() RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
            f" BEGIN UPDATE {unique}.t SET v = 2; RETURN 1; END"
        )
        source = source_of(unique, server)
        start = begin(source)["-"]
        elsewhere("SET SESSION binlog_format = STATEMENT")
        elsewhere(change)
        assert execute("SELECT v FROM t") == ((2,),)
        with closing(open_at(source, start)) as reader:
            changes, _ = read_to_head(reader)
    assert changes == []
    assert caplog.text.count("so changes by a view, a function or triggers to relayed tables are not") == 1

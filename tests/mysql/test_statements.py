"""Statements of a real server become records, however they are written: I1, I3, I8."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from pymysql.err import IntegrityError, MySQLError

from relay.change import SchemaChange, TableColumns
from relay.errors import ConfigError
from relay.mysql.errors import NotCarried
from relay.mysql.source import MySQLSource
from relay.mysql_dialect.statement_text import tokens
from relay.services.mariadb import MariaDB
from relay.token import Order, compare
from tests.mysql.reading import is_mysql, session
from tests.mysql.shards import begin, open_at, read_to_head, resume, source_of

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


def names(columns: TableColumns | None, by: str | None) -> Any:
    return "?" if by is None else columns and " ".join(column.name for column in columns.columns)


def short(change: SchemaChange) -> tuple[Any, ...]:
    return change.kind, *(
        (table.table, table.renamed_to, names(table.before, table.before_by), names(table.after, table.after_by))
        for table in change.tables
    )


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


def test_a_database_that_is_replaced_has_dropped_its_tables(mariadb: MariaDB, unique: str) -> None:
    """I1: MariaDB logs no DROP before it."""
    with session(mariadb, unique) as execute:
        execute("create table t (id int primary key)")
        source = source_of(unique, mariadb)
        start = begin(source)["-"]
        execute("insert t values (1)")
        execute(f"create or replace database {unique}")
        with closing(open_at(source, start)) as reader:
            changes, pages = read_to_head(reader)
    assert [change.operation.value for change in changes] == ["INSERT", "TRUNCATE"]
    assert [short(each)[0] for page in pages for each in page.schema_changes] == ["DROP DATABASE"]


def test_a_table_that_a_sequence_replaces_is_dropped(mariadb: MariaDB, unique: str) -> None:
    """I1: MariaDB logs no DROP before it."""
    with session(mariadb, unique) as execute:
        execute("create table t (id int primary key)")
        source = source_of(unique, mariadb, tables=["t"])
        start = begin(source)["-"]
        execute("insert t values (1)")
        execute("create or replace sequence t")
        execute("create or replace sequence s")
        with closing(open_at(source, start)) as reader:
            changes, pages = read_to_head(reader)
    assert [change.operation.value for change in changes] == ["INSERT", "TRUNCATE"]
    assert [short(each)[:2] for page in pages for each in page.schema_changes] == [("DROP", ("t", None, "id", None))]


@pytest.mark.parametrize("name", ["prix·2024", "prix\u3000", "prix\xa0b", "2024t", "$x", "9été", "表"])
def test_a_table_that_is_emptied_is_the_one_whose_name_the_server_reads(server: Any, unique: str, name: str) -> None:
    """I1: its name needs no quotes, and `prix` is another table."""
    with session(server, unique) as execute:
        for table in ("prix", f"`{name}`"):
            execute(f"create table {table} (id int primary key)")
        source = source_of(unique, server, tables=["prix", name])
        start = begin(source)["-"]
        for table in ("prix", f"`{name}`"):
            execute(f"insert {table} values (1)")
        # MariaDB knows a third form, but a dot before digits begins a number.
        written = [name, f"{unique}.{name}", name if is_mysql(server) or name[0].isdigit() else f".{name}"]
        for each in written:
            execute(f"truncate table {each}")
        assert execute("select count(*) from prix") == ((1,),)
        with closing(open_at(source, start)) as reader:
            changes, _ = read_to_head(reader)
    found = [(change.operation.value, change.table) for change in changes]
    assert found == [("INSERT", "prix"), ("INSERT", name), *[("TRUNCATE", name)] * 3]


def test_words_are_separated_by_what_separates_them_in_the_character_set_of_the_client(
    server: Any, unique: str
) -> None:
    """I1: in sets of single bytes a no-break space does."""
    with session(server, unique) as execute:
        execute("create table t (id int primary key, v varchar(9))")
        source = source_of(unique, server)
        start = begin(source)["-"]
        execute("insert t values (1, 'a')")
        with closing(server.connect(charset="latin1", database=unique)) as client, client.cursor() as cursor:
            cursor.execute("alter\xa0table\xa0t\xa0add w varchar(9) comment 'a\xa0b'")
            cursor.execute("truncate\xa0t")
        with closing(open_at(source, start)) as reader:
            changes, pages = read_to_head(reader)
    assert [change.operation.value for change in changes] == ["INSERT", "TRUNCATE"]
    altered, _ = (each for page in pages for each in page.schema_changes)
    assert altered.statement == "alter table t add w varchar(9) comment 'a\xa0b'"


def test_each_character_is_one_of_a_name_or_ends_it_as_on_the_server(server: Any) -> None:
    """I1: all characters that a name can have."""
    beyond = [chr(code) for code in range(0x80, 0x10000) if not 0xD800 <= code < 0xE000]
    with closing(server.connect()) as client, client.cursor() as cursor:
        for at in range(0, len(beyond), 1000):
            aliases = [f"a{character}b" for character in beyond[at : at + 1000]]
            cursor.execute("select " + ", ".join(f"1 {alias}" for alias in aliases))
            assert [column[0] for column in cursor.description] == aliases
        for character in map(chr, range(0x80)):
            try:
                cursor.execute(f"select 1 as a{character}b")
            except MySQLError:
                is_of_name = False
            else:
                is_of_name = cursor.description[0][0] == f"a{character}b"
            assert is_of_name == (next(tokens(f"a{character}b", False)).text == f"a{character}b"), repr(character)
    for character in beyond:
        assert next(tokens(f"a{character}b", False)).text == f"a{character}b"


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
        with pytest.raises(ConfigError, match=f"calls the database {unique}: write it so"):
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
        with (
            closing(open_at(source, start)) as reader,
            pytest.raises(NotCarried, match=f"rows of {unique}.orders without logging them"),
        ):
            read_to_head(reader)
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
    said = [record.getMessage() for record in caplog.records if "and no change shows them" in record.getMessage()]
    assert [each.split(": ")[1] for each in said] == [
        f"table {new} has the rows of {old} now, and no change shows them" for new, old in tables.items()
    ]


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
        assert caplog.text.count("what its triggers change in relayed ones is not in the binlog: 'INSERT other") == 1
        execute("SELECT f(1)")
        assert execute("SELECT * FROM t") == ((1,),)
        with (
            closing(open_at(source, start)) as reader,
            pytest.raises(NotCarried, match=f"may be to tables of {unique} is logged as a statement"),
        ):
            read_to_head(reader)


def test_a_table_that_is_created_with_rows_is_relayed_where_rows_are_logged_and_refused_elsewhere(
    server: Any, unique: str
) -> None:
    """I1"""
    with session(server, unique) as execute:
        execute("create table t (id int primary key)")
        source = source_of(unique, server)
        start = begin(source)["-"]
        execute("create table u (id int primary key) select 1 as id")
        execute("create table if not exists u (id int primary key) select 2 as id")
        with closing(open_at(source, start)) as reader:
            changes, _ = read_to_head(reader)
        assert [change.key for change in changes] == [{"id": 1}]
        execute("set session binlog_format = statement")
        execute("create table v (id int primary key) select 1 as id")
        with (
            closing(open_at(source, start)) as reader,
            pytest.raises(NotCarried, match=r"may be to .*\.v is logged as"),
        ):
            read_to_head(reader)

"""Statements of a real server are about the tables that the server takes them to be about: I1."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from pymysql.err import MySQLError

from relay.mysql_dialect.statement_text import tokens
from relay.services.mariadb import MariaDB
from tests.mysql.logged_statements import short
from tests.mysql.reading import is_mysql, session
from tests.mysql.shards import begin, check_refused, open_at, read_to_head, source_of

pytestmark = pytest.mark.services


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


@pytest.mark.parametrize(
    ("mode", "written"),
    [("MSSQL", "[x]]y]"), ("ANSI_QUOTES", '"x]y"'), ("NO_BACKSLASH_ESCAPES", "`x]y` /* ' */"), ("ORACLE", '"x]y"')],
)
def test_a_table_that_is_emptied_is_the_one_whose_name_the_session_reads(
    mariadb: MariaDB, unique: str, mode: str, written: str
) -> None:
    """I1."""
    with session(mariadb, unique) as execute:
        execute("create table `x]y` (id int primary key, v int)")
        source = source_of(unique, mariadb, tables=["x]y"])
        start = begin(source)["-"]
        execute("insert `x]y` values (1, 1)")
        execute(f"set sql_mode = '{mode}'")
        backslash = "\\" if mode == "NO_BACKSLASH_ESCAPES" else "\\\\"
        execute(f"alter table {written} add w int comment '{backslash}'")
        execute(f"truncate table {written}")
        execute(f"create or replace table {written} (id int primary key)")
        execute(f"drop table {written}")
        with closing(open_at(source, start)) as reader:
            changes, pages = read_to_head(reader)
    assert [change.operation.value for change in changes] == ["INSERT", *["TRUNCATE"] * 3]
    kinds = [short(each)[0] for page in pages for each in page.schema_changes]
    assert kinds == ["ALTER", "TRUNCATE", "CREATE", "DROP"]


@pytest.mark.parametrize(
    ("mode", "charset", "sql"),
    [("ANSI_QUOTES", "utf8mb4", "set statement sql_mode = '' for truncate \"t\""), ("", "swe7", "truncate `t`")],
)
def test_a_statement_that_may_have_been_read_another_way_is_refused(
    mariadb: MariaDB, unique: str, mode: str, charset: str, sql: str
) -> None:
    """I1: its event has the mode that SET STATEMENT gives, and a quote of ASCII is a letter in swe7."""
    with session(mariadb, unique) as execute:
        execute("create table t (id int primary key)")
        source = source_of(unique, mariadb, tables=["t"])
        start = begin(source)["-"]
        execute(f"set sql_mode = '{mode}', character_set_client = {charset}")
        execute(sql)
        check_refused(source, start, f"may affect tables of {unique}")


@pytest.mark.parametrize("charset", ["sjis", "gbk", "ascii"])
def test_a_statement_about_no_table_is_passed_by_although_its_text_does_not_decode(
    server: Any, unique: str, charset: str
) -> None:
    """A client may say another character set than the one it writes in."""
    with session(server, unique) as execute:
        execute("create table t (id int primary key)")
        source = source_of(unique, server)
        start = begin(source)["-"]
        execute(f"set character_set_client = {charset}")
        execute("create procedure p() begin end /* né */")
        execute("create view v as select 1 /* né */")
        execute("drop procedure p /* né */")
        execute("insert t values (1)")
        with closing(open_at(source, start)) as reader:
            changes, _ = read_to_head(reader)
    assert [change.operation.value for change in changes] == ["INSERT"]


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
            assert is_of_name == (next(tokens(f"a{character}b", 0)).text == f"a{character}b"), repr(character)
    for character in beyond:
        assert next(tokens(f"a{character}b", 0)).text == f"a{character}b"


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
        check_refused(source, start, r"may affect .*\.v is logged as")

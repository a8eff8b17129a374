"""Tables read in chunks of their primary key: every row once whatever its key, with the values that the binlog has."""

from __future__ import annotations

from typing import Any

import pytest

from relay.errors import RelayError
from relay.mysql.binlog.events import Rows
from relay.mysql.chunks import ChunkQuery, TableDescription, limit_for
from relay.mysql.database_snapshots import describe
from relay.mysql.errors import NotCarried
from relay.mysql_dialect.charsets import NotText
from tests.mysql.chunk_reads import prepared, read_all
from tests.mysql.column_types import matrix_of
from tests.mysql.key_types import KEYS
from tests.mysql.reading import connected, is_mysql, reading, session

pytestmark = pytest.mark.services


def test_a_row_has_the_same_values_by_a_select_and_by_an_update_in_the_binlog(server: Any, unique: str) -> None:
    """I8: every column type, value by value, and the same layout."""
    matrix = matrix_of(server)
    row_format = " row_format=dynamic" if is_mysql(server) else ""
    with session(server, unique) as execute, reading(server, unique) as binlog, connected(server) as connection:
        columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(matrix))
        execute(f"create table t (id int primary key, touched int, {columns}){row_format}")
        names = ", ".join(f"c{at}" for at in range(len(matrix)))
        execute(f"insert t (id, {names}) values (1, {', '.join(value for _, value, *_ in matrix)})")
        execute("insert t (id) values (2)")
        execute("update t set touched = 1")
        events = [event for event in binlog.each() if isinstance(event, Rows)]
        found = describe(prepared(connection), unique, "t")
        rows = read_all(connection, ChunkQuery(unique, "t", found), 10)
    logged = events[-1].table
    changes = [change for event in events for change in event.changes]
    for row, (_, updated) in zip(rows, changes[-2:], strict=True):
        assert updated is not None
        for name, value, same in zip(logged.names, row, updated, strict=True):
            assert repr(value) == repr(same), name
    assert tuple(found.definition("t").columns) == logged.schema.row


def test_every_row_is_read_once_in_chunks_of_any_size_whatever_its_key(server: Any, unique: str) -> None:
    """I1, I3"""
    with session(server, unique) as execute, connected(server) as connection:
        prepared(connection)
        for name, (columns, rows) in KEYS.items():
            table = f"by_{name}"
            names = [part.split()[0] for part in columns.split(", ")]
            execute(f"create table {table} ({columns}, v int default 7, primary key ({', '.join(names)}))")
            execute(f"insert {table} ({', '.join(names)}) values {rows}")
            ((count,),) = execute(f"select count(*) from {table}")
            query = ChunkQuery(unique, table, describe(connection, unique, table))
            whole = read_all(connection, query, 100)
            assert len(whole) == count == rows.count("),(") + 1, table
            for limit in (1, 2, 3):
                assert read_all(connection, query, limit) == whole, (table, limit)


def test_a_table_without_a_primary_key_is_refused_by_name(mariadb: Any, unique: str) -> None:
    with session(mariadb, unique) as execute, connected(mariadb) as connection:
        execute("create table loose (a int)")
        with pytest.raises(RelayError, match=rf"the table {unique}\.loose has no primary key"):
            ChunkQuery(unique, "loose", describe(connection, unique, "loose"))


def test_a_table_with_a_year_of_two_digits_is_refused_by_its_column(mariadb: Any, unique: str) -> None:
    """I8: the binlog has four, and a key of two digits would be another row."""
    with session(mariadb, unique) as execute, connected(mariadb) as connection:
        execute("create table short (y year(2), z year, primary key (y))")
        with pytest.raises(
            RelayError, match=r"short cannot be read: column y: SELECT prints two digits of a YEAR\(2\)"
        ):
            ChunkQuery(unique, "short", describe(connection, unique, "short"))


@pytest.mark.parametrize("kind", ["datetime /* mariadb-5.3 */", "xmltype"])
def test_a_table_with_a_column_that_cannot_be_relayed_is_refused_by_its_name_and_column(kind: str) -> None:
    """I8, I12: not by an error that ends the other sources as well."""
    found = TableDescription((("id", "int(11)", None, None), ("x", kind, None, None)), ())
    with pytest.raises(NotCarried, match=r"the table shop\.t cannot be .* its column x"):
        found.definition("shop.t")


def test_text_that_is_not_a_character_is_kept_as_its_bytes(mariadb: Any, unique: str) -> None:
    """I8: the server would print a question mark. ``tests/mysql/test_odd_text.py`` shows what becomes of the row."""
    with session(mariadb, unique) as execute, connected(mariadb) as connection:
        prepared(connection)
        execute("create table odd (id int primary key, v varchar(9) character set greek)")
        execute("insert odd values (4, _greek x'a4')")
        query = ChunkQuery(unique, "odd", describe(connection, unique, "odd"))
        ((_, value),) = read_all(connection, query, 5)
        assert (value, type(value)) == (b"\xa4", NotText)


def test_the_next_chunk_has_about_the_bytes_of_a_page() -> None:
    """I11"""
    assert limit_for(500, 50_000, 20_000, 1 << 20) == 1000  # twice as many at most
    assert limit_for(1000, 10 << 20, 20_000, 1 << 20) == 100
    assert limit_for(1, 16 << 20, 20_000, 1 << 20) == 1
    assert limit_for(19_000, 1000, 20_000, 1 << 20) == 20_000

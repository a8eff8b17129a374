"""How many rows and index entries a server reads for a snapshot, whatever the primary key is of: about its rows."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from relay.errors import RelayError
from relay.mysql.chunks import PRIMARY, ChunkQuery, Part, TableDescription, UniqueIndex
from relay.mysql.connection import ServerConnection
from relay.mysql.database_snapshots import describe
from relay.mysql_dialect.tables import Row
from tests.mysql.chunk_reads import prepared, read_all
from tests.mysql.reading import NUMBERS, connected, is_mysql, session

pytestmark = pytest.mark.services

MANY = ",".join(f"'m{at}'" for at in range(4000))
LETTERS = ",".join(f"'{letter}'" for letter in "zyxabcdefghi")
FORMS = {
    "whole": ("a int, b int", "a", "n, n"),
    "unsigned": ("a bigint unsigned, b int", "a, b", "18446744073709551615 - n div 900, n"),
    "exact": ("a decimal(30,10), b int", "a, b", "n / 7000, n"),
    "double": ("a double, b int", "a, b", "n / 7, n"),
    "single": ("a float, b int", "a, b", "(n div 9) / 7, n"),
    "text": ("a varchar(20), b int", "a, b", "concat('é', n div 900), n"),
    "german": ("a char(20) character set latin1 collate latin1_german2_ci, b int", "a, b", "concat('ß', n div 900), n"),
    "binary_text": ("a varchar(20) collate utf8mb4_bin, b int", "a, b", "concat('A ', n div 900), n"),
    "wide": ("a varchar(20) character set utf16, b int", "a, b", "n div 900, n"),
    "bytes": ("a varbinary(20), b int", "a, b", "concat(n div 900, '\\0'), n"),
    "padded": ("a binary(9), b int", "a, b", "n div 900, n"),
    "bits": ("a bit(20), b int", "a, b", "n div 900, n"),
    "day": ("a date, b int", "a, b", "'2024-01-01' + interval n div 900 day, n"),
    "moment": ("a datetime(6), b int", "a, b", "'2024-01-01 00:00:00.1' + interval n div 900 second, n"),
    "clock": ("a time(3), b int", "a, b", "sec_to_time(n div 900 - 3.125), n"),
    "instant": ("a timestamp(6), b int", "a, b", "'2024-01-01 00:00:00.1' + interval n div 900 second, n"),
    "in_year": ("a year, b int", "a, b", "1901 + n div 900, n"),
    "choice": ("a enum('z','a','m','2'), b int", "a, b", "1 + n % 4, n"),
    "wide_choice": ("a enum('z','ä','''') character set utf16, b int", "a, b", "1 + n % 3, n"),
    "many_choices": (f"a enum({MANY}), b int", "b, a", "1 + n % 4000, n div 4000"),
    "choice_alone": (f"a int, b enum({MANY})", "b, a", "n div 4000, 1 + n % 4000"),
    "no_choice": ("a enum('z','a'), b int", "a, b", "if(n % 3, n % 3, 'other'), n"),
    "choice_between": ("a int, b int, c enum('z','a','m')", "a, c, b", "n % 3, n, 1 + n % 3"),
    "several": ("a set('z','a','m'), b int", "a, b", "n % 8, n"),
    "many": (f"a set({LETTERS}), b int", "a, b", "n % 4096, n"),
    "descending": ("a int, b int", "a desc, b", "n % 60, n"),
    "all_descending": ("a varchar(9), b datetime", "a desc, b desc", "n % 60, '2024-01-01' + interval n second"),
    "ascending_descending": ("a int, b decimal(9,2)", "a, b desc", "n % 60, n / 4"),
    "choice_descending": ("a enum('z','a','m'), b set('z','a','m'), c int", "a desc, b desc, c", "1 + n % 3, n % 8, n"),
    "beginning": ("a varchar(40) collate utf8mb4_general_ci, b int", "a(10)", "concat(lpad(n, 10, '0'), 'x'), n"),
    "beginning_of_text": ("a text collate utf8mb4_bin, b int", "a(10) desc", "concat(lpad(n, 10, '0'), 'x'), n"),
    "beginning_of_bytes": ("a blob, b int", "a(10), b", "concat(lpad(n div 9, 10, '0'), n), n"),
    "beginning_behind": (
        "a int, b varchar(40) character set latin1 collate latin1_swedish_ci",
        "a, b(10)",
        "n % 4, concat(lpad(n, 10, '0'), 'x')",
    ),
}
"""Columns, key, and the values of row ``n``."""
OF_MARIADB = {
    "uuid": ("a uuid, b int", "a, b", "concat('00000000-0000-0000-0000-', lpad(n div 9, 12, '0')), n"),
    "address": ("a inet6, b int", "a, b", "concat('::', hex(n div 9)), n"),
}
OF_MYSQL = {"generated": ("a int, b int as (a % 60) stored", "b, a", "n")}


def count_of(execute: Any) -> int:
    """Return how many rows and index entries a session has read."""
    return sum(int(value) for _, value in execute("show session status like 'Handler_read%'"))


def reads_of(connection: ServerConnection, query: ChunkQuery, limit: int) -> tuple[list[Row], int]:
    """Read a table in chunks, and return what the server has read meanwhile."""
    before = count_of(connection.execute)
    asked = count_of(connection.execute) - before  # by the question itself
    rows = read_all(connection, query, limit)
    return rows, count_of(connection.execute) - before - 2 * asked


def tables(
    server: Any, execute: Any, connection: ServerConnection, database: str, size: int
) -> Iterator[tuple[str, ChunkQuery, str]]:
    """Yield a table of each form with ``size`` rows, its statements, and one that inserts rows of numbers ``{}``."""
    prepared(connection)
    execute(f"set {'cte_max_recursion_depth' if is_mysql(server) else 'max_recursive_iterations'} = 1000000")
    for name, (columns, key, values) in (FORMS | (OF_MYSQL if is_mysql(server) else OF_MARIADB)).items():
        table = f"by_{name}"
        execute(f"create table {table} ({columns}, v int, primary key ({key}))")
        names = [column.split()[0] for column in columns.split(", ") if " as " not in column]
        insert = f"insert {table} (v, {', '.join(names)}) select n, {values} from {{}} as numbers"
        execute(insert.format(NUMBERS.format(size, "")))
        yield table, ChunkQuery(database, table, describe(connection, database, table)), insert


@pytest.mark.parametrize("size", [2_000, pytest.param(100_000, marks=pytest.mark.faults("the same of large tables"))])
def test_a_server_reads_the_rows_of_a_chunk_and_few_others_whatever_the_key_is_of(
    server: Any, unique: str, size: int
) -> None:
    """Counted by the server. It looks for each member of an ENUM and a SET, and reads and sorts first characters."""
    with session(server, unique) as execute, connected(server) as connection:
        for table, query, _ in tables(server, execute, connection, unique, size):
            rows, reads = reads_of(connection, query, size // 50)
            assert sorted(row[-1] for row in rows) == list(range(1, size + 1)), table
            most = (3.5 if "beginning" in table else 1) * size + 100
            most += 4100 if "many" in table or "alone" in table else 0
            assert reads <= most, (table, reads)


def test_rows_that_stay_are_read_once_while_others_change_between_the_chunks(server: Any, unique: str) -> None:
    """I1, I3: the rows of a chunk, and those behind its end, are in the order of one index."""
    with session(server, unique) as execute, connected(server) as connection:
        for table, query, insert in tables(server, execute, connection, unique, 300):
            seen: list[int] = []
            after: list[bytes] = []
            has_more, read, made = True, True, 300
            while has_more or read:
                statement, has_more = query.statement(after, 7, connection.raw_rows)
                chunk = list(connection.raw_rows(statement))
                read = bool(chunk)
                seen += [query.row(raw)[-1] for raw in chunk]
                after = query.key_of(chunk[-1]) if chunk else after
                # Rows whose numbers three does not divide go: before, at and behind the chunk's end. Others come.
                execute(
                    f"delete from {table} where v % 3 and v in ({', '.join(map(str, seen[-3:]))}, {len(seen)}, 200)"
                )
                if made < 400:
                    execute(insert.format(f"(select {made + 1} as n union all select {made + 2})"))
                    made += 2
            assert len(seen) == len(set(seen)), table
            assert {number for number in seen if number % 3 == 0} >= set(range(3, 301, 3)), table


ODD = [
    "aßb",
    "assb",
    "ab\xadc",
    "abc",
    "abd",
    "a",
    "",
    "A",
    "b\t",
    "b",
    "เกa",
    "ขab",
    "เขa",
    "cha",
    "cia",
    "hab",
    "é1",
    "e\u03011",
]


def test_every_row_is_read_by_the_first_characters_of_its_key_whatever_texts_are_equal(
    server: Any, unique: str
) -> None:
    """I1: whole texts may be equal that do not begin equally."""
    newest = "utf8mb4_0900_ai_ci" if is_mysql(server) else "utf8mb4_uca1400_ai_ci"
    with session(server, unique) as execute, connected(server) as connection:
        prepared(connection)
        for collation in ("utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_czech_ci", newest):
            execute(f"create table {collation} (a text collate {collation}, primary key (a(3)))")
            for text in ODD:
                execute(f"insert ignore {collation} values (%s)", (text,))
            ((count,),) = execute(f"select count(*) from {collation}")
            rows = read_all(connection, ChunkQuery(unique, collation, describe(connection, unique, collation)), 1)
            assert len(set(rows)) == len(rows) == count >= 12, collation


@pytest.mark.parametrize(("charset", "collation"), [("cp1250", "cp1250_czech_cs"), ("latin7", "latin7_estonian_cs")])
def test_every_row_is_read_in_a_collation_that_sorts_texts_in_another_order_than_it_compares_them(
    server: Any, unique: str, charset: str, collation: str
) -> None:
    """I1"""
    random = Random(3)
    texts = {"".join(random.choices("aAcCchHdDžZ- .1é", k=random.randint(0, 4))) for _ in range(300)}
    columns = f"a varchar(20) character set {charset} collate {collation}, b set({LETTERS},'j')"
    with session(server, unique) as execute, connected(server) as connection:
        prepared(connection)
        for at, key in enumerate(("a(2)", "a", "a(2), b", "b, a")):
            execute(f"create table t{at} ({columns}, primary key ({key}))")
            for text in sorted(texts):
                execute(f"insert ignore t{at} values (%s, 3)", (text,))
            ((count,),) = execute(f"select count(*) from t{at}")
            rows = read_all(connection, ChunkQuery(unique, f"t{at}", describe(connection, unique, f"t{at}")), 1)
            assert len(set(map(str, rows))) == len(rows) == count > 100, key


ELSEWHERE = {
    "hashed": ("a int", "a", "n", " engine=memory"),
    "large_set": (f"a set({LETTERS},'j')", "a", "n", ""),
    "beginning": ("a varchar(20) collate utf8mb4_unicode_ci", "a(3)", "lpad(n, 3, '0')", ""),
}
"""Tables whose primary key is of no use: a column, the key, the value of row ``n``, and the engine."""


def test_a_table_that_cannot_be_read_by_its_primary_key_is_read_by_another_index(server: Any, unique: str) -> None:
    """I1: one that has each row once, and that statements may use."""
    hidden = "invisible" if is_mysql(server) else "ignored"
    columns = "b int not null, c int, d int not null, e varchar(20) not null, v int"
    unused = f"unique first (c), unique second (d) {hidden}, unique third (e(3))"
    with session(server, unique) as execute, connected(server) as connection:
        prepared(connection)
        for table, (column, key, value, engine) in ELSEWHERE.items():
            indexes = f"primary key ({key}), {unused}, unique usable (b) using btree"
            if not engine and not is_mysql(server):  # a hash of MariaDB, in a hidden column
                indexes += ", unique fourth (f)"
                column += ", f text not null default uuid()"
            execute(f"create table {table} ({column}, {columns}, {indexes}){engine}")
            numbers = NUMBERS[1:-1].format(900, f", -n, if(n % 2, null, n), n, n, {value}")
            execute(f"insert {table} (v, b, c, d, e, a) {numbers}")
            query = ChunkQuery(unique, table, describe(connection, unique, table))
            rows, reads = reads_of(connection, query, 30)
            assert [row[-1] for row in rows] == list(range(900, 0, -1)), table
            assert reads <= 1000, (table, reads)
            execute(f"alter table {table} drop index usable")
            slow = ChunkQuery(unique, table, describe(connection, unique, table))
            assert slow.order != query.order
            assert sorted(row[-1] for row in read_all(connection, slow, 300)) == list(range(1, 901)), table


def test_a_large_table_that_can_only_be_read_anew_for_each_chunk_is_refused_with_the_cost() -> None:
    columns = (("a", f"set({LETTERS},'j')", "utf8mb4", "utf8mb4_bin"),)
    query = ChunkQuery("shop", "t", TableDescription(columns, (UniqueIndex(PRIMARY, (Part("a"),)),)))
    query.require_cheap(10_000, 10 << 20, 1 << 20)
    with pytest.raises(
        RelayError, match=r"the table shop\.t would read about 50000000000 rows to get 10000000, because .*UNIQUE"
    ):
        query.require_cheap(10**7, 10**4 << 20, 1 << 20)

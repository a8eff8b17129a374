"""Every column type of a real MariaDB comes back through its binlog as SELECT says it, exactly (I8)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.errors import RelayError
from relay.mysql.binlog.events import Rows
from relay.mysql.errors import NotCarried
from tests.mysql.reading import reading, session

pytestmark = pytest.mark.services

POINT = b"\xe6\x10\x00\x00\x01\x01\x00\x00\x00" + struct.pack("<dd", 1, 2)
MATRIX: list[tuple[str, str, str, Any]] = [
    ("tinyint", "-128", "int", -128),
    ("tinyint(1)", "1", "int", 1),
    ("tinyint unsigned", "255", "int", 255),
    ("smallint", "-32768", "int", -32768),
    ("mediumint", "-8388608", "int", -8388608),
    ("mediumint unsigned", "16777215", "int", 16777215),
    ("year", "2155", "int", 2155),
    ("year", "0", "int", 0),
    ("int", "-2147483648", "int", -2147483648),
    ("int unsigned zerofill", "4294967295", "long", 4294967295),
    ("bigint", "-9223372036854775808", "long", -9223372036854775808),
    ("bigint unsigned", "18446744073709551615", "decimal(20,0)", 18446744073709551615),
    (
        "decimal(30,10)",
        "-12345678901234567890.0123456789",
        "decimal(30,10)",
        Decimal("-12345678901234567890.0123456789"),
    ),
    ("decimal(65,30)", "1.5", "decimal(65,30)", Decimal("1.500000000000000000000000000000")),
    ("decimal(5,5)", "-0.00001", "decimal(5,5)", Decimal("-0.00001")),
    ("decimal(10,0)", "-7", "decimal(10,0)", Decimal("-7")),
    ("float", "3.99", "float", 3.99),
    ("float", "-0e0", "float", -0.0),
    ("double", "1e300", "double", 1e300),
    ("double(10,2)", "3.14159", "double", 3.14),
    ("bit(9)", "b'101010101'", "bytes", b"\x01\x55"),
    ("bit(1)", "b'1'", "bytes", b"\x01"),
    ("bit(64)", "18446744073709551615", "bytes", b"\xff" * 8),
    ("enum('a','größer','x,y')", "'größer'", "string", "größer"),
    ("enum('a','é') character set latin1", "'é'", "string", "é"),
    ("enum('a','b')", "'no member'", "string", ""),
    ("set('x','y','z')", "'z,x'", "set", ["x", "z"]),
    ("set('x','y','z') character set utf16", "''", "set", []),
    ("date", "'2024-02-29'", "string", "2024-02-29"),
    ("date", "'0000-00-00'", "string", "0000-00-00"),
    ("datetime", "'0000-00-00 00:00:00'", "string", "0000-00-00 00:00:00"),
    ("datetime", "'9999-12-31 23:59:59'", "string", "9999-12-31 23:59:59"),
    *(
        (f"datetime({n})", "'2024-02-29 23:59:59.987654'", "string", f"2024-02-29 23:59:59.{'987654'[:n]}")
        for n in range(1, 7)
    ),
    ("time", "'-838:59:59'", "string", "-838:59:59"),
    ("time(2)", "'-00:00:00.01'", "string", "-00:00:00.01"),
    ("time(6)", "'838:59:59.000001'", "string", "838:59:59.000001"),
    *((f"time({n})", "'-123:04:05.987654'", "string", f"-123:04:05.{'987654'[:n]}") for n in range(1, 7)),
    ("timestamp null", "'2024-01-01 00:00:00'", "timestamp", 1704067200000000),
    ("timestamp(3) null", "'2024-01-01 00:00:00.125'", "timestamp", 1704067200125000),
    ("timestamp(6) null", "'1970-01-01 00:00:01.000001'", "timestamp", 1000001),
    ("timestamp null", "'2038-01-19 03:14:07'", "timestamp", 2147483647000000),
    ("timestamp null", "'0000-00-00 00:00:00'", "timestamp", 0),
    ("char(4)", "'a '", "string", "a"),
    ("char(255)", "repeat('é', 255)", "string", "é" * 255),
    ("varchar(20) character set latin1", "'café€'", "string", "café€"),
    ("varchar(20)", "'😀  '", "string", "😀  "),
    ("varchar(5) character set utf16", "'é😀'", "string", "é😀"),
    ("varchar(5) character set sjis", "'日本'", "string", "日本"),
    ("text character set latin1", "'café'", "string", "café"),
    ("tinytext", "'t'", "string", "t"),
    ("mediumtext", "repeat('m', 70000)", "string", "m" * 70000),
    ("longtext collate utf8mb4_uca1400_ai_ci", "'l'", "string", "l"),
    ("json", """'{"b": 1.50,"a":[]}'""", "string", '{"b": 1.50,"a":[]}'),
    ("binary(4)", "'ab'", "bytes", b"ab\0\0"),
    ("binary(255)", "''", "bytes", bytes(255)),
    ("varbinary(5)", "'cd\\0'", "bytes", b"cd\0"),
    ("varbinary(5000)", "repeat('v', 5000)", "bytes", b"v" * 5000),
    ("blob", "x'00ff'", "bytes", b"\0\xff"),
    ("longblob", "x''", "bytes", b""),
    ("point", "ST_GeomFromText('POINT(1 2)', 4326)", "bytes", POINT),
    ("geometry", "ST_GeomFromText('POINT(1 2)', 4326)", "bytes", POINT),
    ("uuid", "'123e4567-e89b-12d3-a456-426655440000'", "bytes", bytes.fromhex("123e4567e89b12d3a456426655440000")),
    ("inet6", "'::1'", "bytes", bytes(15) + b"\1"),
    ("inet4", "'10.1.0.0'", "bytes", b"\x0a\1\0\0"),
    ("varchar(300) compressed", "repeat('q', 250)", "string", "q" * 250),
    ("varchar(300) compressed", "'short'", "string", "short"),
    ("text compressed character set latin1", "repeat('é', 2500)", "string", "é" * 2500),
    ("blob compressed", "repeat('w', 70000)", "bytes", b"w" * 65535),
    ("mediumblob compressed", "repeat('w', 70000)", "bytes", b"w" * 70000),
    ("varbinary(300) compressed", "''", "bytes", b""),
    ("int invisible default 7", "7", "int", 7),
    ("int as (id + 1) virtual", "default", "int", 2),
    ("text as (concat('x', id)) stored", "default", "string", "x1"),
]


def test_a_value_of_every_type_and_null_come_back(mariadb: Any, unique: str) -> None:
    """I8."""
    with session(mariadb, unique) as execute, reading(mariadb, unique) as reader:
        columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(MATRIX))
        execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
        names = ", ".join(f"c{at}" for at in range(len(MATRIX)))
        execute(f"INSERT INTO t (id, {names}) VALUES (1, {', '.join(value for _, value, _, _ in MATRIX)})")
        nulls = ("default" if "as (" in kind else "NULL" for kind, *_ in MATRIX)
        execute(f"INSERT INTO t (id, {names}) VALUES (2, {', '.join(nulls)})")
        (full,), (empty,) = (event.changes for event in reader.told() if isinstance(event, Rows))
    assert full[1] is not None
    assert empty[1] is not None
    for (kind, text, _, expected), seen, null in zip(MATRIX, full[1][1:], empty[1][1:], strict=True):
        assert repr(seen) == repr(expected), f"{text} as {kind}"
        assert (null is None) == ("as (" not in kind), kind


def test_a_column_of_every_type_is_carried_as_the_table_says(mariadb: Any, unique: str) -> None:
    with session(mariadb, unique) as execute, reading(mariadb, unique) as reader:
        columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(MATRIX))
        execute(f"CREATE TABLE t (id INT, {columns}, PRIMARY KEY (c8, id))")
        execute("INSERT INTO t (id) VALUES (1)")
        (rows,) = (event for event in reader.told() if isinstance(event, Rows))
    schema = rows.table.schema
    assert schema.row is not None
    assert [(column.name, column.type) for column in schema.row[1:]] == [
        (f"c{at}", carried) for at, (_, _, carried, _) in enumerate(MATRIX)
    ]
    assert [column.name for column in schema.key] == ["c8", "id"]


@dataclass(frozen=True)
class Kind:
    """A column type, the values drawn for it, and how SELECT is to print one so that it can be compared."""

    sql: str
    values: st.SearchStrategy[Any]
    select: str = "{}"


def bits(count: int, unsigned: bool) -> st.SearchStrategy[int]:
    return st.integers(0, 2**count - 1) if unsigned else st.integers(-(2 ** (count - 1)), 2 ** (count - 1) - 1)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CLOCK = st.tuples(
    st.integers(0, 838), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999), st.booleans()
).map(lambda each: f"{'-' if each[4] else ''}{each[0]:02d}:{each[1]:02d}:{each[2]:02d}.{each[3]:06d}")
DAY = st.dates().map(str)
MOMENT = (
    st.datetimes()
    .map(lambda each: f"{each:%H:%M:%S}.{each.microsecond:06d}")
    .flatmap(lambda clock: DAY.map(lambda day: f"{day} {clock}"))
)

KINDS = [
    *(
        Kind(f"{name}{' unsigned' * unsigned}", bits(size, unsigned))
        for unsigned in (False, True)
        for name, size in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))
    ),
    Kind("decimal(20,6)", st.decimals(-(10**13), 10**13, places=6)),
    Kind("decimal(65,0)", st.integers(-(10**65) + 1, 10**65 - 1)),
    Kind("double", st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False).map(repr)),
    Kind("year", st.integers(1901, 2155)),
    Kind("date", DAY, "cast({} as char)"),
    *(Kind(f"datetime({n})", MOMENT, "cast({} as char)") for n in (0, 1, 4, 6)),
    *(Kind(f"time({n})", CLOCK, "cast({} as char)") for n in (0, 3, 5, 6)),
    *(
        Kind(
            f"timestamp({n}) null",
            st.integers(1, 2**31 - 1).map(lambda each: each),
            "cast(unix_timestamp({}) * 1000000 as int)",
        )
        for n in (0, 6)
    ),
    Kind("char(40)", TEXT.map(lambda text: text.rstrip(" "))),
    Kind("varchar(40)", TEXT),
    Kind("varchar(400)", TEXT),
    Kind("varchar(40) character set latin1", st.text(st.characters(codec="cp1252"), max_size=40)),
    Kind("varchar(40) character set ucs2", st.text(st.characters(max_codepoint=0xD7FF), max_size=40)),
    Kind("varchar(40) character set eucjpms", st.text("あいう漢字～ー", max_size=40)),
    Kind("mediumtext compressed", TEXT.map(lambda text: text * 50)),
    Kind("varbinary(60)", st.binary(max_size=60)),
    Kind("binary(20)", st.binary(max_size=20)),
    Kind("mediumblob", st.binary(max_size=400)),
    Kind("bit(17)", st.integers(0, 2**17 - 1)),
    Kind("enum('a','b','größer')", st.sampled_from(("a", "b", "größer"))),
    Kind(
        "set('a','b','c','d','e','f','g','h','i')",
        st.sets(st.sampled_from("abcdefghi")).map(lambda each: ",".join(sorted(each))),
    ),
    Kind(
        "json",
        st.dictionaries(st.text("abc", max_size=3), st.integers(), max_size=3).map(
            lambda each: str(each).replace("'", '"')
        ),
    ),
]


def printed(value: Any, kind: Kind) -> Any:
    """Return a value from the binlog as SELECT gives it."""
    if kind.sql.startswith("set"):
        return ",".join(value)
    return value


@given(data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_random_rows_of_random_tables_come_back_as_select_says(mariadb: Any, data: st.DataObject) -> None:
    """I8."""
    compare_random_rows(mariadb, KINDS, data)


def compare_random_rows(server: Any, of: Sequence[Kind], data: st.DataObject) -> None:
    """Draw a table and rows of it, and compare what the binlog and what SELECT says of them."""
    kinds = data.draw(st.lists(st.sampled_from(of), min_size=1, max_size=20))
    row = st.tuples(*(st.none() | kind.values for kind in kinds))
    drawn = data.draw(st.lists(row, min_size=1, max_size=8))
    changed = data.draw(row)
    names = [f"c{at}" for at in range(len(kinds))]
    wanted = ", ".join(kind.select.format(name) for kind, name in zip(kinds, names, strict=True))
    marks = ", ".join("from_unixtime(%s)" if "timestamp" in kind.sql else "%s" for kind in kinds)
    with session(server, "random_rows") as execute:
        execute("DROP TABLE IF EXISTS t")
        execute(
            "CREATE TABLE t (id INT PRIMARY KEY, "
            + ", ".join(f"{n} {k.sql}" for n, k in zip(names, kinds, strict=True))
            + ")"
        )
        with reading(server, "random_rows") as reader:
            for at, values in enumerate(drawn):
                execute(f"INSERT INTO t VALUES ({at}, {marks})", values)
            first = execute(f"SELECT id, {wanted} FROM t ORDER BY id")
            execute(f"REPLACE INTO t VALUES (0, {marks})", changed)
            second = execute(f"SELECT id, {wanted} FROM t WHERE id = 0")
            execute("DELETE FROM t WHERE id = 0")
            changes = reader.changes()

    def shown(image: Any) -> tuple[Any, ...]:
        return (image[0], *(None if v is None else printed(v, k) for v, k in zip(image[1:], kinds, strict=True)))

    assert [shown(after) for _, after in changes[: len(drawn)]] == list(first)
    # A REPLACE is an update, or a delete and an insert, or nothing if it changes nothing.
    seen = [shown(image) for change in changes[len(drawn) :] for image in change if image is not None]
    assert set(map(repr, seen)) == {repr(first[0]), repr(second[0])}
    assert changes[-1][1] is None


def test_rows_from_before_an_alter_are_read_as_they_were_then(mariadb: Any, unique: str) -> None:
    """I8: the table looks different by the time they are read."""
    with session(mariadb, unique) as execute, reading(mariadb, unique) as reader:
        execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b ENUM('x', 'y'), c VARCHAR(9) CHARACTER SET latin1)")
        execute("INSERT INTO t VALUES (1, -1, 'y', 'é')")
        execute("ALTER TABLE t MODIFY a INT UNSIGNED FIRST, MODIFY b ENUM('y', 'x', 'z'), CHANGE c d VARCHAR(9)")
        execute("INSERT INTO t VALUES (4294967295, 2, 'y', '😀')")
        execute("ALTER TABLE t DROP COLUMN d, DROP PRIMARY KEY, ADD PRIMARY KEY (b, id)")
        execute("INSERT INTO t VALUES (3, 3, 'z')")
        execute("DROP TABLE t")
        found = [event for event in reader.told() if isinstance(event, Rows)]
    assert [event.table.names for event in found] == [("id", "a", "b", "c"), ("a", "id", "b", "d"), ("a", "id", "b")]
    assert [event.changes[0][1] for event in found] == [(1, -1, "y", "é"), (4294967295, 2, "y", "😀"), (3, 3, "z")]
    assert [[key.name for key in event.table.schema.key] for event in found] == [["id"], ["id"], ["b", "id"]]


@pytest.mark.parametrize(
    ("before", "statement", "says"),
    [
        (
            "SET binlog_row_image = MINIMAL",
            "UPDATE t SET n = 2",
            r"a row of .*\.t was logged without all its columns.*FULL",
        ),
        ("SET binlog_format = STATEMENT", "UPDATE t SET n = 2", r"\.t is logged as a statement.*ROW"),
        ("DO 0", "XA START 'a'; UPDATE t SET n = 2; XA END 'a'; XA PREPARE 'a'; XA COMMIT 'a'", r"XA.*\.t"),
    ],
)
def test_what_cannot_be_read_exactly_is_refused_with_its_place(
    mariadb: Any, unique: str, before: str, statement: str, says: str
) -> None:
    """I8."""
    with session(mariadb, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
        execute("INSERT INTO t VALUES (1, 1)")
        with reading(mariadb, unique) as reader:
            execute(before)
            for each in statement.split("; "):
                execute(each)
            with pytest.raises(NotCarried, match=says) as raised:
                reader.told()
        assert "GTID 0-" in str(raised.value)
        with reading(mariadb, "another") as other:  # of another database it says nothing
            assert other.told() == []


def test_times_of_mariadb_5_3_are_refused_since_their_decimals_are_not_logged(mariadb: Any, unique: str) -> None:
    """I8."""
    with session(mariadb, unique) as execute:
        mariadb.execute("SET GLOBAL mysql56_temporal_format = OFF")
        try:
            execute("CREATE TABLE t (id INT PRIMARY KEY, at DATETIME(3))")
        finally:
            mariadb.execute("SET GLOBAL mysql56_temporal_format = ON")
        with reading(mariadb, unique) as reader:
            execute("INSERT INTO t VALUES (1, '2024-01-02 03:04:05.678')")
            with pytest.raises(NotCarried, match=r"\.t .*column at .*mysql56_temporal_format"):
                reader.told()
        execute("ALTER TABLE t FORCE")
        with reading(mariadb, unique) as reader:
            execute("INSERT INTO t VALUES (2, '2024-01-02 03:04:05.678')")
            assert reader.rows() == [(2, "2024-01-02 03:04:05.678")]


def test_metadata_that_is_missing_is_refused_with_what_to_set(mariadb: Any, unique: str) -> None:
    """I8."""
    with session(mariadb, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY)")
        mariadb.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
        try:
            with reading(mariadb, unique) as reader:
                execute("INSERT INTO t VALUES (1)")
                with pytest.raises(RelayError, match=r"\.t .*binlog_row_metadata = 'FULL'"):
                    reader.told()
        finally:
            mariadb.execute("SET GLOBAL binlog_row_metadata = FULL")

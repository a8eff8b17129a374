"""Column types of both flavours: a value of each, and what random values of each look like."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.mysql.reading import is_mysql

_MARIADB_POINT = b"\xe6\x10\x00\x00\x01\x01\x00\x00\x00" + struct.pack("<dd", 1, 2)
MARIADB_MATRIX: list[tuple[str, str, str, Any]] = [
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
    ("float", "16777215", "float", 16777215.0),
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
    ("point", "ST_GeomFromText('POINT(1 2)', 4326)", "bytes", _MARIADB_POINT),
    ("geometry", "ST_GeomFromText('POINT(1 2)', 4326)", "bytes", _MARIADB_POINT),
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
"""Column type, value in SQL, the type that carries it, and the value in a row."""

_MARIADB_ONLY = ("uuid", "inet", "compressed", "uca1400", "json", "point", "geometry")


def _is_common(kind: str, value: str = "") -> bool:
    # MariaDB truncates superfluous decimals and MySQL rounds; MySQL's longest time has no decimals.
    return not any(word in kind for word in _MARIADB_ONLY) and not any(part in value for part in ("987654", "838:"))


# In SRID 4326 MySQL takes the latitude first, but stores x and y.
_MYSQL_POINT = b"\xe6\x10\x00\x00\x01\x01\x00\x00\x00" + struct.pack("<dd", 2, 1)
_LINE = b"\0\0\0\0\x01\x02\0\0\0\x02\0\0\0" + struct.pack("<dddd", 0, 0, 1, 1)
_SECOND = "2024-02-29 23:59:59.123456"
MYSQL_MATRIX: list[tuple[str, str, str, Any]] = [
    *(each for each in MARIADB_MATRIX if _is_common(*each[:2])),
    *((f"datetime({n})", "'2024-02-29 23:59:59.123456'", "string", _SECOND[: 20 + n]) for n in (1, 2, 3, 6)),
    ("datetime(2)", "'2024-02-29 23:59:59.999'", "string", "2024-03-01 00:00:00.00"),
    *((f"time({n})", "'-123:04:05.123456'", "string", f"-123:04:05.{'123457'[:n]}") for n in (1, 3)),
    ("time", "'-838:59:59'", "string", "-838:59:59"),
    ("time(6)", "'-123:04:05.000001'", "string", "-123:04:05.000001"),
    ("json", """'{"b": 1.50,"a":[]}'""", "string", '{"a": [], "b": 1.5}'),
    ("json", "'null'", "string", "null"),
    ("json", "cast(18446744073709551615 as json)", "string", "18446744073709551615"),
    ("point", "ST_GeomFromText('POINT(1 2)', 4326)", "bytes", _MYSQL_POINT),
    ("geometry srid 0", "ST_GeomFromText('LINESTRING(0 0, 1 1)')", "bytes", _LINE),
    ("varchar(9) collate utf8mb4_0900_ai_ci", "'é😀'", "string", "é😀"),
    ("varchar(9) collate utf8mb4_0900_bin", "'é😀'", "string", "é😀"),
    ("varchar(9) collate utf8mb4_ja_0900_as_cs_ks", "'日本'", "string", "日本"),
    ("varchar(9) collate utf8mb4_zh_0900_as_cs", "'中'", "string", "中"),
    ("vector(3)", "string_to_vector('[1,2.5,-3]')", "bytes", struct.pack("<fff", 1, 2.5, -3)),
    ("char(9) character set gb18030", "'中'", "string", "中"),
    ("char(3) character set binary", "'ab'", "bytes", b"ab\0"),
    ("enum('a','ß') collate utf8mb4_0900_ai_ci", "'ß'", "string", "ß"),
    ("float unsigned", "3.99", "float", 3.99),
    ("double unsigned", "1.5", "double", 1.5),
    ("decimal(8,3) unsigned", "12345.678", "decimal(8,3)", Decimal("12345.678")),
    ("bigint unsigned as (id * 2) virtual invisible", "default", "decimal(20,0)", 2),
    ("json as (json_array(id)) stored", "default", "string", "[1]"),
]


def matrix_of(server: Any) -> list[tuple[str, str, str, Any]]:
    """Return the matrix of a server, which may be too old for some types."""
    if not is_mysql(server):
        return MARIADB_MATRIX
    ((version,),) = server.execute("SELECT VERSION()")
    has_vectors = int(version.partition(".")[0]) >= 9
    return [each for each in MYSQL_MATRIX if has_vectors or not each[0].startswith("vector")]


@dataclass(frozen=True)
class ValueKind:
    """A column type, the values drawn for it, and how SELECT is to print one so that it can be compared."""

    sql: str
    values: st.SearchStrategy[Any]
    select: str = "{}"


def _bits(count: int, unsigned: bool) -> st.SearchStrategy[int]:
    return st.integers(0, 2**count - 1) if unsigned else st.integers(-(2 ** (count - 1)), 2 ** (count - 1) - 1)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_CLOCK = st.tuples(
    st.integers(0, 838), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999), st.booleans()
).map(lambda each: f"{'-' if each[4] else ''}{each[0]:02d}:{each[1]:02d}:{each[2]:02d}.{each[3]:06d}")
_DAY = st.dates().map(str)
_MOMENT = (
    st.datetimes()
    .map(lambda each: f"{each:%H:%M:%S}.{each.microsecond:06d}")
    .flatmap(lambda clock: _DAY.map(lambda day: f"{day} {clock}"))
)

MARIADB_KINDS = [
    *(
        ValueKind(f"{name}{' unsigned' * unsigned}", _bits(size, unsigned))
        for unsigned in (False, True)
        for name, size in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))
    ),
    ValueKind("decimal(20,6)", st.decimals(-(10**13), 10**13, places=6)),
    ValueKind("decimal(65,0)", st.integers(-(10**65) + 1, 10**65 - 1)),
    ValueKind("double", st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False).map(repr)),
    ValueKind("year", st.integers(1901, 2155)),
    ValueKind("date", _DAY, "cast({} as char)"),
    *(ValueKind(f"datetime({n})", _MOMENT, "cast({} as char)") for n in (0, 1, 4, 6)),
    *(ValueKind(f"time({n})", _CLOCK, "cast({} as char)") for n in (0, 3, 5, 6)),
    *(
        ValueKind(
            f"timestamp({n}) null",
            st.integers(1, 2**31 - 1).map(lambda each: each),
            "cast(unix_timestamp({}) * 1000000 as int)",
        )
        for n in (0, 6)
    ),
    ValueKind("char(40)", TEXT.map(lambda text: text.rstrip(" "))),
    ValueKind("varchar(40)", TEXT),
    ValueKind("varchar(400)", TEXT),
    ValueKind("varchar(40) character set latin1", st.text(st.characters(codec="cp1252"), max_size=40)),
    ValueKind("varchar(40) character set ucs2", st.text(st.characters(max_codepoint=0xD7FF), max_size=40)),
    ValueKind("varchar(40) character set eucjpms", st.text("あいう漢字～ー", max_size=40)),
    ValueKind("mediumtext compressed", TEXT.map(lambda text: text * 50)),
    ValueKind("varbinary(60)", st.binary(max_size=60)),
    ValueKind("binary(20)", st.binary(max_size=20)),
    ValueKind("mediumblob", st.binary(max_size=400)),
    ValueKind("bit(17)", st.integers(0, 2**17 - 1)),
    ValueKind("enum('a','b','größer')", st.sampled_from(("a", "b", "größer"))),
    ValueKind(
        "set('a','b','c','d','e','f','g','h','i')",
        st.sets(st.sampled_from("abcdefghi")).map(lambda each: ",".join(sorted(each))),
    ),
    ValueKind(
        "json",
        st.dictionaries(st.text("abc", max_size=3), st.integers(), max_size=3).map(
            lambda each: str(each).replace("'", '"')
        ),
    ),
]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)
MYSQL_KINDS = [
    *(
        ValueKind(each.sql, each.values, each.select.replace("as int", "as signed"))
        for each in MARIADB_KINDS
        if _is_common(each.sql)
    ),
    ValueKind("varchar(40) collate utf8mb4_0900_as_cs", TEXT),
    ValueKind("json", _JSON.map(json.dumps), "cast({} as char)"),
]

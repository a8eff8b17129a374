"""Decoding of row events, without a server: every type of MySQL, NULLs anywhere, truncated and malformed bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.config.protection import NOT_SHOWN
from relay.mysql.binlog.rows import RowDecoder, columns_of
from relay.mysql.binlog.table_map import BadTableMap, parse
from relay.table import Column
from tests.examples import examples
from tests.mysql import encoder
from tests.mysql.encoder import ColumnType, decimal, image, rows, sized, table_map

LATIN1, UTF8MB4, BINARY = 8, 255, 63


@dataclass(frozen=True)
class Case:
    """A column type, the type that carries it, the values drawn for it, and what they must be decoded to."""

    type: ColumnType
    carried: str
    values: st.SearchStrategy[Any]
    read: Any = None

    def expected(self, value: Any) -> Any:
        return value if value is None or self.read is None else self.read(value)


def fixed(code: str, kind: int, unsigned: bool = False) -> ColumnType:
    return ColumnType(kind, b"", struct.Struct(f"<{code}").pack, unsigned)


def whole(bits: int, unsigned: bool) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1) if unsigned else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def text(longest: int, collation: int, alphabet: str | None = None) -> Case:
    code = "<B" if longest < 256 else "<H"
    python = {UTF8MB4: "utf-8", LATIN1: "cp1252", BINARY: "latin-1"}[collation]

    def encode(value: Any) -> bytes:
        raw = value if isinstance(value, bytes) else value.encode(python)
        return struct.pack(code, len(raw)) + raw

    kind = ColumnType(15, struct.pack("<H", longest), encode, collation=collation)
    if collation == BINARY:
        return Case(kind, "bytes", st.binary(max_size=min(longest, 300)))
    return Case(kind, "string", st.text(st.characters(codec=python), max_size=min(longest // 4, 70)))


def blob(size: int, kind: int = 252, collation: int | None = BINARY) -> Case:
    column = ColumnType(
        kind, bytes([size]), lambda value: len(value).to_bytes(size, "little") + value, collation=collation
    )
    return Case(column, "bytes", st.binary(max_size=255))


def packed_time(decimals: int, raw: int, size: int) -> bytes:
    return raw.to_bytes(size + (decimals + 1) // 2, "big")


def fraction(decimals: int, digits: int) -> int:
    return digits * 10 if decimals % 2 else digits


def datetime2(decimals: int) -> Case:
    def encode(value: tuple[int, ...]) -> bytes:
        year, month, day, hour, minute, second, part = value
        raw = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
        width = 8 * ((decimals + 1) // 2)
        return packed_time(decimals, (raw | 1 << 39) << width | fraction(decimals, part), 5)

    def read(value: tuple[int, ...]) -> str:
        shown = "{:04d}-{:02d}-{:02d} {:02d}:{:02d}:{:02d}".format(*value[:6])
        return f"{shown}.{value[6]:0{decimals}d}" if decimals else shown

    values = st.tuples(
        st.integers(0, 9999),
        st.integers(0, 12),
        st.integers(0, 31),
        st.integers(0, 23),
        st.integers(0, 59),
        st.integers(0, 59),
        st.integers(0, 10**decimals - 1),
    )
    return Case(ColumnType(18, bytes([decimals]), encode), "string", values, read)


def time2(decimals: int) -> Case:
    width = 8 * ((decimals + 1) // 2)

    def encode(value: tuple[bool, int, int, int, int]) -> bytes:
        negative, hour, minute, second, part = value
        raw = (hour << 12 | minute << 6 | second) << width | fraction(decimals, part)
        return packed_time(decimals, (0x800000 << width) + (-raw if negative else raw), 3)

    def read(value: tuple[bool, int, int, int, int]) -> str:
        negative, *clock, part = value
        sign = "-" if negative and any(value[1:]) else ""
        shown = sign + ":".join(f"{each:02d}" for each in clock)
        return f"{shown}.{part:0{decimals}d}" if decimals else shown

    values = st.tuples(
        st.booleans(), st.integers(0, 838), st.integers(0, 59), st.integers(0, 59), st.integers(0, 10**decimals - 1)
    )
    return Case(ColumnType(19, bytes([decimals]), encode), "string", values, read)


def timestamp2(decimals: int) -> Case:
    def encode(value: tuple[int, int]) -> bytes:
        width = 8 * ((decimals + 1) // 2)
        return packed_time(decimals, value[0] << width | fraction(decimals, value[1]), 4)

    values = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 10**decimals - 1))
    return Case(
        ColumnType(17, bytes([decimals]), encode),
        "timestamp",
        values,
        lambda value: value[0] * 1_000_000 + value[1] * 10 ** (6 - decimals),
    )


def decimals(precision: int, scale: int) -> Case:
    limit = 10**precision - 1
    values = st.integers(-limit, limit).map(lambda number: Decimal(number).scaleb(-scale, encoder._WIDE))
    return Case(decimal(precision, scale), f"decimal({precision},{scale})", values)


MEMBERS = ("small", "größer", "x,y", "")
CASES = [
    Case(fixed("b", 1), "int", whole(8, False)),
    Case(fixed("B", 1, True), "int", whole(8, True)),
    Case(fixed("h", 2), "int", whole(16, False)),
    Case(fixed("H", 2, True), "int", whole(16, True)),
    Case(ColumnType(9, b"", lambda value: value.to_bytes(3, "little", signed=True)), "int", whole(24, False)),
    Case(ColumnType(9, b"", lambda value: value.to_bytes(3, "little"), True), "int", whole(24, True)),
    Case(fixed("i", 3), "int", whole(32, False)),
    Case(fixed("I", 3, True), "long", whole(32, True)),
    Case(fixed("q", 8), "long", whole(64, False)),
    Case(fixed("Q", 8, True), "decimal(20,0)", whole(64, True)),
    Case(ColumnType(5, b"\x08", struct.Struct("<d").pack), "double", st.floats(allow_nan=False)),
    Case(ColumnType(13, b"", lambda value: bytes([value - 1900]), True), "int", st.integers(1901, 2155)),
    blob(4, kind=242),
    Case(ColumnType(16, b"\x01\x01", lambda value: value), "bytes", st.binary(min_size=2, max_size=2)),
    Case(
        ColumnType(10, b"", lambda value: (value[0] << 9 | value[1] << 5 | value[2]).to_bytes(3, "little")),
        "string",
        st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)),
        lambda value: f"{value[0]:04d}-{value[1]:02d}-{value[2]:02d}",
    ),
    Case(
        ColumnType(12, b"", lambda value: struct.pack("<q", int("".join(value)))),
        "string",
        st.just(("2024", "02", "29", "23", "59", "58")),
        lambda value: "2024-02-29 23:59:58",
    ),
    Case(
        ColumnType(11, b"", lambda value: value.to_bytes(3, "little", signed=True)),
        "string",
        st.sampled_from((-8385959, 0, -1, 123456)),
        {-8385959: "-838:59:59", 0: "00:00:00", -1: "-00:00:01", 123456: "12:34:56"}.get,
    ),
    Case(fixed("I", 7), "timestamp", whole(32, True), lambda value: value * 1_000_000),
    *(each(places) for each in (datetime2, time2, timestamp2) for places in range(7)),
    *(
        decimals(*each)
        for each in ((1, 0), (5, 5), (9, 0), (10, 2), (12, 2), (18, 9), (20, 10), (38, 19), (65, 30), (65, 0))
    ),
    text(255, UTF8MB4),
    text(256, UTF8MB4),
    text(100, LATIN1),
    text(20, BINARY),
    Case(
        ColumnType(254, b"\xfe\x08", lambda value: sized(value.rstrip(b"\0")), collation=BINARY),
        "bytes",
        st.binary(min_size=8, max_size=8),
    ),
    # CHAR(255) of utf8mb4: 1020 bytes, two bits of which are in the type.
    Case(
        ColumnType(254, b"\xce\xfc", lambda value: struct.pack("<H", len(value)) + value, collation=UTF8MB4),
        "string",
        st.text(st.characters(codec="ascii"), max_size=20).map(str.encode),
        bytes.decode,
    ),
    *(blob(size) for size in (1, 2, 3, 4)),
    blob(4, 255, None),
    Case(
        ColumnType(247, b"\x01", lambda value: bytes([value]), collation=UTF8MB4, members=MEMBERS),
        "string",
        st.integers(0, 4),
        lambda value: ("", *MEMBERS)[value],
    ),
    Case(
        ColumnType(248, b"\x01", lambda value: bytes([value]), collation=UTF8MB4, members=MEMBERS),
        "set",
        st.integers(0, 15),
        lambda value: [member for at, member in enumerate(MEMBERS) if value >> at & 1],
    ),
]

ANY_TABLE = st.lists(st.sampled_from(CASES), min_size=1, max_size=20)


def layout(cases: list[Case]) -> list[tuple[str, ColumnType]]:
    return [(f"c{at}", case.type) for at, case in enumerate(cases)]


def read(body: bytes, decoder: RowDecoder, kind: str) -> Any:
    start = 10 + 1 + decoder.bitmap * (2 if kind == "updates" else 1)
    front = b"\x55" * 7  # an event is somewhere in a buffer
    return getattr(decoder, kind)(front + body + b"\xaa" * 9, len(front) + start, len(front) + len(body))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.type.kind}-{case.type.meta.hex()}-{case.type.unsigned}"
)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_value_of_every_type_is_read_as_it_was_written(case: Case, data: st.DataObject) -> None:
    """I8."""
    columns = layout([case])
    table = parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False)
    of_second = case.type.kind in (11, 12, 18, 19)  # TIME and DATETIME
    assert columns_of(table) == [Column("c0", case.carried, has_decimals=of_second)]
    values = data.draw(st.lists(case.values | st.none(), min_size=1, max_size=5))
    body = rows(7, columns, [[value] for value in values])
    changes = read(body, RowDecoder(table), "inserts")
    assert changes == [(None, (case.expected(value),)) for value in values]
    for (_, (seen,)), value in zip(changes, values, strict=True):
        assert repr(seen) == repr(case.expected(value))  # -0.0 is not 0.0, and 1.50 has two decimals


@given(data=st.data(), cases=ANY_TABLE)
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_of_any_table_are_read_with_nulls_anywhere(data: st.DataObject, cases: list[Case]) -> None:
    """I8."""
    columns = layout(cases)
    primary = data.draw(st.permutations(range(len(cases))).map(lambda order: order[:2]))
    table = parse(table_map(7, "shop", "bestellungen über", columns, primary)[8:], is_mariadb=False)
    assert (table.database, table.table) == ("shop", "bestellungen über")
    assert table.primary == tuple(f"c{at}" for at in primary)
    assert [column.type for column in columns_of(table)] == [case.carried for case in cases]
    row = st.tuples(*(case.values | st.none() for case in cases))
    images = data.draw(st.lists(row, min_size=2, max_size=6).filter(lambda drawn: len(drawn) % 2 == 0))
    expected = [tuple(case.expected(value) for case, value in zip(cases, each, strict=True)) for each in images]
    decoder = RowDecoder(table)
    assert read(rows(7, columns, images), decoder, "inserts") == [(None, each) for each in expected]
    assert read(rows(7, columns, images), decoder, "deletes") == [(each, None) for each in expected]
    pairs = list(zip(expected[::2], expected[1::2], strict=True))
    assert read(rows(7, columns, images, 2), decoder, "updates") == pairs


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=70, max_size=200))
@settings(max_examples=10, deadline=None)
def test_more_sets_of_nulls_than_get_functions_are_read_too(sets: list[list[bool]]) -> None:
    columns = [(f"c{at}", fixed("H", 2, True)) for at in range(9)]
    decoder = RowDecoder(parse(table_map(7, "shop", "sparse", columns)[8:], is_mariadb=False))
    images = [[None if null else at for at, null in enumerate(nulls)] for nulls in sets]
    assert read(rows(7, columns, images), decoder, "inserts") == [(None, tuple(each)) for each in images]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(deadline=None)
def test_a_float_is_the_double_with_the_shortest_text(number: float) -> None:
    columns = [("c0", ColumnType(4, b"\x04", struct.Struct("<f").pack))]
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    ((_, (seen,)),) = read(rows(7, columns, [[number]]), decoder, "inserts")
    assert struct.pack("<f", seen) == struct.pack("<f", number)
    digits = len(Decimal(repr(seen)).normalize().as_tuple().digits)
    shorter = [float(f"{number:.{fewer}g}") for fewer in range(1, digits)]
    assert all(abs(each) > 3.4028235e38 or struct.pack("<f", each) != struct.pack("<f", number) for each in shorter)


def test_3_99_is_3_99() -> None:
    columns = [("c0", ColumnType(4, b"\x04", struct.Struct("<f").pack))]
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    assert read(rows(7, columns, [[3.99], [1e-45], [3.4028234663852886e38]]), decoder, "inserts") == [
        (None, (3.99,)),
        (None, (1e-45,)),
        (None, (3.4028235e38,)),
    ]


@given(data=st.data(), cases=ANY_TABLE)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_truncated_event_is_refused(data: st.DataObject, cases: list[Case]) -> None:
    """I8. If it ends between two rows, those rows are returned."""
    columns = layout(cases)
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    row = data.draw(st.tuples(*(case.values | st.none() for case in cases)))
    start = 11 + decoder.bitmap
    body = rows(7, columns, [row])
    cut = data.draw(st.integers(start + 1, len(body) - 1)) if len(body) > start + 1 else None
    if cut is not None:
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever bad bytes lead to
            decoder.inserts(body[:cut], start, cut)
        assert decoder.explain(body[:cut], start, cut)


def test_text_that_does_not_decode_is_refused_with_its_column() -> None:
    """I8."""
    columns = [("id", fixed("i", 3)), ("name", text(50, UTF8MB4).type)]
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    body = rows(7, columns, [[1, "fine"], [2, b"\xff\xfe"]])
    with pytest.raises(UnicodeDecodeError):
        read(body, decoder, "inserts")
    assert "column name of image 2" in decoder.explain(body, 12, len(body))
    hidden = decoder.explain(body, 12, len(body), shows_values=False)
    assert hidden == f"column name of image 2 of the event: {NOT_SHOWN}"


def test_an_enum_without_that_member_is_refused_with_its_column() -> None:
    """I8."""
    columns = [("size", ColumnType(247, b"\x01", lambda value: bytes([value]), collation=UTF8MB4, members=MEMBERS))]
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    body = rows(7, columns, [[9]])
    with pytest.raises(IndexError):
        read(body, decoder, "inserts")
    assert "column size of image 1" in decoder.explain(body, 12, len(body))


def test_a_table_without_the_names_of_its_columns_is_refused() -> None:
    raw = table_map(7, "shop", "orders", [("id", fixed("i", 3))], with_names=False)[8:]
    with pytest.raises(BadTableMap, match="binlog_row_metadata"):
        parse(raw, is_mariadb=False)


def test_an_unknown_type_is_refused_with_its_column() -> None:
    raw = table_map(7, "shop", "orders", [("v", ColumnType(20, b"", bytes))])[8:]
    with pytest.raises(BadTableMap, match="column v has the unknown type 20"):
        columns_of(parse(raw, is_mariadb=False))


def test_names_are_never_part_of_the_compiled_source() -> None:
    columns = [("a'\"]\n; import os #", fixed("i", 3)), ("b`{}{0}", text(50, LATIN1).type)]
    decoder = RowDecoder(parse(table_map(7, "sh'op", 'or"ders', columns)[8:], is_mariadb=False))
    assert read(rows(7, columns, [[1, "é"]]), decoder, "inserts") == [(None, (1, "é"))]


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_a_table_map_of_any_bytes_is_read_or_refused(raw: bytes) -> None:
    try:
        parse(raw, is_mariadb=True)
    except BadTableMap:
        return


def test_old_times_of_mariadb_are_refused() -> None:
    """I8."""
    raw = table_map(7, "shop", "orders", [("at", fixed("I", 7))])[8:]
    assert columns_of(parse(raw, is_mariadb=False)) == [Column("at", "timestamp")]
    with pytest.raises(BadTableMap, match="mysql56_temporal_format"):
        parse(raw, is_mariadb=True)


def test_a_bitmap_of_columns_may_have_bits_past_the_last_one() -> None:
    columns = [("id", fixed("i", 3)), ("n", fixed("i", 3))]
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    assert decoder.is_full(b"\x03")
    assert decoder.is_full(b"\xff")
    assert decoder.is_full(b"\x07")
    assert not decoder.is_full(b"\xfd")
    assert image(columns, [1, None])[0] == 0xFE

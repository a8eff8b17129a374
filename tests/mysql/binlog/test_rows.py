"""Decoding of row events, without a server: every type of MySQL, NULLs anywhere, truncated and malformed bytes."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.config.protection import NOT_SHOWN, ColumnRule
from relay.mysql.binlog.events import BinlogPlace, RawRows
from relay.mysql.binlog.rows import RowDecoder, UnreadableColumn, columns_of
from relay.mysql.binlog.table_map import BadTableMap, name_in, parse
from relay.mysql.errors import NotCarried
from relay.mysql_dialect.charsets import NotText
from relay.mysql_dialect.tables import lay_out
from relay.table import Column
from tests.examples import examples
from tests.mysql.encoder import ColumnType, image, rows, table_map
from tests.mysql.row_cases import ANY_TABLE, CASES, LATIN1, MEMBERS, UTF8MB4, Case, fixed, text


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
@settings(max_examples=examples(15), deadline=None)
def test_a_value_of_every_type_is_read_as_it_was_written(case: Case, data: st.DataObject) -> None:
    """I8."""
    columns = layout([case])
    table = parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False)
    told = {7: "timestamp", 10: "date", 14: "date", 17: "timestamp", 18: "datetime", 19: "time", 245: "json"}
    assert columns_of(table) == [Column("c0", case.carried, told.get(case.type.kind, ""))]
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
@settings(max_examples=examples(10), deadline=None)
def test_rows_with_many_sets_of_nulls_are_read(sets: list[list[bool]]) -> None:
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
        with pytest.raises(ValueError, match=r"column c\d+ of image 1 of the event: |ends \d+ bytes after the event"):
            decoder.inserts(body[:cut], start, cut)


def test_bytes_that_are_not_text_are_kept_as_such() -> None:
    """I8: `relay.mysql_dialect` decides what becomes of the row."""
    columns = [("id", fixed("i", 3)), ("name", text(50, UTF8MB4).type), ("note", text(50, UTF8MB4).type)]
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    body = rows(7, columns, [[1, "fine", "a"], [2, b"\xff\xfe", "b"]])
    (_, first), (_, second) = read(body, decoder, "inserts")
    assert (first, second) == ((1, "fine", "a"), (2, b"\xff\xfe", "b"))
    assert type(second[1]) is NotText


def test_an_enum_without_that_member_is_refused_with_its_column() -> None:
    """I8: a message shows no bytes of a table with protected columns."""
    columns = [
        ("id", fixed("i", 3)),
        ("size", ColumnType(247, b"\x01", lambda value: bytes([value]), collation=UTF8MB4, members=MEMBERS)),
    ]
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    body = rows(7, columns, [[1, 9]])
    with pytest.raises(UnreadableColumn, match=r"column size of image 1 of the event: .*\\t"):
        read(body, decoder, "inserts")
    layout = lay_out("shop", "orders", columns_of(decoder.table), ["id"], rules={"size": ColumnRule("mask")})
    raw = RawRows(layout, decoder, "inserts", body, 12, len(body), BinlogPlace("a:1", "binlog.1", 4, ""))
    with pytest.raises(NotCarried, match=f"column size of image 1 of the event: {NOT_SHOWN}$"):
        raw.decoded()


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
    """I8: MySQL 8.0 has none any more."""
    raw = table_map(7, "shop", "orders", [("at", fixed("I", 7))])[8:]
    with pytest.raises(BadTableMap, match="mysql56_temporal_format"):
        parse(raw, is_mariadb=True)
    with pytest.raises(BadTableMap, match="unknown type 7"):
        columns_of(parse(raw, is_mariadb=False))


def test_a_bitmap_of_columns_may_have_bits_past_the_last_one() -> None:
    columns = [("id", fixed("i", 3)), ("n", fixed("i", 3))]
    decoder = RowDecoder(parse(table_map(7, "shop", "orders", columns)[8:], is_mariadb=False))
    assert decoder.is_full(b"\x03")
    assert decoder.is_full(b"\xff")
    assert decoder.is_full(b"\x07")
    assert not decoder.is_full(b"\xfd")
    assert image(columns, [1, None])[0] == 0xFE


@pytest.mark.parametrize("raw", [b"", b"\x04shop", b"\x01\xff\0\x01t\0", b"\x01s\0\x01\xff\0"])
def test_names_that_cannot_be_read_are_refused(raw: bytes) -> None:
    """I8"""
    with pytest.raises(BadTableMap, match="the names in a TABLE_MAP event are malformed"):
        name_in(raw)

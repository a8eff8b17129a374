"""Values in Debezium's envelope: what its connector writes for the same ones, and refusals where it writes others."""

from __future__ import annotations

import io
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.avro.connect_values import optional, required
from relay.mysql_dialect.catalog import carried_column
from relay.types.connect import Semantic, connect_type


def written(defined: str, value: Any) -> Any:
    """Return what a reader finds of a value in a column that is defined so."""
    column = carried_column("c", defined)
    found = connect_type(column.type, column.sql, column.detail)
    body = optional(column.type, found)(value)
    stream = io.BytesIO(body)
    read = fastavro.schemaless_reader(stream, fastavro.parse_schema(["null", found.avro]), None)
    assert stream.tell() == len(body)
    return read


@pytest.mark.parametrize(
    ("defined", "value", "read"),
    [
        ("tinyint", -128, -128),
        ("smallint", 32767, 32767),
        ("smallint unsigned", 65535, 65535),
        ("int unsigned", 4294967295, 4294967295),
        ("bigint unsigned", 2**63 - 1, 2**63 - 1),
        ("decimal(10,2)", Decimal("-12.34"), Decimal("-12.34")),
        ("decimal(50,10)", Decimal("1234567890123456789012345678901234567890.0123456789"), None),
        ("date", "2024-02-29", 19782),
        ("date", "0000-01-01", -719528),
        ("date", "0001-01-01", -719162),
        ("date", "9999-12-31", 2932896),
        ("datetime", "2024-02-29 12:13:14", 1709208794000),
        ("datetime(3)", "2024-02-29 12:13:14.123", 1709208794123),
        ("datetime(6)", "2024-02-29 12:13:14.123456", 1709208794123456),
        ("datetime(6)", "0001-01-01 00:00:00.000001", -62135596799999999),
        ("timestamp", 1709208794000000, "2024-02-29T12:13:14Z"),
        ("timestamp(3)", 1709208794120000, "2024-02-29T12:13:14.12Z"),
        ("timestamp(6)", 1709208794123456, "2024-02-29T12:13:14.123456Z"),
        ("time", "12:13:14", 43994000000),
        ("time(3)", "-12:13:14.123", -43994123000),
        ("time(6)", "838:59:59.000001", 3020399000001),
        ("year", 0, 0),
        ("year", 1901, 1901),
        ("json", '{"a": [1, 2.50]}', '{"a": [1, 2.50]}'),
        ("enum('a','b,c')", "b,c", "b,c"),
        ("set('x','y','z')", ["x", "z"], "x,z"),
        ("set('x','y','z')", [], ""),
        ("bit(1)", b"\x01", True),
        ("bit(1)", b"\x00", False),
        ("bit(5)", b"\x15", b"\x15"),
        ("bit(16)", b"\x00\x01", b"\x01\x00"),
        ("point", (4326).to_bytes(4, "little") + b"wkb", {"wkb": b"wkb", "srid": 4326}),
        ("geometry", bytes(4) + b"wkb", {"wkb": b"wkb", "srid": None}),
        ("vector(2)", b"\x00\x00\x80\x3f\x00\x00\x00\x40", [1.0, 2.0]),
        ("vector(2)", b"", []),
        ("varchar(9)", "héllo", "héllo"),
        ("int", None, None),
    ],
)
def test_a_value_is_read_as_debezium_writes_it(defined: str, value: Any, read: Any) -> None:
    assert written(defined, value) == (value if read is None else read)


@pytest.mark.parametrize(
    ("defined", "value"),
    [
        ("date", "0000-00-00"),
        ("date", "2024-00-10"),
        ("date", "2024-10-00"),
        ("datetime", "0000-00-00 00:00:00"),
        ("datetime(6)", "0000-00-00 00:00:00.000000"),
        ("timestamp", 0),
    ],
)
def test_a_zero_date_is_null_and_refused_in_a_key(defined: str, value: Any) -> None:
    """I8: two keys with zero dates would be one."""
    assert written(defined, value) is None
    column = carried_column("c", defined)
    found = connect_type(column.type, column.sql, column.detail)
    with pytest.raises(ValueError, match="is not a"):
        required(column.type, found)(value)


@pytest.mark.parametrize(
    ("defined", "value", "why"),
    [
        ("bigint unsigned", 2**63, "signed long"),
        ("tinyint", 40_000, "16 bits"),
        ("date", "2024-02-31", "day is out of range"),
        ("date", "soon", "not a date"),
        ("time", "soon", "not a time"),
        ("datetime(3)", "2024-02-29 12:13:14.123456", "three decimals"),
        ("decimal(4,2)", Decimal("1.234"), "cannot be carried exactly"),
        ("vector(2)", b"\x00", "1 bytes"),
    ],
)
def test_what_debeziums_type_cannot_hold_is_refused(defined: str, value: Any, why: str) -> None:
    """I8: Debezium writes a negative number for an unsigned one that is too large."""
    with pytest.raises(ValueError, match=why):
        written(defined, value)


@given(st.dates())
def test_every_day_is_as_far_from_the_epoch_as_python_says(day: date) -> None:
    assert date(1970, 1, 1) + timedelta(days=written("date", day.isoformat())) == day


@pytest.mark.parametrize(("value", "shown"), [(0, b"1970-01-01T00:00:00Z"), (120_000, b"1970-01-01T00:00:00.12Z")])
def test_a_time_of_dynamodb_has_the_decimals_that_it_needs_and_0_is_a_time(value: int, shown: bytes) -> None:
    found = connect_type("timestamp")
    assert found.semantic is Semantic.ZONED_TIMESTAMP
    assert optional("timestamp", found)(value)[2:] == shown

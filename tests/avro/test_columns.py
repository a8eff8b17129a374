"""Column values: carried exactly or refused (I8)."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.avro.columns import nullable, writer
from relay.types.columns import column_type


def carried(kind: str, value: Any) -> Any:
    """Write a value with our writer, and read it with a general Avro reader."""
    schema = fastavro.parse_schema(column_type(kind).avro)
    return fastavro.schemaless_reader(BytesIO(writer(kind)(value)), schema, None)


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ("int", Decimal("1E+3"), 1000),
        ("int", Decimal("-0"), 0),
        ("int", Decimal("12.00"), 12),
        ("long", Decimal("9223372036854775807"), 9223372036854775807),
        ("double", Decimal("0.1"), 0.1),
        ("double", Decimal("123456789"), 123456789.0),
        ("double", -0.0, -0.0),
        ("float", 3.99, struct.unpack("<f", struct.pack("<f", 3.99))[0]),
        ("float", Decimal("0.1"), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("float", 16777216, 16777216.0),
        ("float", float("inf"), float("inf")),
        ("decimal(4,2)", Decimal("99.99"), Decimal("99.99")),
        ("decimal(4,2)", Decimal("1.10000"), Decimal("1.1")),
        ("decimal(4,2)", Decimal("0E+500"), Decimal(0)),
        ("decimal(4,2)", -1, Decimal(-1)),
        ("decimal(2,2)", Decimal("-0.99"), Decimal("-0.99")),
        ("decimal(20,0)", (1 << 64) - 1, Decimal((1 << 64) - 1)),
        ("decimal(38,10)", Decimal("9" * 28 + "." + "8" * 10), Decimal("9" * 28 + "." + "8" * 10)),
        ("decimal(65,30)", Decimal("-1.5"), "-1.500000000000000000000000000000"),
        ("decimal(40,0)", Decimal("1E+39"), "1" + "0" * 39),
        ("decimal(39,2)", Decimal("0.05"), "0.05"),
        ("timestamp", datetime(2024, 2, 29, 1, tzinfo=timezone(timedelta(hours=1))), datetime(2024, 2, 29, tzinfo=UTC)),
        ("timestamp", 1, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("set", ["b", "a"], ["b", "a"]),
        ("set", [], []),
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("string", "é\x00", "é\x00"),
        ("json", '{"N":"1.0"}', '{"N":"1.0"}'),
        ("rest", "{}", "{}"),
    ],
)
def test_a_value_is_carried_exactly(kind: str, value: Any, read: Any) -> None:
    """I8."""
    result = carried(kind, value)
    assert result == read
    assert repr(result) == repr(read) or isinstance(read, Decimal)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 1 << 31),
        ("int", Decimal("1.5")),
        ("int", Decimal("1E+125")),
        ("int", True),
        ("int", "1"),
        ("int", 1.0),
        ("long", 1 << 63),
        ("long", -(1 << 63) - 1),
        ("double", Decimal("0.1000000000000000055511151231257827")),
        ("double", 1 << 60),
        ("double", Decimal("1E+999999")),
        ("double", "0.1"),
        ("float", Decimal("16777217")),
        ("float", 0.1 + 0.2),
        ("float", 1e300),
        ("float", 1e-300),
        ("float", Decimal("1E+39")),
        ("decimal(4,2)", Decimal("100")),
        ("decimal(4,2)", Decimal("0.001")),
        ("decimal(4,2)", Decimal("1E+999999")),
        ("decimal(4,2)", Decimal("1E-999999")),
        ("decimal(4,2)", Decimal("NaN")),
        ("decimal(4,2)", 1.5),
        ("decimal(65,30)", Decimal("1E-31")),
        ("decimal(65,30)", Decimal("1E+35")),
        ("timestamp", datetime(2024, 1, 1)),
        ("timestamp", 1 << 62),
        ("timestamp", "2024-01-01"),
        ("set", {"a"}),
        ("set", "ab"),
        ("set", [1]),
        ("boolean", 1),
        ("string", b"a"),
        ("string", "\ud800"),
        ("bytes", "a"),
        ("bytes", {"L": []}),
        ("string", None),
    ],
)
def test_a_value_that_cannot_be_carried_exactly_is_refused(kind: str, value: Any) -> None:
    """I8."""
    with pytest.raises(ValueError, match=r"cannot be carried exactly|can't encode"):
        writer(kind)(value)


def test_the_refusal_of_a_long_value_shows_its_beginning() -> None:
    with pytest.raises(ValueError, match=r"'a{99}\.\.\. \(str\) cannot be carried exactly as bytes"):
        writer("bytes")("a" * 5000)


def test_null_is_carried_by_nullable_columns_only() -> None:
    write = nullable(writer("int"))
    assert write(None) == b"\x00"
    assert write(0) == b"\x02\x00"


@given(st.decimals(allow_nan=False, allow_infinity=False) | st.integers().map(Decimal))
def test_a_decimal_is_carried_exactly_or_refused(value: Decimal) -> None:
    """I8."""
    for kind in ("decimal(38,10)", "decimal(60,20)", "double", "float", "long"):
        try:
            result = carried(kind, value)
        except ValueError:
            continue
        if kind == "float":
            # A float's value is the shortest text that restores its 32 bits.
            near = [f"{result:.{digits}g}" for digits in range(1, 10)]
            assert any(Decimal(text) == value for text in near)
        else:
            assert Decimal(result if isinstance(result, (str, Decimal)) else repr(result)) == value


@given(st.floats(width=32))
def test_every_float_of_32_bits_is_carried_whether_widened_or_printed(value: float) -> None:
    """I8."""
    raw = struct.pack("<f", value)
    assert writer("float")(value) == raw
    if value == value and abs(value) != float("inf") and value:
        shortest = next(
            float(f"{value:.{digits}g}")
            for digits in range(1, 10)
            if abs(float(f"{value:.{digits}g}")) < 3.4028235677973366e38
            and struct.pack("<f", float(f"{value:.{digits}g}")) == raw
        )
        assert writer("float")(shortest) == raw

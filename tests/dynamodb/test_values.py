"""DynamoDB values: exact, and told apart (I8, X24, X25)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.dynamodb.values import canonical_number, image_json, key_value, typed_row
from tests.dynamodb.items import NUMBERS, TYPED, with_base64


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1", "1"),
        ("0", "0"),
        ("-0", "0"),
        ("-0.00", "0"),
        ("0E+7", "0"),
        ("007", "7"),
        ("+5", "5"),
        ("1.50", "1.5"),
        ("1.0", "1"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("5.", "5"),
        ("100", "100"),
        ("1e2", "100"),
        ("1E+2", "100"),
        ("1.23E1", "12.3"),
        ("123E-2", "1.23"),
        ("123E-3", "0.123"),
        ("123E-5", "0.00123"),
        ("120E-1", "12"),
        ("12345678901234567890123456789012345678", "12345678901234567890123456789012345678"),
        ("9.9999999999999999999999999999999999999E+125", "9" * 38 + "0" * 88),
        ("1E-130", "0." + "0" * 129 + "1"),
        ("-1.2345678901234567890123456789012345678E-130", "-0." + "0" * 129 + "12345678901234567890123456789012345678"),
    ],
)
def test_a_number_has_one_text(text: str, canonical: str) -> None:
    """I8, X25"""
    assert canonical_number(text) == canonical
    assert canonical_number(canonical) == canonical


@given(NUMBERS)
def test_the_canonical_text_is_the_same_number_without_exponent_and_needless_zeros(text: str) -> None:
    """I8, X25: 38 digits and all exponents."""
    canonical = canonical_number(text)
    assert Decimal(canonical) == Decimal(text)
    assert set(canonical) <= set("-.0123456789")
    whole, point, decimals = canonical.removeprefix("-").partition(".")
    assert whole == "0" or not whole.startswith("0")
    assert not decimals.endswith("0")
    assert bool(point) == bool(decimals)
    assert canonical != "-0"


@given(NUMBERS, NUMBERS)
def test_equal_numbers_have_equal_texts_and_others_do_not(a: str, b: str) -> None:
    """I8"""
    assert (canonical_number(a) == canonical_number(b)) == (Decimal(a) == Decimal(b))


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", ".", "e5", "1e", "NaN", "Infinity", "-inf", "1_0", " 1", "1 ", "1\n", "0x1", "١", "1,5", "1e99999"],
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        canonical_number(text)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"S": "1"}, "1"),
        ({"S": "1.0"}, "1.0"),
        ({"N": "1.0"}, "1"),
        ({"B": b"\x00\xff"}, b"\x00\xff"),
        ({"B": "AP8="}, b"\x00\xff"),
    ],
)
def test_a_key_is_text_canonical_number_or_bytes(value: dict[str, Any], key: str | bytes) -> None:
    """X25"""
    assert key_value(value) == key


@pytest.mark.parametrize("value", [{}, {"BOOL": True}, {"SS": ["a"]}, {"S": "a", "N": "1"}, {"N": "x"}, {"B": "*"}])
def test_what_cannot_be_a_key_is_refused(value: dict[str, Any]) -> None:
    """I8"""
    with pytest.raises(ValueError, match=r"cannot be a key|is not a number|[Bb]ase64|character"):
        key_value(value)


@settings(deadline=None)
@given(st.dictionaries(st.text(), TYPED, max_size=4))
def test_an_image_is_the_item_as_it_is_with_binary_in_base64(item: dict[str, Any]) -> None:
    """I8, X24, X25: numbers byte for byte, sets in order, every name."""
    assert json.loads(image_json(item)) == with_base64(item)


def test_an_item_that_was_json_already_stays_as_it_is() -> None:
    text = '{"a-b":{"N":"1.2300E+5"},"ab":{"B":"AP8="},"":{"SS":["b","a"]},"ü":{"M":{}}}'
    assert image_json(json.loads(text)) == text


def test_an_item_of_the_deepest_nesting_is_carried() -> None:
    """X25: DynamoDB allows 32 levels."""
    value: dict[str, Any] = {"S": "deep"}
    for _ in range(32):
        value = {"L": [{"M": {"m": value}}]}
    assert json.loads(image_json({"a": value})) == {"a": value}


@pytest.mark.parametrize("value", [{"S": "\ud800"}, {"N": Decimal(1)}, {"SS": {"a"}}])
def test_what_dynamodb_does_not_have_is_refused(value: dict[str, Any]) -> None:
    """I8"""
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        image_json({"a": value})


COLUMNS = {"id": "string", "total": "decimal(38,10)", "paid": "boolean", "raw": "bytes", "at": "timestamp"}


def test_a_typed_row_has_declared_columns_and_the_rest() -> None:
    item: dict[str, dict[str, Any]] = {
        "id": {"S": "o-1"},
        "total": {"N": "1.10"},
        "paid": {"BOOL": False},
        "raw": {"B": b"\x00"},
        "at": {"S": "2024-02-29T12:00:00.5+02:00"},
        "note": {"N": "1.0"},
    }
    assert typed_row(item, COLUMNS) == {
        "id": "o-1",
        "total": Decimal("1.10"),
        "paid": False,
        "raw": b"\x00",
        "at": datetime(2024, 2, 29, 10, 0, 0, 500000, tzinfo=UTC),
        "rest": '{"note":{"N":"1.0"}}',
    }


def test_a_null_attribute_and_an_absent_one_are_told_apart() -> None:
    """I8"""
    columns = {"id": "string", "a": "string", "b": "string"}
    row = typed_row({"id": {"S": "x"}, "a": {"NULL": True}}, columns)
    assert row == {"id": "x", "a": None, "b": None, "rest": '{"a":{"NULL":true}}'}
    assert typed_row({"id": {"S": "x"}}, columns)["rest"] is None


@pytest.mark.parametrize(
    ("value", "time"),
    [
        ({"N": "0"}, datetime(1970, 1, 1, tzinfo=UTC)),
        ({"N": "1700000000.000001"}, datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)),
        ({"N": "-0.5"}, datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=UTC)),
        ({"S": "2024-01-01T00:00:00Z"}, datetime(2024, 1, 1, tzinfo=UTC)),
        ({"S": "2024-01-01 00:00:00.123456+00:00"}, datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_from_iso_text_or_seconds(value: dict[str, Any], time: datetime) -> None:
    assert typed_row({"at": value}, {"at": "timestamp"})["at"] == time


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp", {"S": "2024-01-01T00:00:00"}),
        ("timestamp", {"S": "yesterday"}),
        ("timestamp", {"S": "2024-01-01T00:00:00.1234567Z"}),
        ("timestamp", {"N": "1700000000000"}),
        ("timestamp", {"N": "1.0000001"}),
        ("timestamp", {"BOOL": True}),
        ("string", {"SS": ["a"]}),
        ("int", {"M": {}}),
    ],
)
def test_a_value_of_another_type_is_left_for_encoding_to_refuse(kind: str, value: dict[str, Any]) -> None:
    """I8"""
    assert typed_row({"a": value}, {"a": kind})["a"] == value

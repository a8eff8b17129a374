"""DynamoDB values: exact and distinct (I8)."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.dynamodb.values import canonical_number, image_json, key_value
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
def test_a_number_has_one_canonical_text(text: str, canonical: str) -> None:
    """I8"""
    assert canonical_number(text) == canonical
    assert canonical_number(canonical) == canonical


@given(NUMBERS)
def test_the_canonical_text_is_the_same_number_without_exponent_or_extra_zeros(text: str) -> None:
    """I8: 38 digits and all exponents."""
    canonical = canonical_number(text)
    assert Decimal(canonical) == Decimal(text)
    assert set(canonical) <= set("-.0123456789")
    whole, point, decimals = canonical.removeprefix("-").partition(".")
    assert whole == "0" or not whole.startswith("0")
    assert not decimals.endswith("0")
    assert bool(point) == bool(decimals)
    assert canonical != "-0"


@given(NUMBERS, NUMBERS)
def test_only_equal_numbers_have_equal_texts(a: str, b: str) -> None:
    """I8"""
    assert (canonical_number(a) == canonical_number(b)) == (Decimal(a) == Decimal(b))


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", ".", "e5", "1e", "NaN", "Infinity", "-inf", "1_0", " 1", "1 ", "1\n", "0x1", "١", "1,5", "1e99999"],
)
def test_text_that_is_not_a_number_is_refused(text: str) -> None:
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
def test_a_key_is_text_a_canonical_number_or_bytes(value: dict[str, Any], key: str | bytes) -> None:
    assert key_value(value) == key


@pytest.mark.parametrize("value", [{}, {"BOOL": True}, {"SS": ["a"]}, {"S": "a", "N": "1"}, {"N": "x"}, {"B": "*"}])
def test_a_value_that_cannot_be_a_key_is_refused(value: dict[str, Any]) -> None:
    """I8"""
    with pytest.raises(ValueError, match=r"cannot be a key|is not a number|[Bb]ase64|character"):
        key_value(value)


@settings(deadline=None)
@given(st.dictionaries(st.text(), TYPED, max_size=4))
def test_an_image_is_the_item_unchanged_with_binary_in_base64(item: dict[str, Any]) -> None:
    """I8: numbers byte for byte, sets in their order, every name."""
    assert json.loads(image_json(item)) == with_base64(item)


def test_an_item_that_is_json_already_is_unchanged() -> None:
    text = '{"a-b":{"N":"1.2300E+5"},"ab":{"B":"AP8="},"":{"SS":["b","a"]},"ü":{"M":{}}}'
    assert image_json(json.loads(text)) == text


def test_the_most_deeply_nested_item_is_carried() -> None:
    """DynamoDB allows 32 levels."""
    value: dict[str, Any] = {"S": "deep"}
    for _ in range(32):
        value = {"L": [{"M": {"m": value}}]}
    assert json.loads(image_json({"a": value})) == {"a": value}


@pytest.mark.parametrize("value", [{"S": "\ud800"}, {"N": Decimal(1)}, {"SS": {"a"}}])
def test_values_that_dynamodb_does_not_have_are_refused(value: dict[str, Any]) -> None:
    """I8"""
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        image_json({"a": value})

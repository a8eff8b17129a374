"""Declared columns: a typed row loses no part of an item, whatever is declared (I8)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.change import Change, Images, Operation
from relay.config.dynamodb_columns import attribute_type, canonical_type
from relay.dynamodb.columns import TypedRows
from relay.dynamodb.values import image_json
from relay.table import KeyColumn, TableSchema
from relay.types.columns import REST
from tests.dynamodb.items import TYPED, carried, item_of, same_item, with_base64
from tests.examples import examples

NAMES = ["a-b", "ab", "a_x002D_b", "1x", "", "_x", "über", "𝒳", REST, "Rest", "id"]
TYPES = ["string", "bytes", "boolean", "int", "long", "double", "timestamp", "set", "json", "decimal(5,2)",
         "decimal(38,0)", "decimal(38,10)", "decimal(38,38)"]  # fmt: skip
# Numbers that fit a column; those of TYPED seldom do.
_FITTING = (
    st.integers(-(1 << 65), 1 << 65).map(str)
    | st.decimals(-10000, 10000, places=2).map(str)
    | st.decimals(-100_000_000_000, 300_000_000_000, places=6).map(str)
    | st.floats(-1e100, 1e100, allow_subnormal=False).map(repr)
).map(lambda text: {"N": text})
ITEMS = st.dictionaries(st.sampled_from(NAMES), TYPED | _FITTING, max_size=6)
COLUMNS = st.dictionaries(
    st.sampled_from([name for name in NAMES if name != REST]), st.sampled_from(TYPES), min_size=1, max_size=6
)


def relayed(item: dict[str, Any], rows: TypedRows | None) -> Any:
    """Return the new image of ``item`` as a reader of the topic sees it."""
    table = TableSchema("s", "t", (KeyColumn("id", "S"),), 1, rows.columns if rows else None)
    image = rows.row(item) if rows else image_json(item)
    change = Change("e", Operation.INSERT, "s", "t", {"id": "x"}, None, image, Images.NEW_AND_OLD, None, 0)
    return carried(change, table)["new"]


@settings(deadline=None, max_examples=examples(400))
@given(ITEMS, COLUMNS)
@example({"a-b": {"N": "9.9999999999999999999999999999999999999E+125"}, "ab": {"N": "1E-130"}}, {"ab": "double"})
@example({"id": {"S": "1"}, "ab": {"N": "1"}, "a-b": {"NULL": True}}, {"id": "string", "ab": "int", "a-b": "int"})
def test_every_item_comes_back_the_same_with_and_without_columns(item: dict[str, Any], columns: dict[str, str]) -> None:
    """I8: as botocore returns it, and as DynamoDB JSON."""
    rows = TypedRows(columns)
    kinds = {column.name: column.type for column in rows.columns}
    wire = with_base64(item)
    for given_as in (item, wire):
        assert same_item(item_of(relayed(given_as, rows), kinds), wire)
        assert json.loads(relayed(given_as, None)) == wire


def test_the_most_deeply_nested_item_comes_back_from_a_column_and_from_rest() -> None:
    """DynamoDB allows 32 levels."""
    value: dict[str, Any] = {"N": "1.00"}
    for _ in range(32):
        value = {"L": [{"M": {"": value}}]}
    row = relayed({"a": value, "b": value}, TypedRows({"a": "json"}))
    assert json.loads(row["a"]) == value
    assert json.loads(row[REST]) == {"b": value}


def row(value: Mapping[str, Any] | None, kind: str) -> tuple[Any, Any]:
    """Return the column ``a`` declared as ``kind``, and what `rest` has of it."""
    typed = TypedRows({"a": kind}).row({"a": value} if value is not None else {})
    rest = typed[REST]
    assert set(typed) == {"a", REST}
    return typed["a"], None if rest is None else json.loads(rest)["a"]


@pytest.mark.parametrize(
    ("kind", "value", "column"),
    [
        ("string", {"S": ""}, ""),
        ("bytes", {"B": "AP8="}, b"\x00\xff"),
        ("bytes", {"B": b""}, b""),
        ("boolean", {"BOOL": False}, False),
        ("int", {"N": "-2147483648"}, -(1 << 31)),
        ("int", {"N": "1E+3"}, 1000),
        ("long", {"N": "9223372036854775807"}, (1 << 63) - 1),
        ("double", {"N": "0.1"}, 0.1),
        ("double", {"N": "1E+125"}, 1e125),
        ("decimal(5,2)", {"N": "-999.99"}, Decimal("-999.99")),
        ("decimal(2,2)", {"N": "0.99"}, Decimal("0.99")),
        ("decimal(38,0)", {"N": "9" * 38}, Decimal("9" * 38)),
        ("timestamp", {"N": "1700000000.000001"}, 1_700_000_000_000_001),
        ("timestamp", {"N": "-0.5"}, -500_000),
        ("timestamp", {"N": "253402300799.999999"}, 253_402_300_799_999_999),
        ("timestamp", {"N": "-62135596800"}, -62_135_596_800_000_000),
        ("set", {"SS": ["b", "a"]}, ["b", "a"]),
        ("json", {"N": "1.0"}, '{"N":"1.0"}'),
        ("json", {"B": b"\x00"}, '{"B":"AA=="}'),
        ("json", {"NULL": True}, '{"NULL":true}'),
        ("json", {"X": {"new": 1}}, '{"X":{"new":1}}'),
    ],
)
def test_a_value_of_the_columns_type_is_in_the_column(kind: str, value: dict[str, Any], column: Any) -> None:
    assert row(value, kind) == (column, None)
    assert type(row(value, kind)[0]) is type(column)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((kind, {"NULL": True}) for kind in TYPES if kind != "json"),
        ("string", {"N": "1"}),
        ("string", {"SS": ["a"]}),
        ("bytes", {"S": "AP8="}),
        ("bytes", {"B": "not base64"}),
        ("boolean", {"S": "true"}),
        ("boolean", {"N": "1"}),
        ("int", {"S": "1"}),
        ("int", {"N": "2147483648"}),
        ("int", {"N": "1.5"}),
        ("int", {"M": {}}),
        ("long", {"N": "9223372036854775808"}),
        ("long", {"N": "1E+125"}),
        ("long", {"N": "1E-130"}),
        ("double", {"N": "0.1000000000000000055511151231257827"}),
        ("double", {"N": "12345678901234567890123456789012345678"}),
        ("decimal(5,2)", {"N": "1000"}),
        ("decimal(5,2)", {"N": "0.001"}),
        ("decimal(2,2)", {"N": "1"}),
        ("decimal(38,10)", {"N": "12345678901234567890123456789"}),
        ("decimal(38,38)", {"N": "1E-130"}),
        ("decimal(5,2)", {"N": "no number"}),
        ("timestamp", {"N": "1.0000001"}),
        ("timestamp", {"N": "253402300800"}),
        ("timestamp", {"N": "-62135596800.000001"}),
        ("timestamp", {"N": "1E+125"}),
        ("timestamp", {"N": "1700000000000"}),
        ("timestamp", {"S": "2024-01-01T00:00:00Z"}),
        ("set", {"NS": ["1"]}),
        ("set", {"L": [{"S": "a"}]}),
        ("string", {"S": "a", "N": "1"}),
        ("string", {"X": "a"}),
    ],
)
def test_a_value_that_its_column_cannot_hold_exactly_is_in_rest(kind: str, value: dict[str, Any]) -> None:
    """I8: never rounded, never another type, never lost."""
    assert row(value, kind) == (None, value)


@pytest.mark.parametrize("kind", TYPES)
def test_an_absent_attribute_is_null_in_its_column_and_not_in_rest(kind: str) -> None:
    """I8: an absent attribute is not NULL."""
    assert row(None, kind) == (None, None)


def test_an_attribute_named_rest_is_in_rest() -> None:
    item = {"id": {"S": "x"}, REST: {"S": "mine"}}
    assert TypedRows({"id": "string"}).row(item) == {"id": "x", REST: '{"rest":{"S":"mine"}}'}


def test_values_that_dynamodb_does_not_have_are_refused() -> None:
    """I8"""
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        TypedRows({"a": "string"}).row({"b": {"SS": {"a"}}})


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_has_one_spelling(kind: str) -> None:
    assert canonical_type(kind) == kind
    assert attribute_type(kind) in ("S", "B", "BOOL", "N", "SS", None)


def test_spaces_in_a_decimal_type_do_not_change_it() -> None:
    assert canonical_type("decimal( 38, 10 )") == "decimal(38,10)"


@pytest.mark.parametrize(
    "text", ["", "text", "float", REST, "decimal", "decimal(39,1)", "decimal(2,3)", "array<string>"]
)
def test_unknown_types_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown type|more digits than a DynamoDB number"):
        canonical_type(text)

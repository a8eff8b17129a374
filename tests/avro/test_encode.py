"""The hand-written envelope against a general Avro writer: equal in every byte."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.encode import ChangeEncoder, Unencodable
from relay.avro.schema import change_schema
from relay.change import Change, Images, Operation, Transaction
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken
from tests.avro.strategies import changes, datum, tables

HEADER = b"\xc3\x01header.."


@settings(deadline=None)
@given(st.data())
def test_every_change_has_the_bytes_that_a_general_writer_writes(data: st.DataObject) -> None:
    """I8."""
    table = data.draw(tables())
    schema = change_schema(table)
    parsed = fastavro.parse_schema(schema)
    encoder = ChangeEncoder(schema, HEADER)
    for change in data.draw(st.lists(changes(table), min_size=1, max_size=3)):
        expected = BytesIO()
        fastavro.schemaless_writer(expected, parsed, datum(change))
        assert encoder.encode(change) == HEADER + expected.getvalue()


TABLE = TableSchema("shop", "orders", (KeyColumn("id", "S"), KeyColumn("line", "N")), 1)
TYPED = TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1, (Column("total", "int"), Column("b", "bytes")))
CHANGE = Change(
    event_id="e",
    operation=Operation.UPDATE,
    source="shop",
    table="orders",
    key={"id": "o-1", "line": "1"},
    old="{}",
    new="{}",
    images=Images.NEW_AND_OLD,
    token=EventToken(1, "shop/label/shard-1", "DynamoDB/42"),
    committed_at=1,
)


def refusal(table: TableSchema, change: Change) -> Unencodable:
    encoder = ChangeEncoder(change_schema(table), HEADER)
    with pytest.raises(Unencodable) as raised:
        encoder.encode(change)
    return raised.value


@pytest.mark.parametrize(
    "key",
    [
        {"id": "o-1"},
        {"id": "o-1", "line": 1},
        {"id": "o-1", "line": None},
        {"id": b"o-1", "line": "1"},
        {"id": "\ud800", "line": "1"},
        {"id": "o-1", "line": "1", "more": "x"},
        None,
    ],
)
def test_a_refusal_says_that_the_key_cannot_be_carried(key: Any) -> None:
    """I8."""
    refused = refusal(TABLE, replace(CHANGE, key=key))
    assert refused.in_key
    assert "DynamoDB/42 of shop/label/shard-1" in str(refused)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ({"total": 1.5, "b": b""}, "column 'total' of the new image: 1.5 (float) cannot be carried exactly as int"),
        ({"total": 1, "b": {"SS": ["x"]}}, "column 'b' of the new image: {'SS': ['x']} (dict)"),
        ({"total": 1}, "the new image and the schema differ in columns ['b']"),
        ({"total": 1, "b": b"", "c": 1}, "the new image and the schema differ in columns ['c']"),
        ({"total": 1, "c": 1}, "the new image lacks column 'b'"),
        ("{}", ""),
    ],
)
def test_an_image_that_cannot_be_carried_is_refused_with_key_and_column(image: Any, reason: str) -> None:
    """I8."""
    refused = refusal(TYPED, replace(CHANGE, key={"id": "o-1"}, old=None, new=image))
    assert not refused.in_key
    assert "the UPDATE of orders, key {'id': 'o-1'} at DynamoDB/42" in str(refused)
    assert reason in str(refused)


@pytest.mark.parametrize(
    "change",
    [
        replace(CHANGE, new="\ud800"),
        replace(CHANGE, old=b"{}"),
        replace(CHANGE, committed_at=1 << 63),
        replace(CHANGE, committed_at=None),  # type: ignore[arg-type]
        replace(CHANGE, attributes={"a": 1}),  # type: ignore[dict-item]
        replace(CHANGE, transaction=Transaction("t", 1 << 31, True)),
    ],
)
def test_any_other_value_that_cannot_be_carried_exactly_is_refused(change: Change) -> None:
    """I8."""
    refused = refusal(TABLE, change)
    assert not refused.in_key


def test_a_refusal_can_be_published_as_a_stub() -> None:
    encoder = ChangeEncoder(change_schema(TYPED), HEADER)
    change = replace(CHANGE, key={"id": "o-1"}, old=None, new={"total": 1.5, "b": b""})
    with pytest.raises(Unencodable):
        encoder.encode(change)
    assert encoder.encode(replace(change, new=None, images=Images.OMITTED))


def test_a_refusal_of_a_very_long_key_is_short() -> None:
    assert len(str(refusal(TABLE, replace(CHANGE, key={"id": "x" * 5000, "line": 0})))) < 1000

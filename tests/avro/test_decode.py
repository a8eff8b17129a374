"""Decoding returns what was encoded, with the column names of the source, and never guesses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.decode import Undecodable, UnknownFraming, UnknownSchema, decode
from relay.avro.encode import ChangeEncoder
from relay.avro.framing import confluent_header, fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.change import Change, Images, Operation
from relay.table import Column, KeyColumn, TableSchema
from tests.avro.known import Known
from tests.avro.strategies import changes, datum, tables

TABLE = TableSchema("s", "t", (KeyColumn("a-b", "S"),), 1, (Column("1x", "int"), Column("", "string")))
SCHEMA = change_schema(TABLE)
HEADER = single_object_header(fingerprint(SCHEMA))
CHANGE = Change(
    event_id="e",
    operation=Operation.INSERT,
    source="s",
    table="t",
    key={"a-b": "k"},
    old=None,
    new={"1x": 7, "": None},
    images=Images.NEW_AND_OLD,
    token=None,
    committed_at=1_700_000_000_000_001,
)
VALUE = ChangeEncoder(SCHEMA, HEADER).encode(CHANGE)


@settings(deadline=None)
@given(st.data())
def test_a_change_is_decoded_as_it_was_encoded(data: st.DataObject) -> None:
    """I8."""
    table = data.draw(tables())
    schema = change_schema(table)
    header = single_object_header(fingerprint(schema))
    change = data.draw(changes(table))
    decoded = decode(Known({header: schema}), ChangeEncoder(schema, header).encode(change))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = {name: epoch + timedelta(microseconds=getattr(change, name)) for name in ("committed_at", "relayed_at")}
    expected: dict[str, Any] = {**datum(change), "key": change.key, "old": change.old, "new": change.new, **times}
    assert decoded == expected


def test_decoded_columns_have_the_names_of_the_source() -> None:
    decoded = decode(Known({HEADER: SCHEMA}), VALUE)
    assert decoded["key"] == {"a-b": "k"}
    assert decoded["new"] == {"1x": 7, "": None}
    assert decoded["old"] is None


def test_both_framings_are_read() -> None:
    header = confluent_header(7)
    value = ChangeEncoder(SCHEMA, header).encode(CHANGE)
    assert decode(Known({header: SCHEMA}), value) == decode(Known({HEADER: SCHEMA}), VALUE)


def test_an_unknown_framing_is_not_looked_up() -> None:
    schemas = Known()
    for value in (b"", b"{}", VALUE[1:]):
        with pytest.raises(UnknownFraming):
            decode(schemas, value)
    assert schemas.lookups == []


def test_an_unknown_schema_is_refused_until_it_is_known() -> None:
    schemas = Known()
    for _ in range(2):
        with pytest.raises(UnknownSchema, match=HEADER.hex()):
            decode(schemas, VALUE)
    schemas.schemas[HEADER] = SCHEMA
    assert decode(schemas, VALUE)["event_id"] == "e"
    assert len(schemas.lookups) == 3


def test_a_schema_is_looked_up_once() -> None:
    schemas = Known({HEADER: SCHEMA})
    for _ in range(3):
        decode(schemas, VALUE)
    assert schemas.lookups == [HEADER]


def test_readers_of_two_registries_do_not_mix_their_ids() -> None:
    header = confluent_header(1)
    other = change_schema(TableSchema("s", "u", (KeyColumn("id", "N"),), 1))
    value = ChangeEncoder(SCHEMA, header).encode(CHANGE)
    assert decode(Known({header: SCHEMA}), value)["key"] == {"a-b": "k"}
    with pytest.raises(Undecodable):
        decode(Known({header: other}), value)


@pytest.mark.parametrize("damaged", [VALUE[:-1], VALUE + b"\x00", HEADER, HEADER + b"\x02\xff" + VALUE[12:]])
def test_a_damaged_value_is_refused(damaged: bytes) -> None:
    with pytest.raises(Undecodable, match="damaged"):
        decode(Known({HEADER: SCHEMA}), damaged)


def test_items_of_dynamodb_are_python_values_where_exact_json_is_not_asked_for() -> None:
    """I8: numbers keep their digits, binary and sets their types, in untyped images and in columns that are JSON."""
    item = '{"id":{"S":"k"},"n":{"N":"1.50"},"b":{"B":"AAE="},"t":{"SS":["x"]},"m":{"M":{"l":{"L":[{"NULL":true}]}}}}'
    values = {"id": "k", "n": Decimal("1.50"), "b": b"\x00\x01", "t": {"x"}, "m": {"l": [None]}}
    columns = (Column("id", "string"), Column("any", "json"), Column("no", "json"), Column("rest", "rest"))
    before = {"id": "k", "any": None, "no": None, "rest": None}
    after = {**before, "any": '{"NS":["1.50"]}', "rest": item}
    loaded = {**before, "any": {Decimal("1.5")}, "rest": values}
    for row, old, new, expected in ((None, None, item, values), (columns, before, after, loaded)):
        table = TableSchema("s", "t", (KeyColumn("id", "S"),), 1, row)
        schemas = Known({HEADER: (schema := change_schema(table))})
        change = replace(CHANGE, key={"id": "k"}, old=old, new=new)
        value = ChangeEncoder(schema, HEADER).encode(change)
        assert (decode(schemas, value)["old"], decode(schemas, value)["new"]) == (old, new)
        found = decode(schemas, value, typed_json=False)
        assert (found["key"], found["old"], found["new"]) == ({"id": "k"}, old, expected)


@pytest.mark.parametrize("image", ["", "[]", '{"n":{"N":"one"}}', '{"n":{"S":"a","N":"1"}}'])
def test_an_image_that_is_not_an_item_is_refused(image: str) -> None:
    """I8"""
    schema = change_schema(TableSchema("s", "t", (KeyColumn("id", "S"),), 1))
    value = ChangeEncoder(schema, HEADER).encode(replace(CHANGE, key={"id": "k"}, new=image))
    schemas = Known({HEADER: schema})
    assert decode(schemas, value)["new"] == image
    with pytest.raises(Undecodable, match="an image is damaged"):
        decode(schemas, value, typed_json=False)

"""Protected attributes: no change has a value of one, whatever becomes of the change."""

from __future__ import annotations

import hmac
import json
from typing import Any

import orjson
import pytest
from msgspec import Raw

from relay.change import Change, Uncarriable
from relay.config.protection import ColumnRule
from relay.dynamodb.columns import TypedRows
from relay.dynamodb.protection import ProtectedItems
from relay.dynamodb.raw_records import RawData, RawRecord
from relay.dynamodb.records import RecordFormat
from relay.dynamodb.values import image_json
from relay.errors import RelayError
from relay.kafka.dead_letters import change_json
from relay.table import KeyColumn, TableSchema

SALT = "pepper"
RULES = {"ssn": ColumnRule("exclude"), "phone": ColumnRule("mask"), "email": ColumnRule("hash", SALT)}
ITEM = {
    "id": {"S": "1"},
    "ssn": {"S": "secret"},
    "phone": {"N": "555123"},
    "email": {"S": "ada@secret"},
    "note": {"N": "1.50"},
}


def hashed(value: bytes) -> str:
    return hmac.digest(SALT.encode(), value, "sha256").hex()


LEFT = {"id": {"S": "1"}, "phone": {"S": "***"}, "email": {"S": hashed(b"ada@secret")}, "note": {"N": "1.50"}}


def change(old: Any, new: Any, rows: TypedRows | None = None) -> Change:
    """Return the change of a record with these images, protected by the rules."""
    table = TableSchema("s", "t", (KeyColumn("id", "S"),), 1)
    publish = rows.checked if rows else image_json
    record_format = RecordFormat(table, "s/t/shard", rows, ProtectedItems(RULES, publish))
    data = RawData("1", 5.0, {"id": {"S": "1"}}, "NEW_AND_OLD_IMAGES", 0, old, new)
    return record_format.change(RawRecord("MODIFY", data), 0)


def raw(item: Any) -> Raw:
    return Raw(orjson.dumps(item))


def test_images_have_no_value_of_a_protected_attribute() -> None:
    made = change(Raw(), raw(ITEM))
    assert made.old is None
    assert json.loads(made.new or "") == LEFT
    gone = change(raw({**ITEM, "email": {"NULL": True}, "phone": {"NULL": True}}), Raw())
    assert json.loads(gone.old or "") == {**LEFT, "email": {"NULL": True}, "phone": {"NULL": True}}


def test_typed_rows_have_text_in_the_place_of_protected_values() -> None:
    """Whatever type is declared, and whatever type an attribute has."""
    columns = {"id": "string", "phone": "long", "email": "string"}
    rows = TypedRows(columns, RULES.keys())
    assert [(column.name, column.type) for column in rows.columns] == [
        ("id", "string"),
        ("phone", "string"),
        ("email", "string"),
        ("rest", "rest"),
    ]
    expected = {"id": "1", "phone": "***", "email": hashed(b"ada@secret"), "rest": '{"note":{"N":"1.50"}}'}
    assert change(raw(ITEM), raw({**ITEM, "phone": {"S": "none"}}), rows).new == expected


def test_what_cannot_be_carried_is_kept_without_protected_values() -> None:
    """Half a surrogate pair, which only a tolerant parser reads: in a dead letter, in a message, nowhere a secret."""
    text = json.dumps({**ITEM, "note": {"S": "\ud83d"}}).encode()
    made = change(raw(ITEM), Raw(text))
    assert isinstance(made.new, Uncarriable)
    assert made.new.item == {**LEFT, "note": {"S": "\ud83d"}}
    assert b"secret" not in change_json(made, b'{"id":{"S":"1"}}')
    assert "secret" not in made.new.reason
    # The parser of an answer that is not valid Unicode gives items in place of JSON.
    assert change(Raw(), {**ITEM, "note": {"S": "\ud83d"}}).new == made.new


def test_a_value_that_cannot_be_carried_can_be_protected() -> None:
    image = change(Raw(), Raw(json.dumps({**ITEM, "email": {"S": "\ud83d"}}).encode())).new
    assert json.loads(image or "")["email"] == {"S": hashed("\ud83d".encode("utf-8", "surrogatepass"))}


@pytest.mark.parametrize(
    ("one", "same", "text"),
    [
        ({"S": "naïve"}, {"S": "naïve"}, "naïve".encode()),
        ({"N": "1.50E+1"}, {"N": "15"}, b"15"),
        ({"B": "AP8="}, {"B": b"\0\xff"}, b"\0\xff"),
        ({"BOOL": False}, {"BOOL": False}, b"false"),
        ({"SS": ["b", "a"]}, {"SS": ["a", "b"]}, b'{"SS":["a","b"]}'),
        ({"NS": ["2.0", "1"]}, {"NS": ["1.0", "2"]}, b'{"NS":["1","2"]}'),
        ({"BS": ["AQ==", "AA=="]}, {"BS": [b"\0", b"\1"]}, b'{"BS":["AA==","AQ=="]}'),
        (
            {"M": {"b": {"L": [{"N": "1.0"}]}, "a": {"B": b"\0"}}},
            {"M": {"a": {"B": "AA=="}, "b": {"L": [{"N": "1"}]}}},
            b'{"M":{"a":{"B":"AA=="},"b":{"L":[{"N":"1"}]}}}',
        ),
    ],
)
def test_a_hash_is_of_the_same_text_for_equal_values(one: Any, same: Any, text: bytes) -> None:
    """Also of an item that a scan returned, with binary as bytes."""
    items = ProtectedItems(RULES, dict)
    assert items.image({"email": one}) == items.image({"email": same}) == {"email": {"S": hashed(text)}}


def test_what_is_not_an_item_stops_the_relay_without_showing_it() -> None:
    for odd in (Raw(b'{"email":"secret"}'), {"email": {"S": "secret", "N": "1"}}, Raw(b'["secret"]')):
        with pytest.raises(RelayError, match="nothing in it can be protected") as caught:
            change(Raw(), odd)
        assert "secret" not in str(caught.value)

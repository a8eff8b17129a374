"""Keys and partitions: the bytes of a key never change (I2)."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import RelayError
from relay.kafka.keys import KeyCodec, partition
from relay.table import KeyColumn, TableSchema
from tests.kafka.java_murmur2 import murmur2


def codec(*columns: tuple[str, str], hashes: int = 1, mode: Literal["hash", "item"] = "hash") -> KeyCodec:
    key = tuple(KeyColumn(name, kind) for name, kind in columns)
    return KeyCodec(TableSchema("shop", "orders", key, hashes), mode)


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_that_of_the_java_client(data: bytes, signed: int) -> None:
    """I2: the test vectors of Kafka."""
    assert murmur2(data) == signed % (1 << 32)
    assert partition(data, 1000) == (signed & 0x7FFFFFFF) % 1000


@given(st.binary(max_size=600), st.integers(1, 10_000))
def test_the_partition_is_that_of_the_java_client(data: bytes, partitions: int) -> None:
    """I2"""
    assert partition(data, partitions) == (murmur2(data) & 0x7FFFFFFF) % partitions


def test_a_hash_key_is_encoded_as_its_canonical_bytes() -> None:
    assert codec(("id", "S"), ("n", "N")).kafka_key({"id": "é", "n": "1"}) == "é".encode()
    assert codec(("id", "N")).kafka_key({"id": "-1.5"}) == b"-1.5"
    assert codec(("id", "B")).kafka_key({"id": b"\x00\xff"}) == b"\x00\xff"
    assert codec(("id", "long")).kafka_key({"id": 42}) == b"42"
    assert codec(("id", "decimal(5,2)")).kafka_key({"id": Decimal("1.50")}) == b"1.50"


def test_several_hash_columns_each_get_a_length_prefix() -> None:
    """I2: ("a", "bc") and ("ab", "c") are two keys."""
    both = codec(("a", "string"), ("b", "string"), hashes=2)
    assert both.hash_bytes({"a": "a", "b": "bc"}) == b"\0\0\0\1a\0\0\0\2bc"
    assert both.hash_bytes({"a": "ab", "b": "c"}) != both.hash_bytes({"a": "a", "b": "bc"})


def test_all_items_of_a_hash_key_share_a_partition_in_both_key_modes() -> None:
    """I2"""
    columns = (("id", "S"), ("n", "N"))
    found = {
        codec(*columns, mode=mode).hash_bytes({"id": "x", "n": str(n)}) for n in range(5) for mode in ("hash", "item")
    }
    assert found == {b"x"}


def test_an_item_key_is_dynamodb_json_with_the_hash_attribute_first() -> None:
    item = codec(("z", "S"), ("a", "N"), ("b", "B"), mode="item")
    # In any order of the attributes.
    assert item.kafka_key({"b": b"\x00", "a": "1", "z": 'é"'}) == (
        '{"z":{"S":"é\\""},"a":{"N":"1"},"b":{"B":"AA=="}}'.encode()
    )


def test_an_item_key_of_sql_columns_is_plain_json() -> None:
    item = codec(("id", "long"), ("n", "decimal(20,0)"), ("b", "bytes"), ("ok", "boolean"), mode="item")
    key = {"id": -1, "n": Decimal(1 << 63), "b": b"\x00", "ok": True}
    assert json.loads(item.kafka_key(key)) == {"id": -1, "n": "9223372036854775808", "b": "AA==", "ok": True}


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ([("id", "S")], {}),
        ([("id", "S")], {"id": b"x"}),
        ([("id", "S")], {"id": "\ud800"}),
        ([("id", "N")], {"id": 1}),
        ([("id", "B")], {"id": "x"}),
        ([("id", "bytes")], {"id": None}),
        ([("id", "long")], {"id": None}),
        ([("id", "string"), ("b", "string")], {"id": "x"}),
    ],
)
@pytest.mark.parametrize("mode", ["hash", "item"])
def test_an_invalid_key_is_refused_with_the_expected_columns(
    columns: list[tuple[str, str]], key: dict[str, Any], mode: Literal["hash", "item"]
) -> None:
    """I8"""
    made = codec(*columns, hashes=len(columns), mode=mode)
    with pytest.raises(RelayError, match=r"is not a key of table orders, whose key columns are id \("):
        made.kafka_key(key)

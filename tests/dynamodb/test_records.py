"""Records of answers that DynamoDB never sends are refused by name, and what is kept while records become changes."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

from relay.change import Uncarriable
from relay.dynamodb.raw_records import read_answer
from relay.dynamodb.records import RecordFormat, _versioned
from relay.errors import RelayError
from relay.table import KeyColumn, TableSchema


@pytest.mark.parametrize(
    "odd", [{"ApproximateCreationDateTime": inf}, {"Keys": {"id": "ada"}}, {"Keys": {"id": {"N": 7}}}]
)
def test_a_record_whose_time_or_key_cannot_be_one_is_refused_with_its_sequence_number(odd: dict[str, Any]) -> None:
    """I8: any other error would end the relay without what was read before."""
    data = {
        "ApproximateCreationDateTime": 1_700_000_000,
        "Keys": {"id": {"S": "ada"}},
        "SequenceNumber": "4711",
        "StreamViewType": "KEYS_ONLY",
    }
    body = json.dumps({"Records": [{"eventName": "MODIFY", "dynamodb": data | odd}]}).encode()
    (record,) = read_answer(body)["Records"]
    made = RecordFormat(TableSchema("orders", "orders", (KeyColumn("id", "S"),), 1), "orders/label/shard")
    with pytest.raises(RelayError, match="4711"):
        made.change(record, 0)


@pytest.mark.parametrize("text", ["a", "é"])
def test_an_image_that_is_nested_deeper_than_it_can_be_written_is_not_carried(text: str) -> None:
    """I8: the first is compared as it is, the other is written anew because it has escapes."""
    deep: dict[str, Any] = {"S": text}
    for _ in range(200):  # DynamoDB allows 32
        deep = {"M": {"in": deep}}
    key = {"id": {"S": "ada"}}
    data = {
        "ApproximateCreationDateTime": 1.7e9,
        "Keys": key,
        "NewImage": {**key, "deep": deep},
        "SequenceNumber": "4711",
    }
    record = {"eventName": "INSERT", "dynamodb": {**data, "StreamViewType": "NEW_IMAGE"}}
    (read,) = read_answer(json.dumps({"Records": [record]}, separators=(",", ":")).encode())["Records"]
    made = RecordFormat(TableSchema("orders", "orders", (KeyColumn("id", "S"),), 1), "orders/label/shard")
    assert isinstance(made.change(read, 0).new, Uncarriable)


def test_many_event_versions_do_not_fill_the_memory() -> None:
    """I11"""
    for number in range(10_000):
        assert _versioned(f"1.{number}") == {"event_version": f"1.{number}"}
    assert _versioned.cache_info().currsize <= 100

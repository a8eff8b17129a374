"""The records of ``relay.dynamodb.Stream``, their images and their order."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.dynamodb.endpoint import ScriptedStream, full
from tests.dynamodb.reading import calls, opened, read, versions

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

NOON = 1_700_049_600


def test_an_empty_stream_returns_none_and_never_ends(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    stream = opened(client)
    assert iter(stream) is stream
    calls(scripted)
    assert [next(stream) for _ in range(3)] == [None] * 3
    assert calls(scripted) == (0, 0, 0)


def test_a_record_has_its_images_and_its_origin(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    """Bloop, "Streams" (Record Structure)."""
    scripted.shard("s")
    user = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}
    sequence = scripted.put("s", "k", 2, old=1, created=NOON, userIdentity=user)
    assert next(opened(client)) == {
        "key": None,
        "old": {"id": {"S": "k"}, "version": {"N": "1"}},
        "new": {"id": {"S": "k"}, "version": {"N": "2"}},
        "meta": {
            "created_at": datetime.fromtimestamp(NOON, UTC),
            "event": {"id": scripted.shards[full("s")].records[0]["eventID"], "type": "modify", "version": "1.1"},
            "sequence_number": sequence,
            "shard_id": full("s"),
            "user_identity": user,
        },
    }


@pytest.mark.parametrize(
    ("view", "insert", "remove"),
    [
        ("NEW_AND_OLD_IMAGES", {"new"}, {"old"}),
        ("NEW_IMAGE", {"new"}, {"key"}),
        ("OLD_IMAGE", {"key"}, {"old"}),
        ("KEYS_ONLY", {"key"}, {"key"}),
    ],
)
def test_the_images_of_a_record_follow_from_the_view_type_and_the_event(
    client: DynamoDBStreamsClient, scripted: ScriptedStream, view: str, insert: set[str], remove: set[str]
) -> None:
    """The key is set only if there is no image."""
    scripted.view_type = view
    scripted.shard("s")
    scripted.put("s", "k", 1)
    scripted.put("s", "k", 1, old=1, eventName="REMOVE")
    first, second = read(opened(client))
    held = [{name for name in ("key", "old", "new") if record[name] is not None} for record in (first, second)]
    assert held == [insert, remove]
    assert [record["meta"]["event"]["type"] for record in (first, second)] == ["insert", "remove"]
    if "key" in insert:
        assert first["key"] == {"id": {"S": "k"}}


ITEM = {
    "id": {"S": "k"},
    "n": {"N": "12345678901234567890123456789012345678"},
    "exponent": {"N": "1E-130"},
    "b": {"B": "AAH/"},
    "bs": {"BS": ["AAE="]},
    "ss": {"SS": ["a", "b"]},
    "ns": {"NS": ["1", "2.50"]},
    "l": {"L": [{"M": {"deep": {"NULL": True}}}, {"S": "1"}, {"N": "1"}]},
    "yes": {"BOOL": True},
    "empty": {"S": ""},
}


def test_images_are_dynamodb_typed(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    """I8"""
    scripted.shard("s")
    scripted.put("s", "k", 1)
    scripted.shards[full("s")].records[0]["dynamodb"]["NewImage"] = ITEM
    record = next(opened(client))
    assert record is not None
    assert record["new"] == {**ITEM, "b": {"B": b"\0\1\xff"}, "bs": {"BS": [b"\0\1"]}}


def test_images_are_converted_to_plain_values_on_request(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    scripted.shard("s")
    scripted.put("s", "k", 1)
    scripted.shards[full("s")].records[0]["dynamodb"]["NewImage"] = ITEM
    record = next(opened(client, unpack=True))
    assert record is not None
    assert record["new"]["n"] == Decimal("12345678901234567890123456789012345678")
    assert record["new"]["exponent"] == Decimal("1E-130")
    assert (record["new"]["b"], record["new"]["ss"]) == (b"\0\1\xff", {"a", "b"})
    assert record["new"]["l"] == [{"deep": None}, "1", 1]
    assert (record["key"], record["old"]) == (None, None)


def test_a_custom_conversion_that_fails_loses_no_record(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I1"""
    scripted.shard("s")
    scripted.pages("s", 2)
    broken = True

    def unpack(image: Any) -> Any:
        if broken:
            raise RuntimeError
        return image["version"]["N"]

    stream = opened(client, unpack=unpack)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            next(stream)
    broken = False
    assert [record["new"] for record in read(stream)] == ["0", "1"]


def test_the_example_of_bloops_guide_comes_in_the_order_of_the_guide(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """Bloop, "Stream Ordering Guarantees" (Merging Shards)."""
    scripted.shard("0")
    hours = {"0": -7, "11": -6, "12": -4, "13": -2, "24": -4, "25": -3, "26": -3}
    scripted.put("0", "k", 0, created=NOON + 3600 * hours["0"])
    scripted.split("0", "1", "2")
    for version in (11, 12, 13, 24, 25, 26):
        scripted.put(str(version // 10), "k", version, created=NOON + 3600 * hours[str(version)])
    assert versions(read(opened(client))) == [0, 11, 12, 24, 25, 26, 13]

"""What a token of a stream says, and which are refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from relay.dynamodb import InvalidPosition, StreamToken
from tests.dynamodb.endpoint import ARN, ScriptedStream, full
from tests.dynamodb.reading import active, entries, lineage, opened, read, short, token

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient


def test_a_token_has_the_active_shards_and_the_complete_lineage(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "0>2", "2>5,6", "1>3,4", "3>7")
    taken = opened(client, "latest").token
    assert sorted(map(short, taken["active"])) == ["4", "5", "6", "7"]
    assert taken["stream_arn"] == ARN
    by_name = {short(entry["shard_id"]): entry for entry in taken["shards"]}
    parents = {name: short(entry["parent"]) for name, entry in by_name.items() if "parent" in entry}
    assert sorted(by_name) == [str(n) for n in range(8)]
    assert parents == {"2": "0", "5": "2", "6": "2", "3": "1", "4": "1", "7": "3"}
    assert json.loads(json.dumps(taken)) == taken


def test_a_token_omits_keys_without_a_value(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    lineage(scripted, "0>1,2")
    stream = opened(client, "latest")
    sequence = scripted.put("2", "k", 1)
    stream.heartbeat()
    assert stream.token == {
        "stream_arn": ARN,
        "active": [full("1"), full("2")],
        "shards": [
            {"shard_id": full("0")},
            {"shard_id": full("1"), "parent": full("0"), "iterator_type": "latest"},
            {"shard_id": full("2"), "parent": full("0"), "iterator_type": "at_sequence", "sequence_number": sequence},
        ],
    }


def test_a_closed_shard_with_unread_records_is_active_in_the_token(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "s")
    sequences = [scripted.put("s", "k", version) for version in range(3)]
    scripted.close("s")
    stream = opened(client)
    stream.heartbeat()
    assert active(stream) == ["s"]
    assert entries(stream)["s"] == {
        "shard_id": full("s"),
        "iterator_type": "at_sequence",
        "sequence_number": sequences[0],
    }
    for sequence in sequences:
        read(stream, 1)
        assert active(stream) == ["s"]
        assert entries(stream)["s"]["sequence_number"] == sequence
        assert entries(stream)["s"]["iterator_type"] == "after_sequence"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stream_arn": None}, "stream_arn"),
        ({"active": "s"}, "active"),
        ({"active": [1]}, "active"),
        ({"shards": {}}, "shards"),
        ({"shards": ["s"]}, "not an object"),
        ({"shards": [{}]}, "shard_id"),
        ({"shards": [{"shard_id": "s", "parent": 1}]}, "parent"),
        ({"shards": [{"shard_id": "s"}, {"shard_id": "s"}]}, "lists s 2 times"),
        ({"shards": [{"shard_id": "s", "iterator_type": "middle"}]}, "shard s.*middle"),
        ({"shards": [{"shard_id": "s", "iterator_type": ["latest"]}]}, "shard s"),
        ({"shards": [{"shard_id": "s", "iterator_type": "at_sequence"}]}, "shard s.*sequence number"),
        (
            {"shards": [{"shard_id": "s", "iterator_type": "after_sequence", "sequence_number": 7}]},
            "shard s.*sequence number",
        ),
    ],
)
def test_an_invalid_token_is_refused_and_the_error_names_the_invalid_part(change: dict[str, Any], message: str) -> None:
    good = token(["s"], ("s", None, "after_sequence", "7"))
    assert StreamToken.from_json(good).to_json() == good
    with pytest.raises(InvalidPosition, match=message):
        StreamToken.from_json({**good, **change})


def test_a_token_must_be_an_object(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    with pytest.raises(InvalidPosition, match="stream_arn"):
        opened(client, {})
    with pytest.raises(InvalidPosition, match="object"):
        StreamToken.from_json("[]")

"""``relay.dynamodb.Stream`` on DynamoDB Local, which may differ from the scripted endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from relay.dynamodb import Stream
from tests.dynamodb.reading import read

pytestmark = pytest.mark.services


@pytest.fixture
def clients(dynamodb: Any) -> Iterator[tuple[Any, Any]]:
    made = [
        boto3.client(name, region_name="us-east-1", endpoint_url=dynamodb.endpoint_url)
        for name in ("dynamodb", "dynamodbstreams")
    ]
    yield made[0], made[1]
    for client in made:
        client.close()


def test_a_table_is_followed_from_its_horizon_from_a_token_and_from_the_head(
    clients: tuple[Any, Any], unique: str
) -> None:
    database, streams = clients
    arn = database.create_table(
        TableName=unique,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )["TableDescription"]["LatestStreamArn"]

    def put(version: int) -> None:
        database.put_item(TableName=unique, Item={"id": {"S": "k"}, "version": {"N": str(version)}})

    put(1)
    stream = Stream(streams, arn, unpack=True)
    put(2)
    (first,) = read(stream, 1)
    assert (first["new"], first["old"], first["key"]) == ({"id": "k", "version": 1}, None, None)
    token = json.loads(json.dumps(stream.token))
    head = Stream(streams, arn, "latest")
    head.heartbeat()
    put(3)
    database.delete_item(TableName=unique, Key={"id": {"S": "k"}})
    kinds = [record["meta"]["event"]["type"] for record in read(stream)]
    assert kinds == ["modify", "modify", "remove"]
    resumed = read(Stream(streams, arn, token))
    assert [record["meta"]["event"]["type"] for record in resumed] == kinds
    assert [record["new"] and record["new"]["version"]["N"] for record in resumed] == ["2", "3", None]
    assert [record["meta"]["event"]["type"] for record in read(head)] == ["modify", "remove"]
    stream.move_to(first["meta"]["created_at"])
    assert len(read(stream)) == 4
    stream.move_to(stream.token)
    assert read(stream) == []

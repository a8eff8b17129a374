"""One scripted endpoint, and one client of it, for all tests that read streams from Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config

from relay.config import DynamoDBConfig
from relay.dynamodb.source import DynamoDBSource
from relay.dynamodb.stream_calls import StreamSession
from tests.dynamodb.endpoint import ARN, TABLE, ScriptedStream

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient


@pytest.fixture(scope="session")
def endpoint() -> Iterator[ScriptedStream]:
    with ScriptedStream() as scripted:
        yield scripted


@pytest.fixture(scope="session")
def client(endpoint: ScriptedStream) -> Iterator[DynamoDBStreamsClient]:
    """A client that does not retry, so that each failure is seen once."""
    client = boto3.client(
        "dynamodbstreams",
        region_name="us-east-1",
        endpoint_url=endpoint.url,
        config=Config(retries={"total_max_attempts": 1}),
    )
    yield client
    client.close()


@pytest.fixture
def scripted(endpoint: ScriptedStream) -> ScriptedStream:
    """The endpoint, empty."""
    endpoint.clear()
    return endpoint


@pytest.fixture
def session(client: DynamoDBStreamsClient) -> StreamSession:
    return StreamSession(client, ARN)


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    with ScriptedStream(page=2, listing_page=2) as scripted:
        yield scripted


@pytest.fixture
def source(stream: ScriptedStream) -> Iterator[DynamoDBSource]:
    config = DynamoDBConfig(name="orders", type="dynamodb", table=TABLE, region="us-east-1", endpoint_url=stream.url)
    source = DynamoDBSource(config)
    source.connect()
    yield source
    source.close()

"""An engine on DynamoDB Local, with tables of its own for each module."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from relay.dynamodb.models import Engine
from tests.dynamodb.models.shop import Counter, Mirror, Number, Order, Text


@pytest.fixture(scope="module")
def table_client(dynamodb: Any) -> Iterator[Any]:
    """A client of DynamoDB Local."""
    client = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    yield client
    client.close()


@pytest.fixture
def fresh(table_client: Any) -> Engine:
    """An engine without tables."""
    prefix = uuid.uuid4().hex[:8]
    return Engine(table_client, table_name=lambda table: f"{prefix}-{table}")


@pytest.fixture(scope="module")
def engine(table_client: Any) -> Engine:
    """An engine with the tables of the shop."""
    prefix = uuid.uuid4().hex[:8]
    engine = Engine(table_client, table_name=lambda table: f"{prefix}-{table}")
    engine.bind(Order, Counter, Mirror, Text, Number)
    return engine


@pytest.fixture
def calls(table_client: Any) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The requests that are sent to DynamoDB, each as its operation and arguments."""
    made: list[tuple[str, dict[str, Any]]] = []

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        made.append((model.name, dict(params)))

    table_client.meta.events.register("provide-client-params.dynamodb", note, unique_id="calls")
    yield made
    table_client.meta.events.unregister("provide-client-params.dynamodb", note, unique_id="calls")

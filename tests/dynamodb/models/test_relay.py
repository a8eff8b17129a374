"""A class as the declaration of a relay's source: its columns, and the check of its table."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from relay.avro.schema import change_schema
from relay.config import DynamoDBConfig
from relay.dynamodb import config_match, describe
from relay.dynamodb.check import check_model
from relay.dynamodb.models import Engine, columns_of
from relay.dynamodb.source import table_schema
from tests.dynamodb.models.shop import Counter, Order

pytestmark = pytest.mark.services

SHOP = "tests.dynamodb.models.shop"


def source(engine: Engine, table: str, **more: Any) -> DynamoDBConfig:
    return DynamoDBConfig(
        name="orders",
        type="dynamodb",
        table=table,
        region="us-east-1",
        endpoint_url=engine.client.meta.endpoint_url,
        **more,
    )


def test_a_class_gives_the_same_avro_as_the_columns_written_out(fresh: Engine, dynamodb: Any) -> None:
    fresh.bind(Order)
    table = fresh.table_name(Order)
    streams = boto3.client("dynamodbstreams", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    of_class = source(fresh, table, model=f"{SHOP}:Order")
    written = source(fresh, table, columns=columns_of(Order))
    found = describe.describe(fresh.client, of_class, streams)
    streams.close()
    config_match.verify(found, of_class)
    schemas = [change_schema(table_schema(each, found)) for each in (of_class, written)]
    assert schemas[0] == schemas[1]
    assert '"logicalType": "decimal"' in str(schemas[0]).replace("'", '"')


def test_a_table_is_checked_against_its_class(fresh: Engine) -> None:
    fresh.bind(Order, Counter)
    orders, counters = fresh.table_name(Order), fresh.table_name(Counter)
    (fine,) = check_model(fresh.client, source(fresh, orders, model=f"{SHOP}:Order"))
    assert (fine.ok, fine.check, fine.detail) == (True, "model of orders", f"{SHOP}:Order matches table {orders}")
    wrong = check_model(fresh.client, source(fresh, counters, model=f"{SHOP}:Order"))
    assert {(each.ok, each.exit_code) for each in wrong} == {(False, 3)}
    said = [each.detail for each in wrong]
    assert f"Order: table {counters} has the hash key id, not Order.customer" in said
    assert f"Order: table {counters} has no index by_total, which Order.by_total declares: create it" in said
    assert any("has no stream, but Order declares NEW_AND_OLD_IMAGES" in each for each in said)
    assert any("has no time to live, but Order.expires declares" in each for each in said)
    assert check_model(fresh.client, source(fresh, orders)) == []

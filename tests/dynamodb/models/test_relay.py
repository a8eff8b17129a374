"""A class as the declaration of a relay's source: its columns, and the check of its table."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from relay.avro.schema import change_schema
from relay.config import DynamoDBConfig
from relay.dynamodb import config_match
from relay.dynamodb.describe import TableCalls
from relay.dynamodb.kind import check_model
from relay.dynamodb.models import Engine, columns_of
from relay.dynamodb.source import table_schema
from relay.source import Finding
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


def test_a_class_gives_the_same_avro_as_the_columns_written_out(fresh: Engine) -> None:
    fresh.bind(Order)
    table = fresh.table_name(Order)
    of_class = source(fresh, table, model=f"{SHOP}:Order")
    written = source(fresh, table, columns=columns_of(Order))
    with closing(TableCalls(of_class)) as calls:
        found = calls.describe()
    config_match.verify(found, of_class)
    schemas = [change_schema(table_schema(each, found)) for each in (of_class, written)]
    assert schemas[0] == schemas[1]
    assert '"logicalType": "decimal"' in str(schemas[0]).replace("'", '"')


def checked(asked: DynamoDBConfig) -> list[Finding]:
    with closing(TableCalls(asked)) as calls:
        return check_model(calls, calls.table())


def test_a_table_is_checked_against_its_class(fresh: Engine) -> None:
    fresh.bind(Order, Counter)
    orders, counters = fresh.table_name(Order), fresh.table_name(Counter)
    (fine,) = checked(source(fresh, orders, model=f"{SHOP}:Order"))
    assert (fine.ok, fine.check, fine.detail) == (True, "model of orders", f"{SHOP}:Order matches table {orders}")
    wrong = checked(source(fresh, counters, model=f"{SHOP}:Order"))
    assert {(each.ok, each.exit_code) for each in wrong} == {(False, 3)}
    said = [each.detail for each in wrong]
    assert f"Order: table {counters} has the hash key id, not Order.customer" in said
    assert f"Order: table {counters} has no index by_total, which Order.by_total declares: create it" in said
    assert any("has no stream, but Order declares NEW_AND_OLD_IMAGES" in each for each in said)
    assert any("has no time to live, but Order.expires declares" in each for each in said)
    assert checked(source(fresh, orders)) == []

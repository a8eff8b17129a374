"""The schemas of values on a topic in either envelope, and what a refused one says."""

from __future__ import annotations

from typing import Any

import pytest

from relay.avro.debezium import value_schema
from relay.avro.evolution import differences, following
from relay.avro.schema import change_schema
from relay.config import Config
from relay.table import Column, KeyColumn, TableSchema


def config(envelope: str) -> Config:
    source: dict[str, Any] = {"name": "s", "type": "dynamodb", "table": "orders"}
    registry = {"url": "http://registry:8080"}
    kafka = {"bootstrap_servers": "b:1"}
    common = {"name": "shop", "kafka": kafka, "schema_registry": registry, "envelope": envelope, "sources": [source]}
    return Config.model_validate(common)


def table(*columns: Column) -> TableSchema:
    return TableSchema("s", "orders", (KeyColumn("id", "S"),), 1, (Column("id", "string"), *columns))


def test_the_config_chooses_the_schema() -> None:
    found = value_schema(config("debezium"), table())
    assert (found["connect.name"], found["connect.version"]) == ("shop.orders.Envelope", 2)
    assert value_schema(config("change"), table()) == change_schema(table())


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Column("n", "int"), Column("n", "string"), "row n: ['null', 'int'] -> ['null', 'string']"),
        (Column("n", "int"), Column("m", "int"), "row m: added, of type ['null', 'int']"),
    ],
)
def test_a_difference_is_named_by_its_column(before: Column, after: Column, said: str) -> None:
    old, new = (value_schema(config("debezium"), table(each)) for each in (before, after))
    assert said in differences(old, new)
    assert following(new, [old]) == new

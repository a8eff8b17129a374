"""A key column gets more decimals at the source: its rows keep their keys."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from relay.change import Change
from relay.table import Column, KeyColumn, TableSchema
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

pytestmark = pytest.mark.services

READ = """
import json, pathlib, sys
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark

config, folder = load(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[1]).parent
with spark() as session:
    spark_consumers.run(["copy", "log"], config, until_caught_up=True, checkpoint=folder / "points")
    rows = f"delta.`{folder}/copy/orders/orders/_relay_rows`"  # with the texts of times in keys
    copied = session.sql(f"SELECT CAST(price AS STRING), _relay_key_1, note FROM {rows}")
    keys = session.sql(f"SELECT DISTINCT key FROM delta.`{folder}/log`").collect()
    typed = spark_consumers.read_changes(session, config, table="orders", streaming=False)
    print(json.dumps({
        "copy": sorted([list(row) for row in copied.collect()]),
        "log": sorted(row[0] for row in keys),
        "typed": typed.select("key").distinct().count(),
    }))
"""


def laid_out(price: str) -> TableSchema:
    key = (KeyColumn("price", price), KeyColumn("at", "string", "datetime"), KeyColumn("code", "string"))
    columns = (*(Column(each.name, each.type) for each in key), Column("note", "string"))
    return TableSchema("orders", "orders", key, 1, columns)


def row(version: int, price: str, at: str, code: str = "1.50") -> Change:
    found = change("ada", version)
    found.key = {"price": Decimal(price), "at": at, "code": code}
    found.old, found.new = None, {**found.key, "note": f"v{version}"}
    return found


def test_a_row_keeps_its_key_when_a_key_column_gets_more_decimals(
    tmp_path: Path, unique: str, kafka: Any, spark_process: SparkProcess
) -> None:
    """I7: in one batch and in the next one; and texts that look like numbers are texts."""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, "redis://127.0.0.1:1/0", spark_process, partitions=1)

    def seen() -> Any:
        return json.loads(spark_process.run(READ, str(topic.path)))

    topic.publish_rows(laid_out("decimal(5,2)"), row(1, "1.50", "2024-01-01 00:00:00"), row(2, "1.50", "10:00:00"))
    topic.publish_rows(laid_out("decimal(6,3)"), row(3, "1.500", "2024-01-01 00:00:00.000"))
    copied = [["1.500", "10:00:00", "v2"], ["1.500", "2024-01-01 00:00:00", "v3"]]
    keys = ['{"price":"1.5","at":"10:00:00","code":"1.50"}', '{"price":"1.5","at":"2024-01-01 00:00:00","code":"1.50"}']
    found = seen()
    assert (found["copy"], found["log"], found["typed"]) == (copied, keys, 2)

    topic.publish_rows(laid_out("decimal(6,3)"), row(4, "1.500", "2024-01-01 00:00:00.000000"))
    topic.publish_rows(laid_out("decimal(6,3)"), row(5, "1.500", "10:00:00.000", "1.5"))
    copied = [["1.500", "10:00:00", "v2"], ["1.500", "10:00:00", "v5"], ["1.500", "2024-01-01 00:00:00", "v4"]]
    assert seen()["copy"] == copied

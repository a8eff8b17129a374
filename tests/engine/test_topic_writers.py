"""The writers of tables whose columns change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest

from relay.config import Config
from relay.engine.topic_writers import TopicWriters, open_topic_writers
from relay.errors import ConfigError
from relay.kafka.limits import Limits
from relay.kafka.settings import KafkaSettings
from relay.table import Column, KeyColumn, TableSchema


class Writer:
    def __init__(self, table: TableSchema) -> None:
        self.table = table
        self.topic = f"shop.{table.table}"


def test_the_writers_of_old_schemas_are_forgotten() -> None:
    """I11"""
    made: WeakSet[Writer] = WeakSet()

    def make(table: TableSchema) -> Any:
        writer = Writer(table)
        made.add(writer)
        return writer

    writers = TopicWriters(make)
    for number in range(3000):
        table = TableSchema("s", "t", (KeyColumn("id", "S"),), 1, (Column(f"c{number}", "int"),))
        writers.use([table])
        assert writers["s", "t"].table is table
    assert len(made) <= 1002


def test_the_topics_include_those_of_tables_that_appear_later() -> None:
    """I10: a worker whose transactions are aborted again and again asks whether these exist."""

    def make(table: TableSchema) -> Any:
        return Writer(table)

    writers = TopicWriters(make, [TableSchema("s", "t", (KeyColumn("id", "S"),), 1)])
    assert writers.topics == {"shop.t"}
    writers.use([TableSchema("s", "later", (KeyColumn("id", "S"),), 1)])
    assert writers.topics == {"shop.t", "shop.later"}


def test_a_topic_that_two_workers_have_found_for_two_tables_is_refused() -> None:
    """I8: nobody knows whose the records on it are. What one worker can know of, its sources leave out."""
    database = {"type": "mysql", "shards": {"-": ["db:3306"]}}
    config = Config.model_validate(
        {
            "name": "shop",
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "sources": [{"name": name, "database": name, **database} for name in ("orders", "legacy")],
        }
    )
    there = (*config.own_topics.values(), "shop.a.b", "shop.a_b")
    limits, schemas = Limits(dict.fromkeys(there, 1 << 20), 1 << 20), SimpleNamespace(register=lambda *_: b"\0\0\0\0\1")

    def table(source: str, name: str, *more: str) -> TableSchema:
        row = tuple(Column(column, "int") for column in ("id", *more))
        return TableSchema(source, name, (KeyColumn("id", "int"),), 1, row)

    writers = open_topic_writers(
        config, cast(Any, None), limits, KafkaSettings.from_config(config), schemas, [table("orders", "a.b")]
    )
    for source, name, owner in (
        ("orders", "checkpoints", "one of the relay's own"),
        ("legacy", "ddl", "one of the relay's own"),
        ("legacy", "a.b", "that of table a.b of source orders"),
        ("orders", "a_b", "that of table a.b of source orders"),
    ):
        with pytest.raises(ConfigError, match=f"source {source}: the table {name} .*, which is {owner}"):
            writers.make(table(source, name))
        with pytest.raises(ConfigError, match=owner):  # and if another worker publishes it
            writers.claim(source, name)
    writers.claim("legacy", "of another worker")
    with pytest.raises(ConfigError, match="that of table of another worker of source legacy"):
        writers.make(table("orders", "of another worker"))
    writer = writers.make(table("orders", "a.b", "added"))
    assert writer.topic == "shop.a.b"

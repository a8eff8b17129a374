"""The writers of tables whose columns change."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest
from confluent_kafka import Producer

from relay.avro.registry import open_schemas
from relay.config import Config
from relay.engine.topic_writers import TopicWriters, open_topic_writers
from relay.errors import ConfigError, RelayError
from relay.kafka import topics
from relay.kafka.limits import largest_records
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


def test_a_schema_is_an_event_once_although_pages_go_back_to_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    """Several shards of a table need not have reached the statement that changed it."""
    caplog.set_level(logging.INFO, logger="relay")
    before, after = (
        TableSchema("s", "t", (KeyColumn("id", "S"),), 1, (Column(name, "int"),)) for name in ("before", "after")
    )
    writers = TopicWriters(lambda table: cast(Any, Writer(table)), [before])
    for table in (after, before, after, before):
        writers.use([table])
    assert [(vars(each)["event"], each.getMessage()) for each in caplog.records] == [
        ("schema", "source s: table t has a new schema")
    ]


def test_a_topic_that_two_workers_have_found_for_two_tables_is_refused() -> None:
    """I8: nobody knows whose the records on it are. What one worker can know about, its sources leave out."""
    database = {"type": "mysql", "shards": {"-": ["db:3306"]}}
    config = Config.model_validate(
        {
            "name": "shop",
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "sources": [{"name": name, "database": name, **database} for name in ("orders", "legacy")],
        }
    )
    there = (*config.own_topics.values(), "shop.a.b", "shop.a_b")
    settings = replace(KafkaSettings.from_config(config), limits=dict.fromkeys(there, 1 << 20))
    schemas = SimpleNamespace(register=lambda *_: b"\0\0\0\0\1")

    def table(source: str, name: str, *more: str) -> TableSchema:
        row = tuple(Column(column, "int") for column in ("id", *more))
        return TableSchema(source, name, (KeyColumn("id", "int"),), 1, row)

    writers = open_topic_writers(config, cast(Any, None), settings, schemas, [table("orders", "a.b")])
    for source, name, owner in (
        ("orders", "checkpoints", "one of the relay's own"),
        ("legacy", "ddl", "one of the relay's own"),
        ("legacy", "a.b", "the topic of table a.b of source orders"),
        ("orders", "a_b", "the topic of table a.b of source orders"),
    ):
        with pytest.raises(ConfigError, match=f"source {source}: the table {name} .*, which is {owner}"):
            writers.make(table(source, name))
        with pytest.raises(ConfigError, match=owner):  # and if another worker publishes it
            writers.claim(source, name)
    writers.claim("legacy", "of another worker")
    with pytest.raises(ConfigError, match="the topic of table of another worker of source legacy"):
        writers.make(table("orders", "of another worker"))
    writer = writers.make(table("orders", "a.b", "added"))
    assert writer.topic == "shop.a.b"


def test_a_table_that_appears_on_a_shared_topic_needs_its_number_of_partitions() -> None:
    """I2: the config does not name the tables, so that nothing has compared their settings."""
    source = {"name": "s", "type": "mysql", "database": "d", "shards": {"-": ["db:3306"]}}
    config = Config.model_validate(
        {
            "name": "shop",
            "kafka": {"bootstrap_servers": "127.0.0.1:1", "partitions": 2},
            "topics": {"audit_*": "audit"},
            "topic_settings": {"*_more": {"partitions": 3}},
            "sources": [source],
        }
    )
    there = dict.fromkeys((*config.own_topics.values(), "audit"), 1 << 20)
    schemas = SimpleNamespace(register=lambda *_: b"\0\0\0\0\1")
    tables = [TableSchema("s", name, (KeyColumn("id", "int"),), 1) for name in ("audit_a", "audit_b", "audit_more")]
    settings = replace(KafkaSettings.from_config(config), limits=there)
    writers = open_topic_writers(config, cast(Any, None), settings, schemas, tables[:1])
    assert [writers.make(table).topic for table in tables[:2]] == ["audit", "audit"]
    with pytest.raises(ConfigError, match=r"audit_more has appeared .* `partitions` must be the same for both"):
        writers.make(tables[2])


@pytest.mark.services
def test_a_topic_that_has_records_keeps_its_envelope(kafka: Any, schema_registry: Any, unique: str) -> None:
    """I8: records from before there was a registry, whose schemas it does not know."""
    config = Config.model_validate(
        {
            "name": unique,
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1},
            "schema_registry": {"url": schema_registry.url},
            "envelope": "debezium",
            "sources": [{"name": name, "type": "dynamodb", "table": name} for name in ("new", "old")],
        }
    )
    new, old = (TableSchema(name, name, (KeyColumn("id", "S"),), 1) for name in ("new", "old"))
    admin, settings = topics.connect(config), KafkaSettings.from_config(config)
    found = topics.create_missing(admin, config, ["new", "old"])
    settings = replace(settings, limits=largest_records(found, settings.producer))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(config.topic("old"), b"of another form")
    assert producer.flush(60) == 0
    with closing(open_schemas(config)) as schemas:
        writers = open_topic_writers(config, admin, settings, schemas, [new])
        with pytest.raises(RelayError, match=f"topic {unique}.old has records of a different `envelope`"):
            writers.make(old)
        producer.produce(config.topic("new"), b"of this one")
        assert producer.flush(60) == 0
        assert writers.make(new).topic == config.topic("new")

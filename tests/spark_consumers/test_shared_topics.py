"""The consumers on a topic of two tables whose rows have equal keys: a change of one does nothing to the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import spark_consumers
from relay.cache import RedisStore
from relay.change import Operation
from relay.config import Config
from relay.errors import ConfigError
from tests.log_lines import log_lines
from tests.spark_consumers.cache_engines import Cache
from tests.spark_consumers.shared_topic import AS_OF, of_lines, rows, snapshot
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change, read, truncation

pytestmark = pytest.mark.services

START = """
import json, pathlib, sys
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark

config = load(pathlib.Path(sys.argv[1]))
"""


@pytest.fixture
def topic(tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess) -> Topic:
    """One topic of both tables."""
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process, shared=True)


def run(topic: Topic, script: str) -> Any:
    """Return what a script prints as JSON."""
    assert topic.spark is not None
    return json.loads(topic.spark.run(START + script, str(topic.path), compiled=True))


def test_the_copy_and_the_log_keep_tables_apart(topic: Topic) -> None:
    """I7: a truncation empties, and a snapshot sweeps, only its own table."""
    changes = rows(10)
    changes += of_lines([*rows(20), truncation(25), change("c1", 26, Operation.INSERT)])
    changes += [change("c0", 30), *of_lines([change("c0", 31, Operation.INSERT), change("c0", 32, Operation.DELETE)])]
    topic.publish(changes)
    expected: dict[str, Any] = {
        "copy": {"c0": 30, "c1": 11, "c2": 12},
        "lines": {"c1": 26},
        "log": sorted(each.event_id for each in changes),
    }
    steps = ("log", "log-first"), ("copy", "copy-first")
    assert topic.apply(*steps) == expected
    more = snapshot(read("c1", 11, AS_OF))
    topic.publish(more)
    expected |= {"copy": {"c1": 11}, "log": sorted([*expected["log"], *(each.event_id for each in more)])}
    assert topic.apply(*steps) == expected
    more = [*rows(250), *of_lines(rows(260))]
    topic.publish(more)
    expected = {
        "copy": {"c0": 250, "c1": 251, "c2": 252},
        "lines": {"c0": 260, "c1": 261, "c2": 262},
        "log": sorted([*expected["log"], *(each.event_id for each in more)]),
    }
    assert topic.apply(*steps) == expected
    assert topic.apply(("log", "log-again"), ("copy", "copy-again")) == expected


def test_a_hole_of_the_topic_is_a_gap_of_each_of_its_tables(topic: Topic) -> None:
    """I9: also of one that the copy does not have yet."""
    topic.publish(rows(10))
    topic.consume("copy", checkpoint="one")
    topic.publish([*rows(20), *of_lines(rows(30))])
    topic.remove_all()
    topic.publish([*rows(40), *of_lines(rows(50))])
    topic.consume("copy", checkpoint="two")
    gaps = [each["table"] for each in log_lines(topic.log, "gap")]
    assert {*gaps} == {"orders", "lines"}
    properties = topic_gaps(topic)
    assert properties == {"orders": {"orders"}, "lines": {"lines"}}


def topic_gaps(topic: Topic) -> dict[str, set[str]]:
    """Return, by table of the copy, the tables of the gaps that are noted beside it."""
    found = run(
        topic,
        """
from spark_consumers.sinks.copy_table import GAPS
from spark_consumers.sinks.places import copy_target
with spark() as session:
    open_table, noted = copy_target(config, config.copy_).open(), {}
    for table in ("orders", "lines"):
        properties = open_table(table, table).properties(session.range(0))
        noted[table] = [gap["table"] for gap in json.loads(properties.get(GAPS, "[]"))]
    print(json.dumps(noted))
""",
    )
    return {table: {*gaps} for table, gaps in found.items()}


def test_the_cache_ignores_a_table_without_cache_keys(topic: Topic, cache: Cache) -> None:
    """I6: the keys of the other are invalidated by its own changes, and the namespace by its own truncation."""
    topic.publish([change("c0", 1), *of_lines([change("c0", 70), change("c1", 71)])])
    counts = cache.consume()
    assert counts["rows"] == 3
    assert cache.is_invalidated()
    assert [cache.version("c0"), cache.version("c1")] == [1, 0]
    topic.publish([*of_lines([truncation(80), change("c0", 81)]), change("c0", 2)])
    assert cache.consume()["bumps"] == 0
    assert not cache.is_invalidated()
    assert cache.version("c0") == 2
    topic.publish([truncation(90)])
    assert cache.consume()["bumps"] >= 1  # it is in both partitions, which may come in two batches
    assert cache.is_invalidated()


def test_the_cache_reads_a_topic_of_two_cached_tables_once(topic: Topic, cache: Cache, store: RedisStore) -> None:
    topic.set_cache_keys("line:{customer}", table="lines")
    topic.publish([change("c0", 1), *of_lines([change("c0", 70)])])
    assert (counts := cache.consume())["rows"] == 2
    assert counts["applied"] == 2
    assert cache.version("c0") == 1


def test_frames_have_the_changes_of_the_tables_that_they_are_asked_for(topic: Topic) -> None:
    """I1: a record that is not a change may be of any table."""
    topic.publish([change("c0", 1), *of_lines([change("c0", 70)])])
    topic.publish_raw(b"not a known framing")
    found = run(
        topic,
        """
with spark() as session:
    def read(**options):
        frame = spark_consumers.read_changes(session, config, streaming=False, undecodable="keep", **options)
        return sorted([row.table or "", row.key if isinstance(row.key, str) or row.key is None else row.key.customer]
                      for row in frame.select("table", "key").collect()), dict(frame.dtypes)["key"]
    print(json.dumps([read(topics=["lines"])[0], read(topics=[config.topic("lines")])[0], read(table="lines")]))
""",
    )
    key = '{"customer":"c0","order_id":"1"}'
    assert found[0] == [["", None], ["lines", key]]
    assert found[1] == [["", None], ["lines", key], ["orders", key]]
    assert found[2] == [[["", None], ["lines", "c0"]], "struct<customer:string,order_id:string>"]


def test_batches_are_of_whole_topics() -> None:
    """I1: the offsets of a checkpoint cannot say whose changes were skipped."""
    sources = [{"name": each, "type": "dynamodb", "table": each} for each in ("orders", "lines")]
    kafka = {"bootstrap_servers": "127.0.0.1:1"}
    config = Config.model_validate({"name": "shop", "kafka": kafka, "topics": "all", "sources": sources})
    with pytest.raises(ConfigError, match="name topic all in full"):
        spark_consumers.changes(config, ["lines"], name="mine")
    assert spark_consumers.changes(config, ["all"], name="mine")._consumer.topics == ["all", "shop.gaps"]


def test_a_query_of_one_table_goes_on_when_another_gets_a_new_schema_and_ends_with_its_own(topic: Topic) -> None:
    """I8: columns that the query does not have would be null."""
    topic.publish([change("c0", 1), *of_lines([change("c0", 70)])])
    script = """
with spark() as session:
    frame = spark_consumers.read_changes(session, config, table="lines", at_most=50)
    query = frame.select("table", "key.customer").writeStream.format("memory").queryName("found").start()
    query.processAllAvailable()
    import dataclasses
    from confluent_kafka import Producer
    from relay.avro.registry import open_schemas
    from relay.kafka.topic_writer import TopicWriter
    from relay.table import KeyColumn
    from tests.spark_consumers.topic import TABLE, _Sending, change
    def publish(table, version):
        schemas, producer = open_schemas(config), Producer(config.kafka.client())
        later = dataclasses.replace(TABLE, source=table, table=table, key=(*TABLE.key[:1], KeyColumn("order_id", "S")))
        one = change("later", version)
        one.source = one.table = table
        TopicWriter(later, config.topic(table), 2, "hash", schemas).send_page(_Sending(producer), [one], 1)
        assert producer.flush(30) == 0
        schemas.close()
    publish("orders", 2)
    query.processAllAvailable()
    rows = [list(row) for row in session.table("found").collect()]
    publish("lines", 71)
    try:
        query.processAllAvailable()
        said = ""
    except Exception as error:
        said = str(error)
    query.stop()
    print(json.dumps([rows, "its schema was not known when the query started" in said]))
"""
    assert run(topic, script) == [[["lines", "c0"]], True]

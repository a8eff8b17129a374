"""Where changes were lost, the log and the copy say so, until a snapshot has repaired the copy (I9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from relay.change import Change, Operation, Snapshot
from relay.config import Config
from relay.records import Gap
from spark_consumers.change_log import log_consumer
from spark_consumers.dead_letters import NonChangeRecord
from spark_consumers.gaps import LostChanges, from_json, lost_changes, to_json
from spark_consumers.records import DecodeStatus
from tests.log_lines import log_lines
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change, mark, read

FOUND_AT = 1_700_000_500.0

SCRIPT = """
import json, pathlib, sys
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark

path = pathlib.Path(sys.argv[1])
config = load(path)

def gaps_of(table):
    found = session.sql(f"SHOW TBLPROPERTIES delta.`{path.parent}/copy/{table}/{table}`").collect()
    found = {row["key"]: row["value"] for row in found}
    return [gap["reason"] for gap in json.loads(found.get("relay.gaps", "[]"))]

with spark() as session:
    for consumer in ("log", "copy"):
        checkpoint = path.parent / "checkpoints" / f"{consumer}-{sys.argv[2]}"
        spark_consumers.run(consumer, config, until_caught_up=True, checkpoint=checkpoint)
    logged = session.sql(f"SELECT source, reason, found_at FROM delta.`{path.parent}/log_gaps` ORDER BY reason")
    seen = {
        "log": [[row[0], row[1], row[2].timestamp()] for row in logged.collect()],
        "orders": gaps_of("orders"),
        "lines": gaps_of("lines"),
    }
    json.dump(seen, sys.stdout)
"""

FORGET_IDS = """
import sys
from pyspark.sql import SparkSession

session = SparkSession.getActiveSession()
session.sql(f"ALTER TABLE delta.`{sys.argv[1]}` UNSET TBLPROPERTIES (`relay.topic_ids`)")
"""

NOTED = """
import json, sys
from pyspark.sql import SparkSession

session = SparkSession.getActiveSession()
found = []
for path in sys.argv[1:]:
    (row,) = session.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()
    found.append([gap["reason"] for gap in json.loads(row["properties"].get("relay.gaps", "[]"))])
json.dump(found, sys.stdout)
"""


def non_change(value: bytes, status: DecodeStatus = DecodeStatus.GAP) -> NonChangeRecord:
    return NonChangeRecord(status, "shop.gaps", 0, 7, value)


def test_a_gap_is_known_by_its_id_and_one_that_cannot_be_read_by_its_place() -> None:
    gap = Gap("orders", "orders/2026", "s1", "trimmed", None, None, FOUND_AT)
    timeless = json.dumps(json.loads(gap.to_json()) | {"found_at": 1e18}).encode()
    records = [*map(non_change, (gap.to_json(), b"{}", timeless)), non_change(b"?", DecodeStatus.FRAMING)]
    found = lost_changes(records)
    assert [(each.id, each.source) for each in found] == [(gap.id, "orders"), *[("shop.gaps/0/7", None)] * 2]
    assert from_json(to_json(found)) == found
    assert from_json("") == []


def test_the_consumers_of_tables_read_the_gaps_beside_the_changes() -> None:
    """I9"""
    raw = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "127.0.0.1:9"},
        "sources": [{"name": "orders", "type": "dynamodb", "table": "orders"}],
        "log": {"path": "file:///log"},
    }
    config = Config.model_validate(raw)
    assert config.log is not None
    assert log_consumer(config, config.log).topics == ["shop.orders", "shop.gaps"]


@pytest.mark.parametrize(("as_of", "repaired"), [(FOUND_AT - 66, False), (FOUND_AT - 65, True)])
def test_a_snapshot_repairs_the_gaps_that_were_found_before_it_began(as_of: float, repaired: bool) -> None:
    """The ``as_of`` of a snapshot is 65 s before its beginning."""
    gap = LostChanges("g", "orders", "trimmed", FOUND_AT, "")
    assert gap.is_repaired_by(Snapshot("s", int(as_of))) is repaired
    assert not LostChanges("g", None, "cannot be read", 0.0, "").is_repaired_by(Snapshot("s", int(as_of)))


@pytest.mark.services
def test_gaps_are_beside_the_log_and_the_copy_and_a_snapshot_repairs_the_copy(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess
) -> None:
    """I9: under `skip` nothing else says that rows may be wrong."""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)

    def publish(*gaps: bytes) -> None:
        producer = Producer(topic.config.kafka.client())
        for gap in gaps:
            producer.produce(topic.config.internal("gaps"), gap, partition=0)
        assert producer.flush(30) == 0

    def look(checkpoint: str) -> Any:
        return json.loads(spark_process.run(SCRIPT, str(topic.path), checkpoint, log=tmp_path / "stderr"))

    line = change("c1", 1, Operation.INSERT)
    line.source = line.table = "lines"
    topic.publish([change("c0", 1, Operation.INSERT), line])
    trimmed = Gap("orders", "orders/2026", "s1", "trimmed", None, None, FOUND_AT).to_json()
    publish(trimmed, trimmed, Gap("others", "x", None, "purged", None, None, FOUND_AT).to_json())
    logged = [["others", "purged", FOUND_AT], ["orders", "trimmed", FOUND_AT]]
    assert look("one") == {"log": logged, "orders": ["trimmed"], "lines": []}
    batches = log_lines(tmp_path / "stderr", "batch")
    assert {batch["consumer"]: batch["gaps"] for batch in batches} == {"log": 3, "copy": 3}
    # Applied again, and after a snapshot that began before, and then after the gap.
    as_of = int(FOUND_AT) - 100
    topic.publish([mark("begin", as_of), read("c0", 1, as_of), mark("end", as_of)])
    assert look("two") == {"log": logged, "orders": ["trimmed"], "lines": []}
    as_of += 100
    topic.publish([mark("begin", as_of), read("c0", 1, as_of), mark("end", as_of)])
    publish(b"{}")
    unreadable = [None, "the gap record cannot be read", 0.0]
    assert look("two") == {
        "log": [logged[0], unreadable, logged[1]],
        "orders": ["the gap record cannot be read"],
        "lines": ["the gap record cannot be read"],
    }


@pytest.mark.services
def test_the_tables_of_a_source_that_is_copied_only_after_a_gap_say_so_too(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess
) -> None:
    """I9: its first changes may be among those that were lost, and nothing was known of the tables then."""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)
    publish_gaps(topic, ("orders", "trimmed"), ("others", "purged"))
    assert topic.consume("copy", checkpoint="copy-one")["gaps"] == 2
    topic.publish([change("c0", 1, Operation.INSERT), line_of("orders", 1)])
    assert gaps_of(topic, "orders/orders", "orders/lines") == [["trimmed"], ["trimmed"]]
    # Not those of a source that has none.
    topic.publish([line_of("lines", 1)])
    assert gaps_of(topic, "lines/lines") == [[]]


@pytest.mark.services
def test_a_copy_notes_no_gap_from_before_its_beginning_and_none_that_it_has_seen_repaired(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess
) -> None:
    """Nothing would ever remove it, but a snapshot that nobody needs."""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)
    publish_gaps(topic, ("orders", "trimmed"))
    topic.consume("copy", "--from", "latest", checkpoint="copy-one")
    topic.publish([change("c0", 1, Operation.INSERT)])
    assert gaps_of(topic, "orders/orders") == [[]]
    # Repaired with brokers that give topics no ids.
    publish_gaps(topic, ("orders", "purged"))
    as_of = int(FOUND_AT)
    topic.publish([mark("begin", as_of), read("c0", 1, as_of), mark("end", as_of)])
    assert gaps_of(topic, "orders/orders") == [[]]
    spark_process.run(FORGET_IDS, f"{tmp_path}/copy/orders/orders")
    topic.publish([change("c0", 2)])
    assert gaps_of(topic, "orders/orders") == [[]]


@pytest.mark.services
def test_a_gap_is_noted_after_a_restart_although_the_registry_was_asked_for_no_schema_yet(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess, schema_registry: Any
) -> None:
    """I9: the tables that are there were not known until they had their next changes."""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)
    topic.use_registry(schema_registry.url)
    topic.publish([change("c0", 1, Operation.INSERT)])
    assert gaps_of(topic, "orders/orders") == [[]]
    publish_gaps(topic, ("orders", "trimmed"))
    assert gaps_of(topic, "orders/orders") == [["trimmed"]]


def line_of(source: str, version: int) -> Change:
    line = change("c1", version, Operation.INSERT)
    line.source, line.table = source, "lines"
    return line


def publish_gaps(topic: Topic, *gaps: tuple[str, str]) -> None:
    """Publish gaps, each with its source and reason."""
    producer = Producer(topic.config.kafka.client())
    for source, reason in gaps:
        gap = Gap(source, "x", reason, reason, None, None, FOUND_AT).to_json()
        producer.produce(topic.config.internal("gaps"), gap, partition=0)
    assert producer.flush(30) == 0


def gaps_of(topic: Topic, *tables: str) -> Any:
    """Bring the copy up to date, and return the reasons of the gaps that are noted at its tables."""
    topic.consume("copy", checkpoint="copy-one")
    assert topic.spark is not None
    return json.loads(topic.spark.run(NOTED, *(f"{topic.folder}/copy/{table}" for table in tables)).splitlines()[-1])

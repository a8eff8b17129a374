"""How long changes wait to be written together, with `apply_every`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

pytestmark = pytest.mark.services


_SCRIPT = """
import json, pathlib, sys, time
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from relay.config import load
from spark_consumers import kafka_source

config, topic, folder = load(pathlib.Path(sys.argv[1])), sys.argv[2], sys.argv[3]
producer = Producer(config.kafka.client())
batches = []

def publish(number):
    for _ in range(number):
        producer.produce(topic, b"value", b"key", partition=0)
    assert producer.flush(30) == 0

def await_rows(number):
    deadline = time.monotonic() + 120
    while sum(batches) < number:
        assert time.monotonic() < deadline, batches
        time.sleep(0.05)

publish(3)
records = kafka_source.read(SparkSession.getActiveSession(), config, "log", [topic], "earliest", 10, 3600.0)
writer = records.writeStream.foreachBatch(lambda batch, number: batches.append(batch.count()))
query = writer.option("checkpointLocation", folder).trigger(processingTime="100 milliseconds").start()
try:
    await_rows(3)
    publish(9)
    time.sleep(2)
    publish(1)
    await_rows(13)
    publish(25)
    await_rows(33)
    time.sleep(2)
finally:
    query.stop()
print(json.dumps(batches))
"""


def test_few_records_wait_for_a_full_batch(topic: Topic, tmp_path: Path, spark_process: SparkProcess) -> None:
    found = spark_process.run(_SCRIPT, str(topic.path), topic.name, str(tmp_path / "checkpoint"))
    assert json.loads(found.splitlines()[-1]) == [3, 10, 10, 10]


def test_changes_that_wait_are_applied_after_a_restart_and_until_caught_up(topic: Topic) -> None:
    raw = yaml.safe_load(topic.path.read_text())
    raw["log"]["apply_every"] = "1h"
    topic.path.write_text(yaml.safe_dump(raw))

    def rows() -> int:
        return topic.counts().get("rows", 0)

    topic.publish([change("ada", 1)])
    consumer = topic.start_in_spark("log", checkpoint="a")
    wait_until(lambda: rows() == 1, 120)
    topic.publish([change("ada", 2), change("bob", 1)])
    time.sleep(5)
    assert rows() == 1
    assert consumer.terminate() == 0
    consumer = topic.start_in_spark("log", checkpoint="a")
    wait_until(lambda: rows() == 2, 120)
    topic.publish([change("ada", 3)])
    assert consumer.terminate() == 0
    assert topic.consume("log", checkpoint="a")["rows"] == 1

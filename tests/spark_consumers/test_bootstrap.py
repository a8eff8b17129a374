"""A copy that begins with nothing, of a table that has rows already and is written to all the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaException

from relay.avro.registry import open_schemas
from relay.kafka.transient_errors import is_transient
from tests.command_line import run_until_caught_up
from tests.faults.harness import Scene
from tests.spark_consumers.spark_process import SparkProcess
from tests.topic_changes import read_changes
from tests.waiting import wait_until

COPY = """
import json, pathlib, sys
import spark_consumers
from relay.config import load
from relay.demo.report import read_copy
from tests.spark_consumers.local_spark import spark

config = load(pathlib.Path(sys.argv[1]))
with spark() as session:
    spark_consumers.run("copy", config, until_caught_up=True, checkpoint=sys.argv[2])
    rows = read_copy(session, config, config.sources[0].table)
json.dump([[*item, version] for item, version in rows.items()], sys.stdout)
"""


pytestmark = pytest.mark.services


def operations(scene: Scene) -> list[str]:
    """Return those of all records on the topic, the marks of the snapshot among them."""
    config = scene.config
    try:
        found = read_changes(config.kafka.client(), config.topic(scene.table), open_schemas(config))
        return [change["operation"] for _, _, change in found]
    except KafkaException as error:
        if not is_transient(error.args[0]):  # the topic is being created
            raise
        return []


def test_an_empty_copy_equals_the_table_after_a_snapshot_beside_the_writers(
    tmp_path: Path, unique: str, kafka: Any, dynamodb: Any, spark_process: SparkProcess
) -> None:
    """I1, I7: nothing but the snapshot has the rows from before the relay, which starts at the latest change."""
    scene = Scene(tmp_path, unique, kafka.bootstrap_servers, dynamodb.endpoint_url)
    try:
        raw = yaml.safe_load(scene.path.read_text())
        raw["sources"][0] |= {"start": "latest", "snapshot": "initial"}
        raw["copy"] = {"url": f"delta://{tmp_path}/copy"}
        scene.path.write_text(yaml.safe_dump(raw))
        workload = scene.workload(writers=2, customers=6, pause=0.05)
        workload.warm_up()
        before = len(workload.items)
        # A row that nobody writes to any more.
        key = {"customer": {"S": "settled"}, "order_id": {"N": "1"}}
        scene.client.put_item(TableName=scene.table, Item={**key, "version": {"N": "17"}})
        workload.start()
        relay = scene.relay()
        wait_until(lambda: len(operations(scene)) > before + 50 or None, 200)
        assert relay.is_running, relay.log()
        workload.stop()
        assert relay.terminate() == 0, relay.log()
        run_until_caught_up(scene.path)
        assert {"READ", "UPDATE"} <= set(operations(scene))
        copied = json.loads(spark_process.run(COPY, str(scene.path), str(tmp_path / "checkpoint")).splitlines()[-1])
        pages = scene.client.get_paginator("scan").paginate(TableName=scene.table, ConsistentRead=True)
        items = [item for page in pages for item in page["Items"]]
        expected = [[item["customer"]["S"], item["order_id"]["N"], int(item["version"]["N"])] for item in items]
        assert sorted(copied) == sorted(expected)
        assert ["settled", "1", 17] in copied
    finally:
        scene.close()

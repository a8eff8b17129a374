"""The jobs in ``spark_consumers/examples``, on a real topic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.change import Images, Operation
from tests.spark_consumers.own_clients import PROGRAMS, own_client, printed
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change, read

pytestmark = pytest.mark.services

RUN = """
import runpy, sys

sys.argv[0] = name = "spark_consumers.examples." + sys.argv.pop(1)
runpy.run_module(name, run_name="__main__")
"""


@pytest.fixture
def topic(tmp_path: Path, unique: str, kafka: Any, spark_process: SparkProcess) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, "redis://127.0.0.1:1/0", spark_process)


def run(topic: Topic, example: str, *arguments: str) -> None:
    assert topic.spark is not None
    topic.spark.run(RUN, example, str(topic.path), *arguments)


def test_changes_are_counted_by_minute(topic: Topic) -> None:
    changes = [change("ada", 1, Operation.INSERT), change("ada", 2), change("ada", 3)]
    changes[2].committed_at += 60_000_000
    topic.publish(changes)
    run(topic, "changes_per_minute", str(topic.folder))
    files = sorted((topic.folder / "counts").rglob("*.json"))
    counts = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {(each["minute"][:16], each["table"], each["operation"], each["count"]) for each in counts} == {
        ("2023-11-14T22:13", "orders", "INSERT", 1),
        ("2023-11-14T22:13", "orders", "UPDATE", 1),
        ("2023-11-14T22:14", "orders", "UPDATE", 1),
    }


def test_the_newest_row_of_each_item_is_kept_however_often_a_batch_comes(topic: Topic) -> None:
    topic.publish([change(customer, version) for version in (1, 2) for customer in ("ada", "bob")])

    def rows() -> dict[str, str]:
        found = [json.loads(file.read_text()) for file in (topic.folder / "rows").glob("*.json")]
        return {json.loads(each["key"])["customer"]: json.loads(each["row"])["version"]["N"] for each in found}

    run(topic, "latest_rows", "orders", str(topic.folder))
    assert rows() == {"ada": "2", "bob": "2"}
    topic.publish([change("ada", 3), change("bob", 1)])  # the second one is late
    run(topic, "latest_rows", "orders", str(topic.folder))
    assert rows() == {"ada": "3", "bob": "2"}


def test_a_snapshot_and_a_change_without_its_image_replace_no_newer_row(topic: Topic) -> None:
    """I7: a row of a snapshot may be older than a change that the topic has before it."""
    stub = change("bob", 2)
    stub.old, stub.new, stub.images = None, None, Images.OMITTED
    as_of = 1_700_000_000
    topic.publish([change("ada", 5), read("ada", 4, as_of), change("bob", 1), stub, read("eve", 3, as_of)])
    run(topic, "latest_rows", "orders", str(topic.folder))
    topic.publish([read("ada", 4, as_of), change("eve", 6), read("dan", 7, as_of + 100)])
    run(topic, "latest_rows", "orders", str(topic.folder))
    found = [json.loads(file.read_text()) for file in (topic.folder / "rows").glob("*.json")]
    assert {
        json.loads(each["key"])["customer"]: (json.loads(each["row"])["version"]["N"], each["incomplete"])
        for each in found
    } == {"ada": ("5", False), "bob": ("1", True), "eve": ("6", False), "dan": ("7", False)}


def test_each_change_is_printed_once_without_spark(topic: Topic) -> None:
    command = [sys.executable, "-m", "spark_consumers.examples.without_spark", str(topic.path), "orders"]

    def versions() -> list[str]:
        ran = subprocess.run(command, capture_output=True, check=True, timeout=600, text=True)
        return [json.loads(line)[2]["version"] for line in ran.stdout.splitlines()]

    topic.publish([change("ada", 1), change("ada", 2)])
    assert versions() == ["1", "2"]
    topic.publish([change("ada", 3)])
    assert versions() == ["3"]


def own(
    topic: Topic, program: str, count: int, schemas: str = "schemas", registry: str = ""
) -> subprocess.CompletedProcess[str]:
    servers, schemas = topic.config.kafka.bootstrap_servers, f"{topic.config.name}.{schemas}"
    return own_client(program, servers, topic.name, schemas, count, registry)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_change_is_printed_once_by_a_client_of_ones_own(topic: Topic, program: str) -> None:
    def versions(count: int) -> list[str]:
        return [json.loads(new)["version"]["N"] for _, _, new in printed(own(topic, program, count))]

    topic.publish([change("ada", 1), change("ada", 2)])
    assert versions(2) == ["1", "2"]
    topic.publish([change("ada", 3)])
    assert versions(1) == ["3"]


def test_a_client_of_ones_own_says_that_the_topic_of_the_schemas_is_another(topic: Topic) -> None:
    topic.publish([change("ada", 1)])
    ran = own(topic, "python", 1, "schemata")
    assert ran.returncode == 1
    assert f"no topic {topic.config.name}.schemata at {topic.config.kafka.bootstrap_servers}" in ran.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_of_ones_own_decodes_nothing_that_it_has_no_schema_of(
    topic: Topic, program: str, schema_registry: Any
) -> None:
    """I8: Avro would make a row of wrong values of it."""
    topic.publish_raw(b"\x00\x7f\xff\xff\xff" + bytes(100))
    ran = own(topic, program, 1)
    assert ran.returncode == 1
    assert "no schema of a value that begins with 007fffffff" in ran.stderr
    ran = own(topic, program, 1, registry=schema_registry.url)
    assert (ran.returncode, ran.stdout) == (1, "")

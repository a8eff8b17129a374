"""What is about the code of the cache without Spark; `test_cache_starts` and `_runs` have what both engines promise."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer
from confluent_kafka.cimpl import NewPartitions

from relay.cache import RedisStore, generation_key
from relay.config.topic_names import topics_of_cache
from relay.dynamodb.values import image_json
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.group_offsets import GroupOffsets, consumer_addresses
from spark_consumers import python_engine, run
from spark_consumers.python_engine import _PythonConsumer
from tests.observe.requests import get
from tests.spark_consumers.invalidated import committed, version
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def topic(tmp_path: Path, kafka: Any, redis_server: Any, unique: str) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url)


def test_it_needs_neither_spark_nor_a_database_driver(topic: Topic, store: RedisStore) -> None:
    topic.publish([change("c0", 1)])
    script = """
import sys
sys.modules.update(dict.fromkeys(("pyspark", "py4j", "boto3", "botocore", "pymysql", "msgspec", "xxhash", "hpack")))
from relay.cli import main
main()
"""
    arguments = ["consume", "cache", str(topic.path), "--engine", "python", "--until-caught-up"]
    ran = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    assert version(store, topic, "c0") == 1


def runs_into_removed_records(topic: Topic, *, until_caught_up: bool) -> None:
    assert topic.config.cache is not None
    with pytest.raises(RelayError, match="were removed before they were applied"):
        python_engine.run(topic.config, topic.config.cache, until_caught_up=until_caught_up, start=None)


def test_records_that_are_removed_before_the_first_is_read_are_not_passed_over(
    topic: Topic, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6, I9: retention goes on while the consumer starts, which may have to wait for the store."""
    topic.publish([change("c0", 1)])
    topic.consume("cache", checkpoint="one", engine="python")
    before = store.generation(generation_key(topic.config.name))
    open_reader = _PythonConsumer._open_reader

    def open_after_removal(consumer: _PythonConsumer) -> Consumer:
        topic.publish([change("c0", 2)])
        topic.remove_all()
        topic.publish([change("c0", 3)])
        return open_reader(consumer)

    topic.publish([change("c0", 2)])
    with monkeypatch.context() as patch:
        patch.setattr(_PythonConsumer, "_open_reader", open_after_removal)
        runs_into_removed_records(topic, until_caught_up=True)
    topic.consume("cache", checkpoint="one", engine="python")
    assert store.generation(generation_key(topic.config.name)) != before


def test_records_that_are_removed_before_new_partitions_are_found_are_not_passed_over(
    topic: Topic, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6, I9: the consumer waits for the store while retention goes on, and then looks for partitions."""
    topic.publish([change("c0", 1)])
    look = _PythonConsumer._look_for_partitions
    is_removed = False

    def look_after_removal(consumer: _PythonConsumer) -> None:
        nonlocal is_removed
        if version(store, topic, "c0") == 5:
            consumer.stop(signal.SIGTERM)  # it has passed them over
        elif version(store, topic, "c0") == 1 and not is_removed:
            is_removed = True
            # What was fetched of them already is dropped with the assignment.
            topic.publish([change("c0", number) for number in range(2, 5)])
            topic.remove_all()
            admin = topics.connect(topic.config)
            admin.create_partitions([NewPartitions(topic.name, 7)])[topic.name].result(60)
            known = sum(map(len, consumer._reached.values()))
            wait_until(lambda: len(consumer._group.partitions()) > known or None, 60)
            topic.publish([change("c0", 5)])
            look(consumer)

    monkeypatch.setattr(_PythonConsumer, "_look_for_partitions", look_after_removal)
    monkeypatch.setattr(python_engine, "_LOOK", 0.0)
    runs_into_removed_records(topic, until_caught_up=False)


def test_a_consumer_whose_offsets_lie_past_the_end_of_a_topic_misses_nothing_that_comes(
    topic: Topic, store: RedisStore
) -> None:
    """I6, I9: the topic was created again while a consumer ran, which then reported the offsets of the old one."""
    topic.publish([change("c0", number) for number in range(1, 7)])
    topic.consume("cache", checkpoint="one", engine="python")
    reached, _ = committed(topic)
    before = store.generation(generation_key(topic.config.name))
    topic.create_again()
    assert topic.config.cache is not None
    group = GroupOffsets(topic.config, "cache", topics_of_cache(topic.config, topic.config.cache))
    group.commit(reached, ids={}, wait=True)
    group.close()
    topic.consume("cache", checkpoint="one", engine="python")
    assert store.generation(generation_key(topic.config.name)) != before
    topic.publish([change("c0", 7)])
    assert topic.consume("cache", checkpoint="one", engine="python")["rows"] == 1


def test_a_topic_that_is_created_again_while_the_consumer_runs_is_noticed(
    topic: Topic, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6, I9: it may have more records by then than were read of the old one."""
    topic.publish([change("c0", 1)])
    look = _PythonConsumer._look_for_partitions

    def look_after_creation(consumer: _PythonConsumer) -> None:
        if version(store, topic, "c0") == 1:
            topic.create_again()
            topic.publish([change("c0", number) for number in range(2, 5)])
            look(consumer)
            consumer.stop(signal.SIGTERM)

    assert topic.config.cache is not None
    with monkeypatch.context() as patch:
        patch.setattr(_PythonConsumer, "_look_for_partitions", look_after_creation)
        patch.setattr(python_engine, "_LOOK", 0.0)
        with pytest.raises(RelayError, match=f"topic {topic.name} was deleted and created again"):
            python_engine.run(topic.config, topic.config.cache, until_caught_up=False, start=None)
    before = store.generation(generation_key(topic.config.name))
    topic.consume("cache", checkpoint="one", engine="python")
    assert store.generation(generation_key(topic.config.name)) != before


def test_what_was_not_applied_before_new_partitions_came_is_not_committed(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: the store is away, and the consumer is asked to stop. Its last commit is where another one may start."""
    topic.publish([change("c0", 1)])
    tried: list[int] = []

    def fail(consumer: _PythonConsumer, batch: Any) -> None:
        known = sum(map(len, batch.reached.values()))
        admin = topics.connect(topic.config)
        admin.create_partitions([NewPartitions(topic.name, 7)])[topic.name].result(60)
        wait_until(lambda: len(consumer._group.partitions()) > known or None, 60)
        tried.append(len(batch.records))
        consumer.stop(signal.SIGTERM)
        raise Unavailable("the store is away")

    monkeypatch.setattr(_PythonConsumer, "_apply_batch", fail)
    monkeypatch.setattr(python_engine, "_LOOK", 0.0)
    assert topic.config.cache is not None
    python_engine.run(topic.config, topic.config.cache, until_caught_up=False, start=None)
    assert tried == [1]
    assert {each.offset for each in topic.reported("cache")} == {0}


def test_the_page_of_the_relay_finds_it_without_an_option(topic: Topic) -> None:
    """Its config is the relay's, whose port is in use."""
    with topic.path.open("a") as config, socket.create_server(("127.0.0.1", 0)) as relay:
        config.write(f'http: "127.0.0.1:{relay.getsockname()[1]}"\n')
        config.flush()
        process = topic.start("cache", checkpoint="one", engine="python")
        (found,) = wait_until(lambda: consumer_addresses(topic.config) or None, 60)
    assert urlsplit(f"//{found.partition('@')[0]}").hostname == "127.0.0.1"
    (shown,) = json.loads(get(int(found.partition("@")[0].rpartition(":")[2]), "/status.json")[2])["consumers"]
    assert (shown["consumer"], shown["state"]) == ("cache", "running")
    assert process.stop(signal.SIGTERM) == 0, process.log()


@pytest.mark.parametrize("kind", ["log", "copy"])
def test_it_runs_the_cache_only(kind: Any, topic: Topic) -> None:
    with pytest.raises(ConfigError, match="only the cache runs without Spark"):
        run(kind, topic.config, engine="python")


def test_it_has_no_folder_for_a_checkpoint(topic: Topic) -> None:
    with pytest.raises(ConfigError, match="progress is kept in the offsets of the Kafka group: omit this option"):
        run("cache", topic.config, engine="python", checkpoint=Path("folder"))


def test_a_batch_of_large_images_is_bounded_in_bytes(
    topic: Topic, store: RedisStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """I11: 16 MB, however much was fetched ahead."""
    large = image_json({"customer": {"S": "c"}, "order_id": {"N": "1"}, "text": {"S": "x" * 400_000}})
    for first in range(0, 120, 20):
        topic.publish([replace(change(f"c{first + n}", 1), old=large, new=large) for n in range(20)])
    open_reader = _PythonConsumer._open_reader

    def open_and_fetch(consumer: _PythonConsumer) -> Consumer:
        reader = open_reader(consumer)
        time.sleep(4)
        return reader

    monkeypatch.setattr(_PythonConsumer, "_open_reader", open_and_fetch)
    assert topic.config.cache is not None
    python_engine.run(topic.config, topic.config.cache, until_caught_up=True, start=None)
    rows = [line["rows"] for line in map(json.loads, capsys.readouterr().err.splitlines()) if line["event"] == "batch"]
    assert sum(rows) == 120
    assert max(rows) <= 24
    assert version(store, topic, "c119") == 1

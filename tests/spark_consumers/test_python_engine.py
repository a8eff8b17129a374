"""The cache consumer without Spark: where it starts, how it stops, and what a crash leaves (I6)."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

from relay.cache import RedisStore, entry_key, generation_key
from relay.cache.entry import decode
from relay.config.topic_names import topics_of_cache
from relay.dynamodb.values import image_json
from relay.errors import ConfigError, RelayError
from relay.kafka import topics
from relay.kafka.group_offsets import GroupOffsets, Offsets, consumer_addresses
from relay.process.managed import free_port
from spark_consumers import python_engine, run
from spark_consumers.python_engine import _PythonConsumer
from tests.cache.proxy import Proxy
from tests.log_lines import log_lines
from tests.observe.requests import get
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def topic(tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)


@pytest.fixture
def store(redis_server: Any) -> Iterator[RedisStore]:
    with RedisStore(redis_server.url) as store:
        yield store


def version(store: RedisStore, topic: Topic, customer: str) -> int:
    """Return the version up to which the customer's entry is invalidated, 0 if it is not."""
    namespace = topic.config.name
    (found,), _ = store.read([entry_key(namespace, f"order:{customer}")], generation_key(namespace))
    positions = [token.position for token in decode(found.meta).tokens.values() if token] if found else []
    return int(positions[0].removeprefix("DynamoDB/")) - 10**20 if positions else 0


def committed(topic: Topic) -> tuple[Offsets, Offsets]:
    """Return the group's offsets, and the ends of the topics."""
    assert topic.config.cache is not None
    group = GroupOffsets(topic.config, "cache", topics_of_cache(topic.config, topic.config.cache))
    try:
        found = group.committed()
        assert found is not None
        return found, group.locate(found)[1]
    finally:
        group.close()


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


def test_what_kill_9_cuts_off_is_applied_after_the_next_start(topic: Topic, store: RedisStore) -> None:
    """I6: offsets are committed after the invalidations, whenever the process dies."""
    chance, last = random.Random(11), 0
    stop = threading.Event()

    def write() -> None:
        nonlocal last
        while not stop.is_set():
            last += 1
            topic.publish([change(f"c{number}", last) for number in range(300)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            process = topic.start("cache", checkpoint="one", engine="python")
            wait_until(lambda: log_lines(topic.log, "batch") or None, 60)
            time.sleep(chance.random())
            process.kill()
    finally:
        stop.set()
        writer.join()
    topic.consume("cache", checkpoint="one", engine="python")
    assert {version(store, topic, f"c{number}") for number in range(300)} == {last}
    found, ends = committed(topic)
    assert found == ends


def metrics(port: int) -> str:
    return get(port, "/metrics")[2].decode()


def test_it_serves_metrics_and_health_while_it_runs(topic: Topic) -> None:
    port = free_port()
    topic.publish([change("c0", 1), change("c1", 1)])
    process = topic.start("cache", "--http", f"127.0.0.1:{port}", checkpoint="one", engine="python")
    wait_until(lambda: log_lines(topic.log, "batch") or None, 60)

    def shows(line: str) -> bool | None:
        return f"\nrelay_consumer_{line}\n" in metrics(port) or None

    wait_until(lambda: shows('changes_total{consumer="cache",outcome="applied"} 2.0'), 30)
    wait_until(lambda: shows('lag_records{consumer="cache"} 0.0'), 30)
    assert shows('tombstone_ttl_seconds{consumer="cache"} 3600.0')
    wait_until(lambda: '\nrelay_consumer_store_limit_bytes{consumer="cache"' in metrics(port) or None, 60)
    (shown_lag,) = re.findall(
        r'^relay_consumer_commit_lag_seconds{consumer="cache"} (.*)$', metrics(port), re.MULTILINE
    )
    assert float(shown_lag) == log_lines(topic.log, "batch")[-1]["lag"]
    assert (get(port, "/healthz")[0], get(port, "/readyz")[0], get(port, "/")[0]) == (200, 200, 404)
    (shown,) = json.loads(get(port, "/status.json")[2])["consumers"]
    assert (shown["consumer"], shown["state"], shown["lag_records"], shown["lag_seconds"]) == ("cache", "running", 0, 0)
    # The page of the relay finds it.
    assert consumer_addresses(topic.config) == [f"127.0.0.1:{port}@{socket.gethostname()}"]
    assert process.stop(signal.SIGTERM) == 0, process.log()
    assert consumer_addresses(topic.config) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_after_the_batch_with_everything_committed(
    topic: Topic, store: RedisStore, signum: signal.Signals, code: int
) -> None:
    topic.publish([change(f"c{number}", 1) for number in range(50)])
    process = topic.start("cache", checkpoint="one", engine="python")
    wait_until(lambda: version(store, topic, "c49") or None, 60)
    assert process.stop(signum) == code, process.log()
    events = [line["event"] for line in log_lines(topic.log)]
    # Those changes were committed long ago.
    assert [event for event in events if event not in ("batch", "behind")] == ["memory", "started", "stopped"]
    (memory,) = log_lines(topic.log, "memory")[0]["servers"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+: [\d.]+ MB, without a limit: .*", memory)
    found, ends = committed(topic)
    assert found == ends


def test_it_goes_on_where_the_group_is_and_refuses_to_start_elsewhere(topic: Topic) -> None:
    topic.publish([change("c0", 1)])
    assert topic.consume("cache", "--from", "earliest", checkpoint="one", engine="python")["rows"] == 1
    topic.publish([change("c0", 2)])
    process = topic.start("cache", "--from", "earliest", "--until-caught-up", checkpoint="one", engine="python")
    assert process.wait(60) == 2
    assert process.has_logged("only applies to a group without committed offsets")
    assert topic.consume("cache", "--from", "committed", checkpoint="one", engine="python")["rows"] == 1


def test_a_start_is_kept_by_a_process_that_is_killed_before_its_first_batch(topic: Topic) -> None:
    topic.publish([change("c0", 1)])
    process = topic.start("cache", "--from", "latest", checkpoint="one", engine="python")
    wait_until(lambda: process.has_logged('"started"'), 60)
    process.kill()
    topic.publish([change("c0", 2)])
    assert topic.consume("cache", checkpoint="one", engine="python")["rows"] == 1


def test_spark_and_python_go_on_where_the_other_has_committed(topic: Topic, store: RedisStore) -> None:
    """They share the group and the namespace, so neither invalidates it for the other."""
    topic.publish([change("c0", 1)])
    topic.consume("cache", checkpoint="one", engine="python")
    before = store.generation(generation_key(topic.config.name))
    topic.publish([change("c0", 2)])
    assert topic.consume("cache", "--from", "committed", checkpoint="one")["rows"] == 1
    topic.publish([change("c0", 3)])
    assert topic.consume("cache", checkpoint="one", engine="python")["rows"] == 1
    assert version(store, topic, "c0") == 3
    assert store.generation(generation_key(topic.config.name)) == before


@pytest.mark.parametrize("engine", ["python", "spark"])
def test_only_the_cache_goes_on_where_it_has_committed_once_a_topic_was_created_again(
    topic: Topic, store: RedisStore, engine: str
) -> None:
    """I1, I6: it invalidates its namespace, and a log that began there would lack the first changes."""
    topic.publish([change("c0", 1), change("c0", 2)])
    topic.consume("cache", checkpoint="one", engine=engine)
    before = store.generation(generation_key(topic.config.name))
    group = f"{topic.config.name}.cache"
    client = Consumer({**topic.config.kafka.client(), "group.id": group})
    reported = client.committed([TopicPartition(topic.name, number) for number in range(topic.partitions)], timeout=60)
    topic.create_again()
    topic.publish([change("c0", version) for version in (3, 4, 5, 6)])
    client.commit(offsets=reported, asynchronous=False)  # as one that has not noticed does
    client.close()
    topic.refuse("log", "--from", f"committed:{group}", checkpoint="log")
    assert f"topic {topic.name} was created again since group {group} has read it" in topic.log.read_text()
    assert topic.consume("cache", "--from", "committed", checkpoint="two")["rows"] == 2
    assert store.generation(generation_key(topic.config.name)) != before


def test_records_that_were_removed_before_they_were_applied_invalidate_the_namespace(
    topic: Topic, store: RedisStore
) -> None:
    """I9: retention was shorter than the consumer was down."""
    topic.publish([change("c0", 1)])
    topic.consume("cache", checkpoint="one", engine="python")
    before = store.generation(generation_key(topic.config.name))
    topic.publish([change("c0", number) for number in range(2, 5)])
    remove_all(topic)
    topic.publish([change("c0", 5)])
    assert topic.consume("cache", checkpoint="one", engine="python")["rows"] == 1
    assert store.generation(generation_key(topic.config.name)) != before


def remove_all(topic: Topic) -> None:
    """Remove what is on the topic, as its retention does."""
    _, ends = committed(topic)
    removed = [TopicPartition(topic.name, int(p), end) for p, end in ends[topic.name].items()]
    admin = topics.connect(topic.config)
    for done in admin.delete_records(removed).values():
        done.result(60)


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
        remove_all(topic)
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
            remove_all(topic)
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
        with pytest.raises(RelayError, match=f"topic {topic.name} was created again"):
            python_engine.run(topic.config, topic.config.cache, until_caught_up=False, start=None)
    before = store.generation(generation_key(topic.config.name))
    topic.consume("cache", checkpoint="one", engine="python")
    assert store.generation(generation_key(topic.config.name)) != before


def test_what_a_transaction_has_aborted_invalidates_nothing(topic: Topic) -> None:
    """I3"""
    topic.publish([change("c0", 1)])
    producer = Producer({**topic.config.kafka.client(), "transactional.id": topic.name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic.name, b"not a known framing", b"somebody", partition=0)
    producer.flush()
    producer.abort_transaction()
    assert topic.consume("cache", checkpoint="one", engine="python")["rows"] == 1
    found, ends = committed(topic)
    assert found == ends


def test_a_redis_that_is_down_is_tried_again_and_then_reported(topic: Topic) -> None:
    topic.publish([change("c0", 1)])
    text = topic.path.read_text()
    topic.path.write_text(text.replace(topic.redis_url, "redis://127.0.0.1:1/0"))
    process = topic.start("cache", checkpoint="one", engine="python")
    assert process.wait(60) == 3
    assert process.has_logged("Redis at redis://127.0.0.1:1/0 is not available")
    assert [line["event"] for line in log_lines(topic.log)] == ["retry"] * 5
    topic.path.write_text(text)
    assert topic.consume("cache", checkpoint="one", engine="python")["rows"] == 1


def test_values_whose_schemas_were_met_before_are_read_while_the_registry_does_not_answer(
    topic: Topic, store: RedisStore, schema_registry: Any
) -> None:
    """I12: what an earlier process has met is in a file."""
    place = urlsplit(schema_registry.url)
    assert place.port is not None
    with Proxy(place.port) as registry:
        topic.use_registry(place._replace(netloc=f"127.0.0.1:{registry.port}").geturl())
        topic.publish([change("c0", 1)])
        topic.consume("cache", checkpoint="one", engine="python")
        topic.publish([change("c0", 2)])
        registry.later(free_port())
        topic.consume("cache", checkpoint="one", engine="python")
    assert version(store, topic, "c0") == 2


@pytest.mark.parametrize("kind", ["log", "copy"])
def test_it_runs_the_cache_only(kind: Any, topic: Topic) -> None:
    with pytest.raises(ConfigError, match="only the cache runs without Spark"):
        run(kind, topic.config, engine="python")


def test_it_has_no_folder_for_a_checkpoint(topic: Topic) -> None:
    with pytest.raises(ConfigError, match="are the checkpoint; omit it"):
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

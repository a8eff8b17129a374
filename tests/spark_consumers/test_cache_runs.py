"""What the consumer of the cache reads, what ends it, and what it reports about itself: one suite for its engines."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import threading
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.cimpl import NewPartitions

from relay.kafka import topics
from relay.kafka.group_offsets import consumer_addresses
from relay.process.managed import free_port
from tests.cache.proxy import Proxy
from tests.log_lines import log_lines
from tests.observe.requests import get
from tests.spark_consumers.cache_engines import Cache, has_applied
from tests.spark_consumers.invalidated import committed, undecodable, values_of
from tests.spark_consumers.topic import Topic, change, truncation
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def test_what_a_transaction_has_aborted_invalidates_nothing(topic: Topic, cache: Cache) -> None:
    """I3"""
    topic.publish([change("c0", 1)])
    producer = Producer({**topic.config.kafka.client(), "transactional.id": topic.name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic.name, b"not a known framing", b"somebody", partition=0)
    producer.flush()
    producer.abort_transaction()
    assert cache.consume()["rows"] == 1
    found, ends = committed(topic)
    assert found == ends


def test_undecodable_records_become_dead_letters_and_invalidate_the_namespace(topic: Topic, cache: Cache) -> None:
    """I6, I8: which keys they would have invalidated is not known."""
    cache.consume()
    assert cache.is_invalidated()
    topic.publish([change(f"c{number}", 1) for number in range(3)])
    topic.publish_raw(*(values := undecodable(topic)))
    counts = cache.consume()
    assert (counts["dead_letters"], counts["applied"]) == (2, 3)
    assert cache.is_invalidated()
    letters = topic.dead_letters()
    assert [value for _, value, _ in letters] == [*values]
    assert len({reason for *_, reason in letters}) == 2
    assert [cache.version(f"c{number}") for number in range(3)] == [1, 1, 1]


# A truncation is in each partition, and they may be read one after the other.
@pytest.mark.parametrize("topic", [1], indirect=True)
@pytest.mark.parametrize("what", ["truncation", "gap"])
def test_what_says_not_which_rows_have_changed_invalidates_the_namespace(topic: Topic, cache: Cache, what: str) -> None:
    """I6, I9"""
    topic.publish([change("c0", 1)])
    cache.consume()
    assert cache.is_invalidated()
    if what == "truncation":
        topic.publish([truncation(2)])
    else:
        producer = Producer(topic.config.kafka.client())
        gap = {"id": "g1", "source": "orders", "reason": "binlog purged"}
        producer.produce(topic.config.internal("gaps"), json.dumps(gap).encode(), b"g1")
        assert producer.flush(30) == 0
    assert cache.consume()["bumps"] == 1
    assert cache.is_invalidated()


def test_partitions_that_are_added_while_it_runs_are_read_from_their_beginning(topic: Topic, cache: Cache) -> None:
    """I9"""
    topic.publish([change("c0", 1)])
    process = cache.start()
    has_applied(topic)
    assert cache.is_invalidated()
    admin = topics.connect(topic.config)
    admin.create_partitions([NewPartitions(topic.name, 7)])[topic.name].result(60)
    client = Consumer({**topic.config.kafka.client(), "group.id": f"{topic.name}.test"})
    wait_until(lambda: len(client.list_topics(topic.name, timeout=60).topics[topic.name].partitions) == 7 or None, 60)
    client.close()
    producer = Producer({**topic.config.kafka.client(), "enable.idempotence": True})
    for number, message in enumerate(values_of(topic, [change(f"new{number}", 1) for number in range(5)]), 2):
        producer.produce(topic.name, message, b"somebody", partition=number)
    assert producer.flush(30) == 0
    wait_until(lambda: all(cache.version(f"new{number}") == 1 for number in range(5)) or None, 120)
    assert process.terminate() == 0, process.log()
    assert not cache.is_invalidated()


def test_values_whose_schemas_were_met_before_are_read_while_the_registry_does_not_answer(
    topic: Topic, cache: Cache, schema_registry: Any
) -> None:
    """I12: what an earlier process has met is in a file."""
    place = urlsplit(schema_registry.url)
    assert place.port is not None
    with Proxy(place.port) as registry:
        topic.use_registry(place._replace(netloc=f"127.0.0.1:{registry.port}").geturl())
        topic.publish([change("c0", 1)])
        cache.consume()
        topic.publish([change("c0", 2)])
        registry.later(free_port())
        cache.consume()
    assert cache.version("c0") == 2


@pytest.mark.parametrize(
    "cache",
    ["python", pytest.param("spark", marks=pytest.mark.faults("[python]; on Spark: test_consumers_killed.py"))],
    indirect=True,
)
def test_what_kill_9_cuts_off_is_applied_after_the_next_start(topic: Topic, cache: Cache) -> None:
    """I6: how far it is, is only stored after the invalidations, whenever the process dies."""
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
        for _ in range(3 if cache.engine == "python" else 2):  # each Spark takes ten seconds of CPU
            process = cache.start_alone()
            has_applied(topic)
            time.sleep(chance.random())
            process.kill()
    finally:
        stop.set()
        writer.join()
    cache.consume()
    assert {cache.version(f"c{number}") for number in range(300)} == {last}
    found, ends = committed(topic)
    assert found == ends


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_after_the_batch_with_everything_committed(
    topic: Topic, cache: Cache, signum: signal.Signals, code: int
) -> None:
    topic.publish([change(f"c{number}", 1) for number in range(50)])
    process = cache.start()
    wait_until(lambda: cache.version("c49") or None, 120)
    assert process.stop(signum) == code, process.log()
    events = [line["event"] for line in log_lines(topic.log)]
    # Those changes were committed long ago.
    assert [event for event in events if event not in ("batch", "behind")] == ["memory", "started", "stopped"]
    (memory,) = log_lines(topic.log, "memory")[0]["servers"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+: [\d.]+ MB, without a limit: .*", memory)
    found, ends = committed(topic)
    assert found == ends


def test_a_redis_that_is_down_is_tried_again_and_then_reported(topic: Topic, cache: Cache) -> None:
    topic.publish([change("c0", 1)])
    text = topic.path.read_text()
    topic.path.write_text(text.replace(topic.redis_url, "redis://127.0.0.1:1/0"))
    process = cache.start()
    assert process.wait(60) == 3
    assert process.has_logged("Redis at redis://127.0.0.1:1/0 is not available")
    assert [line["event"] for line in log_lines(topic.log) if line["event"] != "memory"] == ["retry"] * 5
    topic.path.write_text(text)
    assert cache.consume()["rows"] == 1


def test_it_says_that_it_is_far_behind(topic: Topic, cache: Cache) -> None:
    """The first changes were committed years ago. The one of now comes in a batch of its own."""
    topic.publish([change(f"c{number}", 1) for number in range(3)])
    cache.consume()
    (behind,) = log_lines(topic.log, "behind")
    assert behind["lag"] == log_lines(topic.log, "batch")[0]["lag"] > 30_000_000
    assert behind["tombstone_ttl"] == 3600.0
    one = change("c1", 2)
    assert one.token is not None
    one.token = replace(one.token, timestamp=int(time.time()) - 2)
    topic.publish([one])
    cache.consume()
    assert log_lines(topic.log, "behind") == []
    assert [2 <= line["lag"] < 3600 for line in log_lines(topic.log, "batch")] == [True]


def test_it_serves_metrics_and_health_while_it_runs(topic: Topic, cache: Cache) -> None:
    port = free_port()
    topic.publish([change("c0", 1), change("c1", 1)])
    process = cache.start("--http", f"127.0.0.1:{port}")
    has_applied(topic)

    def metrics() -> str:
        return get(port, "/metrics")[2].decode()

    def shows(line: str) -> bool | None:
        return f"\nrelay_consumer_{line}\n" in metrics() or None

    wait_until(lambda: shows('changes_total{consumer="cache",outcome="applied"} 2.0'), 30)
    wait_until(lambda: shows('lag_records{consumer="cache"} 0.0'), 30)
    assert shows('tombstone_ttl_seconds{consumer="cache"} 3600.0')
    wait_until(lambda: '\nrelay_consumer_store_limit_bytes{consumer="cache"' in metrics() or None, 60)
    (shown_lag,) = re.findall(r'^relay_consumer_commit_lag_seconds{consumer="cache"} (.*)$', metrics(), re.MULTILINE)
    assert float(shown_lag) == log_lines(topic.log, "batch")[-1]["lag"]
    assert (get(port, "/healthz")[0], get(port, "/readyz")[0], get(port, "/")[0]) == (200, 200, 404)
    (shown,) = json.loads(get(port, "/status.json")[2])["consumers"]
    assert (shown["consumer"], shown["state"], shown["lag_records"], shown["lag_seconds"]) == ("cache", "running", 0, 0)
    # The page of the relay finds it.
    assert consumer_addresses(topic.config) == {f"127.0.0.1:{port}@{socket.gethostname()}": ["cache"]}
    assert process.terminate() == 0, process.log()
    assert consumer_addresses(topic.config) == {}

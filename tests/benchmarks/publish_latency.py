"""Measures how soon a change is readable after the publisher gets it, at 200 changes per second and with a backlog.

From ``relayed_at``, which the publisher writes into each change, until a read_committed reader has the change. The
yardstick is a bare producer at the same rate, without transactions, read by the same reader: it shows the time that
the broker and the reader take by themselves.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.decode import decode
from relay.avro.registry import open_schemas
from relay.errors import RelayError
from tests.benchmarks.fed import Feed
from tests.benchmarks.harness import Benchmark, median
from tests.services.brokers import OptimisedBroker

RATE = 200.0
SECONDS = 30
WARM_UP = 10  # seconds, not counted, in which the JVM of a new broker compiles its code
SHARDS = 8
PARTITIONS = 6


def run() -> Benchmark:
    with OptimisedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = folder
        ours = _relayed(broker.bootstrap_servers)
        counted = ours[int(RATE * WARM_UP) :]
        bare, again = _bare(broker.bootstrap_servers), _bare(broker.bootstrap_servers)
    figure, yardstick = median(counted), median(bare)
    return Benchmark(
        name="publish_latency",
        figure=figure,
        yardstick=yardstick,
        unit="ms p50, publisher to reader",
        ratio=figure / yardstick,
        expected=int(RATE * SECONDS),
        seen=len(ours),
        aa=median(again) / yardstick,
        note=(
            f"{RATE:.0f} changes/s from {SHARDS} shards, exactly once; p99 {_p99(counted):.1f} ms; yardstick a bare "
            f"producer without transactions, p99 {_p99(bare):.1f} ms; aim 10 ms"
        ),
    )


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(len(latencies) * 0.99)]


def _relayed(servers: str) -> list[float]:
    feed = Feed(
        f"bench-{secrets.token_hex(4)}", servers, SHARDS, pages=1, page=int(RATE * SECONDS) // SHARDS, per_second=RATE
    )
    _create(servers, feed.topic)
    reader = Arrivals(servers, feed.topic)
    process = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.fed", feed.to_json()], capture_output=True, text=True
    )
    if process.returncode:
        raise RelayError(f"the worker ended with {process.returncode}: {process.stderr[-2000:]}")
    arrivals = reader.stop(feed.changes)
    schemas = open_schemas(feed.config())
    found = [(at, decode(schemas, value)["relayed_at"].timestamp()) for at, value in arrivals]
    schemas.close()
    return [(at - sent) * 1000 for at, sent in found]


def _bare(servers: str) -> list[float]:
    topic = f"bench-{secrets.token_hex(4)}"
    _create(servers, topic)
    reader = Arrivals(servers, topic)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True})
    for number in range(int(RATE * SECONDS / 2)):
        producer.produce(topic, repr(time.time()).encode().ljust(900), b"key", number % PARTITIONS)
        producer.poll(0)
        time.sleep(1 / RATE)
    producer.flush()
    return [(at - float(value)) * 1000 for at, value in reader.stop(int(RATE * SECONDS / 2))]


def _create(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


class Arrivals(threading.Thread):
    """Records when each record can be read."""

    def __init__(self, servers: str, topic: str, isolation: str = "read_committed") -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"{topic}.latency",
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        self._arrivals: list[tuple[float, bytes]] = []
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._arrivals.append((time.time(), message.value() or b""))

    def __len__(self) -> int:
        return len(self._arrivals)

    def stop(self, expected: int) -> list[tuple[float, bytes]]:
        """Return times and values, when there are ``expected`` of them or none has come for a while."""
        _wait(lambda: len(self._arrivals) >= expected, 10.0)
        self._done.set()
        self.join()
        self._consumer.close()
        return self._arrivals


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)

"""Relays a stream's backlog to Kafka with one worker and with two, against a bare producer that sends as many bytes.

All share the machine's two cores with the endpoint and the broker, so two workers show the cost of sharing rather than
its gain. With one core each, they would not wait for each other.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import orjson
import yaml
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError
from tests.benchmarks.dynamodb_read import PARTITIONS, Watch
from tests.benchmarks.harness import Benchmark, count_committed, median
from tests.benchmarks.service import CREDENTIALS, serving
from tests.benchmarks.stream_service import PAGE, answer, table
from tests.services.brokers import OptimisedBroker

SHARDS, PAGES = 16, 16
ROUNDS = 2
BARE = """
import sys, time
from confluent_kafka import Producer
servers, topic, count, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5,
                     "compression.type": "lz4", "batch.size": 1 << 20})
values = [(b"%d" % n) + bytes(range(32, 122)) * 10 for n in range(1000)]
begun = time.monotonic()
for number in range(count):
    while True:
        try:
            producer.produce(topic, values[number % 1000], b"key-%d" % number, number % partitions)
            break
        except BufferError:
            producer.poll(0.1)
producer.flush()
print(time.monotonic() - begun)
"""


def run() -> list[Benchmark]:
    os.environ |= {name.upper(): value for name, value in CREDENTIALS.items()}
    broker, temporary = OptimisedBroker(), tempfile.TemporaryDirectory()
    with broker, serving(answer, core=None) as url, temporary as folder:
        os.environ["RELAY_STATE"] = f"{folder}/state"
        contest = _Contest(broker.bootstrap_servers, url, Path(folder))
        figures: dict[str, list[float]] = {name: [] for name in ("one", "two", "bare", "again")}
        for _ in range(ROUNDS):
            figures["one"].append(contest.relay(1))
            figures["two"].append(contest.relay(2))
            figures["bare"].append(contest.bare())
            figures["again"].append(contest.bare())
    rate = {name: median(found) for name, found in figures.items()}
    return [
        Benchmark(
            name=f"scale_out_{workers}",
            figure=rate[kind],
            yardstick=rate["bare"],
            unit="changes/s",
            ratio=rate[kind] / rate["bare"],
            expected=contest.expected // 2,
            seen=contest.seen[workers],
            aa=rate["again"] / rate["bare"],
            note=(
                f"{workers} worker{'s' if workers > 1 else ''}, {SHARDS} shards, endpoint and broker on the same two "
                f"cores; {rate[kind] / rate['one']:.2f} times one worker; yardstick a bare producer, 900-byte values"
            ),
        )
        for workers, kind in ((1, "one"), (2, "two"))
    ]


class _Contest:
    def __init__(self, servers: str, url: str, folder: Path) -> None:
        self.servers, self.url, self.folder = servers, url, folder
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.expected = 0
        self.seen = {1: 0, 2: 0}

    def relay(self, workers: int) -> float:
        run, source, count = f"bench-{secrets.token_hex(4)}", table(SHARDS, PAGES), SHARDS * PAGES * PAGE
        topic = self._topic(f"{run}.{source}")
        entry = {"name": "s", "type": "dynamodb", "table": source, "region": "us-east-1", "endpoint_url": self.url}
        kafka = {"bootstrap_servers": self.servers, "partitions": PARTITIONS}
        path = self.folder / f"{run}.yaml"
        path.write_text(yaml.safe_dump({"name": run, "kafka": kafka, "sources": [entry]}))
        self._ask({"Prepare": source})
        watch = Watch(self.servers, topic)
        command = [sys.executable, "-m", "relay.cli", "run", str(path), "--until-caught-up", "--workers", str(workers)]
        done = subprocess.run(command, capture_output=True, text=True)
        taken = watch.stop() - float(self._ask({"Begun": True}))
        if done.returncode:
            raise RelayError(f"{workers} workers ended with {done.returncode}: {done.stderr[-2000:]}")
        self.expected += count
        self.seen[workers] += count_committed({"bootstrap.servers": self.servers}, topic)
        self.admin.delete_topics([topic])[topic].result(30)
        return count / taken

    def bare(self) -> float:
        topic, count = self._topic(f"bench-{secrets.token_hex(4)}"), SHARDS * PAGES * PAGE
        command = [sys.executable, "-c", BARE, self.servers, topic, str(count), str(PARTITIONS)]
        taken = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        self.admin.delete_topics([topic])[topic].result(30)
        return count / taken

    def _topic(self, name: str) -> str:
        self.admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        time.sleep(0.5)
        return name

    def _ask(self, request: dict[str, object]) -> bytes:
        with urllib.request.urlopen(self.url, orjson.dumps(request), timeout=60) as answer:
            return bytes(answer.read())

"""Relays a DynamoDB stream's backlog to Kafka with a complete relay, against Bloop and against a loop with boto3.

All read the same scripted stream, encode Avro and publish with acks=all to the same broker; only the relay does so
exactly once, with checkpoints. A figure is the number of records over the time from the first GetRecords to the last
record that a read_committed reader can read. The endpoint and the broker share the machine's cores with the contenders.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import orjson
import yaml
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError
from tests.benchmarks.bloop_environment import bloop_python
from tests.benchmarks.harness import Benchmark, count_committed, median
from tests.benchmarks.service import CREDENTIALS, serving
from tests.benchmarks.stream_service import MEGABYTE, PAGE, answer, stream_arn, table
from tests.services.brokers import OptimisedBroker

SHARDS = (1, 8, 64)
# Records in a page of large items, which is full with a megabyte; and in how many shards they are.
FEW = 200
FEW_SHARDS = (1, 8)
ROUNDS = 2
PARTITIONS = 6
# Pages in total. A relay reads more of them, so all take about as long.
PAGES = {"relay": 256, "bloop": 32, "boto3": 32, "again": 32}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    rate: float
    # CPU seconds of the contender's process per record.
    cpu: float
    expected: int
    seen: int


def run() -> list[Benchmark]:
    os.environ |= {name.upper(): value for name, value in CREDENTIALS.items()}
    broker, temporary = OptimisedBroker(), tempfile.TemporaryDirectory()
    with broker, serving(answer, core=None) as url, temporary as folder:
        contest = Contest(broker.bootstrap_servers, url, Path(folder))
        large = [contest.large_items(shards) for shards in FEW_SHARDS]
        return [*large, *(contest.benchmark(shards) for shards in SHARDS)]


class Contest:
    def __init__(self, bootstrap_servers: str, url: str, folder: Path) -> None:
        self.servers, self.url, self.folder = bootstrap_servers, url, folder
        os.environ["RELAY_STATE"] = str(folder / "state")
        self.bloop = bloop_python()

    def benchmark(self, shards: int) -> Benchmark:
        runs: dict[str, list[Run]] = {name: [] for name in PAGES}
        for _ in range(ROUNDS):
            for name, pages in PAGES.items():
                runs[name].append(self._run(name, shards, max(1, -(-pages // shards))))
        rate = {name: median([one.rate for one in of]) for name, of in runs.items()}
        cpu = {name: median([one.cpu for one in of]) * 1e6 for name, of in runs.items()}
        return Benchmark(
            name=f"dynamodb_read_{shards}",
            figure=rate["relay"],
            yardstick=rate["bloop"],
            unit="records/s",
            ratio=rate["relay"] / rate["bloop"],
            expected=sum(one.expected for of in runs.values() for one in of),
            seen=sum(one.seen for of in runs.values() for one in of),
            aa=rate["again"] / rate["boto3"],
            note=(
                f"{shards} shards, pages of {PAGE}, items of 500 bytes in both images; yardstick Bloop 3.1.1; boto3 "
                f"with a thread for each shard {rate['boto3']:.0f} records/s (ratio "
                f"{rate['relay'] / rate['boto3']:.2f}, aa is of this one); CPU for each record: relay "
                f"{cpu['relay']:.0f}, Bloop {cpu['bloop']:.0f}, boto3 {cpu['boto3']:.0f} us; median of {ROUNDS}"
            ),
        )

    def large_items(self, shards: int) -> Benchmark:
        """Compare pages that are full with a few large items with pages that are full with as many items as fit."""
        records = {"large": FEW, "small": PAGE, "again": PAGE}
        pages = PAGES["relay"] // shards
        runs: dict[str, list[Run]] = {name: [] for name in records}
        for _ in range(ROUNDS):
            for name, count in records.items():
                runs[name].append(self._run("relay", shards, pages, count))
        rate = {name: median([one.rate / records[name] for one in of]) for name, of in runs.items()}
        return Benchmark(
            name=f"dynamodb_read_large_{shards}",
            figure=rate["large"] * MEGABYTE / 1e6,
            yardstick=rate["small"] * MEGABYTE / 1e6,
            unit="MB/s",
            ratio=rate["large"] / rate["small"],
            expected=sum(one.expected for of in runs.values() for one in of),
            seen=sum(one.seen for of in runs.values() for one in of),
            aa=rate["again"] / rate["small"],
            note=(
                f"{shards} shards; pages of a megabyte that hold {FEW} records, against pages of a megabyte that hold "
                f"{PAGE}; median of {ROUNDS}"
            ),
        )

    def _run(self, name: str, shards: int, pages: int, records: int = PAGE) -> Run:
        run, expected = f"bench-{secrets.token_hex(4)}", shards * pages * records
        source = table(shards, pages, records)
        topic = f"{run}.{source}"
        if name == "relay":
            path = self.folder / f"{run}.yaml"
            entry = {"name": "s", "type": "dynamodb", "table": source, "region": "us-east-1", "endpoint_url": self.url}
            kafka = {"bootstrap_servers": self.servers, "partitions": PARTITIONS}
            path.write_text(yaml.safe_dump({"name": run, "kafka": kafka, "sources": [entry]}))
            command = [sys.executable, "-m", "relay.cli", "run", str(path), "--until-caught-up"]
        else:
            script, python = ("bloop", self.bloop) if name == "bloop" else ("boto3", sys.executable)
            arguments = [self.url, stream_arn(source), self.servers, topic, str(expected)]
            command = [python, str(HERE / f"yardstick_{script}.py"), *arguments]
        admin = AdminClient({"bootstrap.servers": self.servers})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            made.result(30)
        self._ask({"Prepare": source})
        watch = Watch(self.servers, topic)
        log = self.folder / f"{run}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        taken = watch.stop() - float(self._ask({"Begun": True}))
        if process.returncode:
            raise RelayError(f"{name} ended with {process.returncode}: {log.read_text()[-2000:]}")
        seen = count_committed({"bootstrap.servers": self.servers}, topic)
        admin.delete_topics([topic])[topic].result(30)
        return Run(expected / taken, (used.ru_utime + used.ru_stime) / expected, expected, seen)

    def _ask(self, request: dict[str, object]) -> bytes:
        with urllib.request.urlopen(self.url, orjson.dumps(request), timeout=60) as answer:
            return bytes(answer.read())


class Watch(threading.Thread):
    """Watches how far a read_committed reader can read."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": f"{topic}.watch", "isolation.level": "read_committed"}
        )
        self._partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        self._samples: list[tuple[float, int]] = []
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.is_set():
            self._sample()
            time.sleep(0.02)
        self._sample()

    def stop(self) -> float:
        """Return the monotonic time when a reader could read everything."""
        self._done.set()
        self.join()
        self._consumer.close()
        last = self._samples[-1][1]
        return next(at for at, readable in self._samples if readable == last)

    def _sample(self) -> None:
        try:
            ends = [self._consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in self._partitions]
        except KafkaException as error:
            if not error.args[0].retriable():  # a new topic has no leaders yet
                raise
            return
        self._samples.append((time.monotonic(), sum(ends)))

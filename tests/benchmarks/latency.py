"""Measures the time from an acknowledged write to the invalidated cache, against a no-op foreachBatch.

The yardstick is the time that stock Spark takes from a readable record to its callback. Our figure includes more: the
poll of the stream (five per second, so 100 ms on average), the relay, its transaction, decoding, Redis. One consumer
runs at a time, the stock no-op before and after; the note also has a no-op with the consumers' own settings.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.demo.dynamodb_orders import create_table, workload
from relay.demo.report import acknowledged, percentile
from relay.demo.truth import PublishedChange
from relay.demo.watching import BatchLog, TopicWatch
from relay.demo.workload import CACHE_KEY
from relay.errors import RelayError
from relay.kafka import topics
from relay.process.managed import ManagedProcess
from relay.services.dynamodb import DynamoDBLocal
from relay.services.kafka import KafkaBroker
from relay.services.redis import RedisServer
from tests.benchmarks.harness import Benchmark

SECONDS = 30.0
WARM_UP = 10.0
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}
_TABLES = ("noop-before", "cache", "noop-tuned", "noop-after")


def run() -> Benchmark:
    os.environ.update(_CREDENTIALS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(KafkaBroker())
        database = stack.enter_context(DynamoDBLocal())
        redis = stack.enter_context(RedisServer())
        phases = {table: _Phase(folder, table, broker, database, redis) for table in _TABLES}
        results = {table: phase.run() for table, phase in phases.items()}
    noop = results["noop-before"].to_batch
    commits = results["cache"]
    yardstick, again = percentile(noop, 50), percentile(results["noop-after"].to_batch, 50)
    figure = percentile(commits.from_commit, 50)
    tuned = percentile(results["noop-tuned"].to_batch, 50)
    return Benchmark(
        name="latency",
        figure=figure,
        yardstick=(yardstick + again) / 2,
        unit="ms, p50: commit to invalidated; record readable to no-op callback",
        ratio=2 * figure / (yardstick + again),
        expected=sum(result.written for result in results.values()),
        seen=sum(result.seen for result in results.values()),
        aa=again / yardstick,
        note=(
            f"{commits.written / SECONDS:.0f} changes/s; commit to topic p50 {percentile(commits.to_topic, 50):.0f}, "
            f"p99 {percentile(commits.to_topic, 99):.0f}; commit to invalidated p99 "
            f"{percentile(commits.from_commit, 99):.0f}; topic to invalidated p50 "
            f"{percentile(commits.to_batch, 50):.0f}; "
            f"no-op under the consumers' settings p50 {tuned:.0f}"
        ),
    )


class _Result:
    """Latencies of the changes after the warm-up, in ms."""

    def __init__(self, written: int, events: list[PublishedChange]) -> None:
        self.written = written
        self.seen = len({event.event_id for event in events})
        self.to_topic: list[float] = []
        self.to_batch: list[float] = []
        self.from_commit: list[float] = []


class _Phase:
    """A new table, a relay and one consumer."""

    def __init__(
        self, folder: Path, table: str, broker: KafkaBroker, database: DynamoDBLocal, redis: RedisServer
    ) -> None:
        self.table = table
        self.folder = folder / table
        self.folder.mkdir()
        self.client: Any = boto3.client("dynamodb", endpoint_url=database.endpoint_url)
        create_table(self.client, table)
        self.path = self.folder / "relay.yaml"
        source = {"name": "orders", "type": "dynamodb", "table": table, "region": "us-east-1"}
        source["endpoint_url"] = database.endpoint_url
        cache = {"url": redis.url, "namespace": table, "keys": {table: [CACHE_KEY]}}
        kafka = {"bootstrap_servers": broker.bootstrap_servers, "partitions": 4}
        self.path.write_text(yaml.safe_dump({"name": table, "kafka": kafka, "sources": [source], "cache": cache}))
        self.config = load(self.path)

    def run(self) -> _Result:
        with ExitStack() as stack:
            stack.callback(self.client.close)
            self._start(stack, "relay", "-m", "relay.cli", "run", str(self.path))
            admin = topics.connect(self.config)
            wanted = {topic.name for topic in topics.required(self.config, [self.table])}
            _wait(lambda: wanted <= admin.list_topics(timeout=10).topics.keys())
            checkpoint = str(self.folder / "checkpoint")
            if self.table == "cache":
                command = ["-m", "relay.cli", "consume", "cache", str(self.path), "--checkpoint", checkpoint]
            else:
                command = ["-m", "tests.benchmarks.noop_consumer", str(self.path), checkpoint]
                command += ["--tuned"] if self.table == "noop-tuned" else []
            consumer = self._start(stack, "consumer", *command)
            topic = self.config.topic(self.table)
            schemas = open_schemas(self.config)
            watch = TopicWatch(self.config.kafka.client(), topic, self.config.kafka.partitions, schemas)
            watch.start()
            batches = BatchLog(consumer.log, topic)
            return self._measure(watch, batches)

    def _measure(self, watch: TopicWatch, batches: BatchLog) -> _Result:
        writing = workload(self.client, self.table, writers=2, customers=10, pause=0.12)
        writing.warm_up()
        _wait(lambda: batches.refresh().batches > 0)
        begun = time.time()
        writing.start()
        time.sleep(SECONDS)
        history = writing.stop()
        written = sum(map(len, history.values()))
        _wait(lambda: len(watch.changes) >= written)
        _wait(lambda: batches.refresh().has_reached(dict(watch.ends)))
        watch.stop()
        result = _Result(written, watch.changes)
        by_item: dict[Any, list[PublishedChange]] = {}
        for event in sorted(watch.changes, key=lambda e: (e.partition, e.offset)):
            by_item.setdefault(event.item, []).append(event)
        for event_id, commit in acknowledged(history, by_item).items():
            if commit < begun + WARM_UP:
                continue
            arrived = watch.arrived[event_id]
            event = next(e for e in watch.changes if e.event_id == event_id)
            applied = batches.applied_at(event)
            assert applied is not None
            result.to_topic.append((arrived - commit) * 1000)
            result.to_batch.append((applied - arrived) * 1000)
            result.from_commit.append((applied - commit) * 1000)
        return result

    def _start(self, stack: ExitStack, name: str, *arguments: str) -> ManagedProcess:
        process = ManagedProcess(
            [sys.executable, *arguments],
            self.folder / f"{name}.log",
            {**_CREDENTIALS, "RELAY_STATE": str(self.folder / "state")},
        )
        process.start()
        stack.callback(process.stop, 20.0)
        return process


def _wait(done: Callable[[], bool], timeout: float = 120.0) -> None:
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise RelayError(f"no change within {timeout:.0f} s")
        time.sleep(0.1)

"""Measures the time from a readable record, and from an acknowledged write, to the invalidated cache.

The yardstick is the time that stock Spark takes from a readable record to the callback of a no-op foreachBatch. From
the topic, ours includes decoding and Redis besides. From a commit it also includes the relay with its transaction, and
for DynamoDB the poll of the stream (five per second, so 100 ms on average); a binlog is pushed. One consumer runs at a
time, the stock no-op before and after; the note also has a no-op with the consumers' own settings.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import yaml

from relay.config import load
from relay.demo.dynamodb_orders import create_table, workload
from relay.demo.orders import TABLE
from relay.demo.report import acknowledged, percentile
from relay.demo.sql_orders import DEFINITION, SQLTable, SQLWriter
from relay.demo.truth import changed_item
from relay.demo.watching import BatchLog, TopicWatch
from relay.demo.workload import CACHE_KEY, Item, RecordedWrite, Workload
from relay.errors import RelayError
from relay.kafka import topics
from relay.kafka.changes import ReceivedChange
from relay.process.managed import ManagedProcess
from relay.services.dynamodb import DynamoDBLocal
from relay.services.kafka import KafkaBroker
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.services.redis import RedisServer
from tests.benchmarks.harness import Benchmark
from tests.services.brokers import OptimisedBroker

SECONDS = 30.0
WARM_UP = 10.0
_DATABASE = "shop"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}


def run() -> list[Benchmark]:
    os.environ.update(CREDENTIALS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(OptimisedBroker())
        redis = stack.enter_context(RedisServer())
        dynamodb = stack.enter_context(DynamoDBLocal())
        client: Any = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url)
        stack.callback(client.close)

        def on_dynamodb(name: str) -> _Result:
            result: _Result = Phase(folder, name, DynamoDBTable(client, name, dynamodb), broker, redis).run()
            return result

        before, cache = on_dynamodb("noop-before"), on_dynamodb("cache-dynamodb")
        tuned = on_dynamodb("noop-tuned")
        mariadb = stack.enter_context(MariaDB())
        binlog = Phase(folder, "cache-binlog", MariaDBTable(mariadb), broker, redis).run()
        after = on_dynamodb("noop-after")
    results = (before, cache, tuned, binlog, after)
    floors = percentile(before.to_batch, 50), percentile(after.to_batch, 50)
    floor = sum(floors) / 2

    def benchmark(name: str, unit: str, latencies: list[float], note: str) -> Benchmark:
        figure = percentile(latencies, 50)
        return Benchmark(
            name=name,
            figure=figure,
            yardstick=floor,
            unit=f"ms, p50: {unit}; record readable to no-op callback",
            ratio=figure / floor,
            expected=sum(result.written for result in results),
            seen=sum(result.seen for result in results),
            aa=floors[1] / floors[0],
            note=note,
        )

    own = percentile(tuned.to_batch, 50)
    return [
        benchmark(
            "latency",
            "record readable to invalidated",
            cache.to_batch,
            f"the aim is at most 1.5; {cache.summary()}; from a binlog p50 {percentile(binlog.to_batch, 50):.0f}; "
            f"a no-op with the consumers' settings p50 {own:.0f}",
        ),
        benchmark("latency_dynamodb", "commit to invalidated", cache.from_commit, cache.summary()),
        benchmark("latency_binlog", "commit to invalidated", binlog.from_commit, binlog.summary()),
    ]


class _Result:
    """Latencies of the changes after the warm-up, in ms."""

    def __init__(self, written: int, events: list[ReceivedChange]) -> None:
        self.written = written
        self.seen = len({event.event_id for event in events})
        self.to_topic: list[float] = []
        self.to_batch: list[float] = []
        self.from_commit: list[float] = []
        self.rows: list[float] = []  # of each batch

    def summary(self) -> str:
        def both(latencies: list[float]) -> str:
            return f"p50 {percentile(latencies, 50):.0f}, p99 {percentile(latencies, 99):.0f}"

        return (
            f"{self.written / SECONDS:.0f} changes/s in batches of up to {max(self.rows):.0f}; commit to topic "
            f"{both(self.to_topic)}; topic to invalidated {both(self.to_batch)}; commit to invalidated "
            f"{both(self.from_commit)}"
        )


class DynamoDBTable:
    """A table in DynamoDB Local. ``name``: as its topic has it."""

    def __init__(self, client: Any, name: str, server: DynamoDBLocal) -> None:
        self.name = name
        self._client = client
        self._endpoint_url = server.endpoint_url
        create_table(client, name)

    def source(self) -> dict[str, Any]:
        source = {"name": "orders", "type": "dynamodb", "table": self.name, "region": "us-east-1"}
        return {**source, "endpoint_url": self._endpoint_url}

    def new_workload(self, **options: Any) -> Workload:
        return workload(self._client, self.name, **options)


class MariaDBTable(SQLTable):
    """A table in MariaDB, whose binlog the relay reads from here on."""

    name = TABLE

    def __init__(self, server: MariaDB) -> None:
        self._server = server
        server.execute(f"CREATE DATABASE {_DATABASE}")
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(DEFINITION)
        self._start = server.gtid

    def connect(self) -> Any:
        return self._server.connect(database=_DATABASE)

    def source(self) -> dict[str, Any]:
        return {
            "name": "orders",
            "type": "mysql",
            "shards": {"-": [self._server.address]},
            "user": USER,
            "password": PASSWORD,
            "database": _DATABASE,
            "tables": [TABLE],
            "start": {"gtid": {"-": f"MariaDB/{self._start}"}},
        }

    def new_workload(self, **options: Any) -> Workload:
        return Workload(partial(SQLWriter, self), **options)


class Phase:
    """A new table, a relay and one consumer. ``engine``: of the cache."""

    def __init__(
        self,
        folder: Path,
        name: str,
        table: DynamoDBTable | MariaDBTable,
        broker: KafkaBroker,
        redis: RedisServer,
        engine: str = "spark",
    ) -> None:
        self.name = name
        self.engine = engine
        self.redis = redis
        self.table = table
        self.folder = folder / name
        self.folder.mkdir()
        self.path = self.folder / "relay.yaml"
        cache = {"url": redis.url, "namespace": name, "keys": {table.name: [CACHE_KEY]}}
        kafka = {"bootstrap_servers": broker.bootstrap_servers, "partitions": 4}
        config = {"name": name, "kafka": kafka, "sources": [table.source()], "cache": cache}
        self.path.write_text(yaml.safe_dump(config))
        self.config = load(self.path)

    def run(self) -> Any:
        with ExitStack() as stack:
            self._start(stack, "relay", "-m", "relay.cli", "run", str(self.path))
            admin = topics.connect(self.config)
            wanted = {topic.name for topic in topics.required(self.config, [self.table.name])}
            wait(lambda: wanted <= admin.list_topics(timeout=10).topics.keys())
            checkpoint = str(self.folder / "checkpoint")
            if self.name.startswith("cache"):
                command = ["-m", "relay.cli", "consume", "cache", str(self.path), "--engine", self.engine]
                command += ["--checkpoint", checkpoint] if self.engine == "spark" else []
            else:
                command = ["-m", "tests.benchmarks.noop_consumer", str(self.path), checkpoint]
                command += ["--tuned"] if self.name == "noop-tuned" else []
            consumer = self._start(stack, "consumer", *command)
            topic = self.config.topic(self.table.name)
            watch = TopicWatch(self.config, self.table.name)
            watch.start()
            batches = BatchLog(consumer.log, topic)
            return self._measure(watch, batches)

    def write(self, watch: TopicWatch, batches: BatchLog) -> tuple[float, dict[Item, list[RecordedWrite]]]:
        """Write until all of it is on the topic and applied. Return when that began, and what was written."""
        writing = self.table.new_workload(writers=2, customers=10, pause=0.12)
        writing.warm_up()
        wait(lambda: bool(batches.refresh().times))
        begun = time.time()
        writing.start()
        time.sleep(SECONDS)
        history = writing.stop()
        written = sum(map(len, history.values()))
        wait(lambda: len(watch.changes) >= written)
        wait(lambda: batches.refresh().has_reached(dict(watch.ends)))
        return begun, history

    def _measure(self, watch: TopicWatch, batches: BatchLog) -> Any:
        begun, history = self.write(watch, batches)
        watch.stop()
        result = _Result(sum(map(len, history.values())), watch.changes)
        result.rows += [rows for applied, rows in batches.times if applied > begun + WARM_UP]
        by_item: dict[Any, list[ReceivedChange]] = {}
        for event in sorted(watch.changes, key=lambda e: (e.partition, e.offset)):
            by_item.setdefault(changed_item(event), []).append(event)
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
            {**CREDENTIALS, "RELAY_STATE": str(self.folder / "state")},
        )
        process.start()
        stack.callback(process.stop, 20.0)
        return process


def wait(done: Callable[[], bool], timeout: float = 300.0) -> None:
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise RelayError(f"no change within {timeout:.0f} s")
        time.sleep(0.1)

"""Measures how long a relay takes from its start to its first record, after many checkpoints were written.

A relay with 20 busy shards writes a million checkpoints in about three hours. They are written here as it writes them,
20 in a transaction, and the broker compacts the topic as the relay configures it, only without its usual pauses. The
yardstick is a relay before whose start 10 checkpoints were written.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from relay.config import load
from relay.demo.dynamodb_orders import create_table
from relay.errors import RelayError
from relay.kafka import topics
from relay.kafka.checkpoints import partition_of, read_checkpoints
from relay.process.managed import ManagedProcess
from relay.records import ShardCheckpoint, ShardState, StreamId
from relay.services.dynamodb import DynamoDBLocal
from relay.services.kafka import KafkaBroker
from relay.token import EventToken
from tests.benchmarks.harness import Benchmark, count_committed, in_turn, median

FEW = 10
MANY = (100_000, 1_000_000)
ROUNDS = 5
BUSY_SHARDS = 20
_PRODUCERS = 4
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}
_BUSY = StreamId("busy", "2026-01-01T00:00:00.000")


def run() -> list[Benchmark]:
    os.environ.update(_CREDENTIALS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(KafkaBroker(options={"log.cleaner.backoff.ms": "200"}))
        database = stack.enter_context(DynamoDBLocal())
        started = [_Started(folder, count, broker, database) for count in (FEW, FEW, *MANY)]
        for each in started:
            each.wait_for_compaction()
        figures = in_turn(ROUNDS, {each.table: each.start for each in started})
        few, again, *many = (median(figures[each.table]) for each in started)
        return [
            Benchmark(
                name=f"start after {each.count}",
                figure=figure,
                yardstick=few,
                unit="s, start of the process to its first record",
                ratio=figure / few,
                expected=ROUNDS + 1,
                seen=count_committed(each.config.kafka.client(), each.config.topic(each.table)),
                aa=again / few,
                note=(
                    f"{each.count} checkpoints of {BUSY_SHARDS} shards written before, {each.left} left after "
                    f"compaction, {each.bytes / 1e6:.0f} MB with the markers of transactions; yardstick {FEW} "
                    f"checkpoints; median of {ROUNDS}; aim: ratio below 2"
                ),
            )
            for each, figure in zip(started[2:], many, strict=True)
        ]


class _Started:
    """A table, and a relay before whose first start ``count`` checkpoints of another source were written."""

    def __init__(self, folder: Path, count: int, broker: KafkaBroker, database: DynamoDBLocal) -> None:
        self.count = count
        self.table = f"start-{secrets.token_hex(4)}"
        self.folder = folder / self.table
        self.folder.mkdir()
        self.left, self.bytes, self._items = 0, 0, 0
        self._data = broker.folder / "data"
        self._client: Any = boto3.client("dynamodb", endpoint_url=database.endpoint_url)
        create_table(self._client, self.table)
        self._path = self.folder / "relay.yaml"
        source = {"name": "orders", "type": "dynamodb", "table": self.table, "region": "us-east-1"}
        source["endpoint_url"] = database.endpoint_url
        kafka = {"bootstrap_servers": broker.bootstrap_servers, "partitions": 1}
        self._path.write_text(yaml.safe_dump({"name": self.table, "kafka": kafka, "sources": [source]}))
        self.config = load(self._path)
        topics.create_missing(topics.connect(self.config), self.config, [self.table])
        client = {**self.config.kafka.client(), "group.id": self.table, "isolation.level": "read_committed"}
        self._topic = Consumer(client)
        self._topic.assign([TopicPartition(self.config.topic(self.table), 0, 0)])
        self._write()

    def wait_for_compaction(self) -> None:
        """Wait until the topic has not become smaller for some seconds."""
        size, since = self._size(), time.monotonic()
        while time.monotonic() - since < 10.0:
            time.sleep(1.0)
            if (now := self._size()) != size:
                size, since = now, time.monotonic()
        self.bytes = size
        view = read_checkpoints(self.config.kafka.client(), self.config.internal("checkpoints"))
        self.left = view.records
        if len(view.of(_BUSY).checkpoints) != min(self.count, BUSY_SHARDS):
            raise RelayError(f"{self.table}: the checkpoints of some shards are missing")

    def start(self) -> float:
        """Write an item, start the relay, and return the seconds until its change is on the topic."""
        self._items += 1
        item = {"customer": {"S": "c"}, "order_id": {"N": str(self._items)}}
        self._client.put_item(TableName=self.table, Item=item)
        process = ManagedProcess(
            [sys.executable, "-m", "relay.cli", "run", str(self._path)],
            self.folder / f"relay-{self._items}.log",
            {**_CREDENTIALS, "RELAY_STATE": str(self.folder / "state")},
        )
        begun = time.monotonic()
        process.start()
        try:
            while self._topic.poll(0.05) is None:
                if not process.alive or time.monotonic() - begun > 300:
                    raise RelayError(f"no record: {process.log.read_text()[-2000:]}")
            return time.monotonic() - begun
        finally:
            process.stop(20.0)

    def _write(self) -> None:
        """Write the checkpoints, from several producers at once."""
        keys = [_BUSY.shard_key(f"shardId-{n:020d}-{n:08x}") for n in range(min(self.count, BUSY_SHARDS))]
        each = max(1, self.count // len(keys) // _PRODUCERS)
        count = self.count // len(keys) // each
        writers = [threading.Thread(target=self._commit, args=(n, each, keys)) for n in range(count)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()

    def _commit(self, number: int, times: int, keys: Sequence[bytes]) -> None:
        settings = {"transactional.id": f"{self.table}-{number}", "retry.backoff.ms": 1}
        producer = Producer({**self.config.kafka.client(), **settings})
        producer.init_transactions(30)
        topic = self.config.internal("checkpoints")
        for written in range(times):
            producer.begin_transaction()
            for key in keys:
                producer.produce(topic, _checkpoint(written), key, partition_of(key))
            producer.commit_transaction(30)

    def _size(self) -> int:
        logs = self._data.glob(f"{self.config.internal('checkpoints')}-*/*.log")
        return sum(log.stat().st_size for log in logs if log.exists())


def _checkpoint(number: int) -> bytes:
    sequence, now = f"4000000000{number:025d}", time.time()
    token = EventToken(int(now), _BUSY.qualified("shardId-00000001700000000000-0000000a"), f"DynamoDB/{sequence}", None)
    return ShardCheckpoint(
        ShardState.READING,
        position={"type": "after_sequence", "sequence": sequence},
        token=token,
        parents=("shardId-00000001600000000000-0000000a",),
        start={"type": "trim_horizon"},
        updated_at=now,
        progress=now,
    ).to_json()

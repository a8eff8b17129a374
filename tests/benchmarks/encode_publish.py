"""Encodes changes and publishes them in transactions, against a bare producer that sends the same bytes.

Our side does everything that the worker does with a page: Avro, key, partition, headers, produce, checkpoint, the
group's offsets, commit. The yardstick is an idempotent producer without transactions that gets finished bytes.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.topic_schemas import TopicSchemas
from relay.change import Change
from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.publisher import Publisher
from relay.kafka.settings import PRODUCER
from relay.kafka.topic_writer import TopicWriter
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.kafka.transaction import OpenTransaction
from relay.records import ShardCheckpoint, ShardState
from tests.benchmarks.changes import STREAM, TABLE, Message, change, finished
from tests.benchmarks.harness import Benchmark, count_committed, in_turn, median, pin
from tests.services.brokers import OptimisedBroker

CHANGES = 60_000
PAGE = 1000
ROUNDS = 4
PARTITIONS = 6
SETTINGS: dict[str, Any] = {**PRODUCER, "enable.idempotence": True, "acks": "all", "socket.nagle.disable": True}


class Untransacted(Publisher):
    """The publisher without transactions: it flushes instead of committing."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self.open = False
        self._limits: Mapping[str, int] = {}
        self._producer = Producer(dict(client))
        self.produce = self._producer.produce

    def begin(self) -> None:
        self.open = True

    def flush(self) -> None:
        self._producer.flush()

    def commit(self, offsets: list[TopicPartition], metadata: Callable[[], Any]) -> None:
        self._producer.flush()
        self.open = False


def run() -> list[Benchmark]:
    pin(os.getpid(), 0)
    with OptimisedBroker() as broker:
        pin(broker.process.pid, 1)
        return _run({"bootstrap.servers": broker.bootstrap_servers})


def _run(client: dict[str, Any]) -> list[Benchmark]:
    name = f"bench-{secrets.token_hex(3)}"
    topics = {kind: f"{name}.{kind}" for kind in ("ours", "untransacted", "bare", "again", "checkpoints", "schemas")}
    counts = {"checkpoints": CHECKPOINT_PARTITIONS, "schemas": 1}
    requests = [NewTopic(topic, counts.get(kind, PARTITIONS), 1) for kind, topic in topics.items()]
    admin = AdminClient(client)
    for made in admin.create_topics(requests).values():
        made.result(30)
    changes = [change(number) for number in range(CHANGES)]
    outbox = TopicWriter(TABLE, topics["ours"], PARTITIONS, "hash", TopicSchemas(client, topics["schemas"]))
    messages = finished(outbox, changes)

    view = CheckpointView(client, topics["checkpoints"])
    group = Assignment(client, f"{name}.relay", view, transaction_timeout=10.0)
    group.join()
    while len(group.owned) < CHECKPOINT_PARTITIONS:
        group.poll(0.1)
        group.fence()
    schemas = TopicSchemas(client, topics["schemas"])

    def transactions(publishers: Sequence[Publisher]) -> OpenTransaction:
        """Return what a worker keeps: it has learned how large a transaction may be."""
        return OpenTransaction(cycle(publishers), group)

    contenders: dict[str, tuple[OpenTransaction, TopicWriter]] = {
        "ours": (transactions([Publisher({**client, **SETTINGS}, f"{name}-{turn}") for turn in range(2)]), outbox),
        "untransacted": (
            transactions([Untransacted({**client, **SETTINGS})]),
            TopicWriter(TABLE, topics["untransacted"], PARTITIONS, "hash", schemas),
        ),
    }

    def published(kind: str) -> float:
        transaction, outbox = contenders[kind]
        begun = time.perf_counter()
        for at in range(0, CHANGES, PAGE):
            page = changes[at : at + PAGE]
            transaction.begin()
            transaction.size += outbox.send_page(transaction.publisher, page, 1_700_000_000)
            transaction.record(STREAM.shard_key("shard"), _checkpoint(page[-1]))
            if transaction.is_long:
                transaction.commit()
                group.poll(0)
        transaction.commit()
        return CHANGES / (time.perf_counter() - begun)

    bare = Producer({**client, **SETTINGS})
    figures = in_turn(
        ROUNDS,
        {
            "ours": lambda: published("ours"),
            "untransacted": lambda: published("untransacted"),
            "bare": lambda: _bare(bare, topics["bare"], messages),
            "again": lambda: _bare(bare, topics["again"], messages),
        },
    )
    seen = {kind: count_committed(client, topics[kind]) for kind in contenders}
    group.close()
    view.close()
    rate = {kind: median(found) for kind, found in figures.items()}
    size = sum(len(message[0]) for message in messages) // CHANGES
    note = f"values of {size} bytes, two images each; the broker on the other core; median of {ROUNDS}"

    def benchmark(name: str, yardstick: str, note: str) -> Benchmark:
        return Benchmark(
            name=name,
            figure=rate["ours"],
            yardstick=rate[yardstick],
            unit="changes/s on one core",
            ratio=rate["ours"] / rate[yardstick],
            expected=CHANGES * (ROUNDS + 1) * 2,
            seen=sum(seen.values()),
            aa=rate["again"] / rate["bare"],
            note=note,
        )

    return [
        benchmark("encode_publish", "bare", note),
        benchmark("transactions", "untransacted", f"yardstick the same code without transactions; {note}"),
    ]


def _checkpoint(last: Change) -> bytes:
    position = {"type": "after_sequence", "sequence": "1"}
    return ShardCheckpoint(ShardState.READING, position, last.token, updated_at=time.time()).to_json()


def _bare(producer: Producer, topic: str, messages: list[Message]) -> float:
    begun = time.perf_counter()
    produce = producer.produce
    for value, key, partition, headers in messages:
        while True:
            try:
                produce(topic, value, key, partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return len(messages) / (time.perf_counter() - begun)

"""Changes encoded and published in transactions, against a bare producer that sends the same bytes.

Our side does all that the worker does with a page: Avro, key, partition, headers, produce, checkpoint, offsets of
the group, commit. The yardstick is an idempotent producer without transactions, given finished bytes.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.registry import TopicSchemas
from relay.avro.rows import KeyColumn, TableSchema
from relay.change import Change, Images, Operation, event_id
from relay.dynamodb.values import image_json
from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.outbox import Outbox
from relay.kafka.publisher import Publisher
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.kafka.transaction import Transaction
from relay.lineage import Checkpoint, ShardState, Stream
from relay.local.kafka import KafkaBroker
from relay.token import EventToken
from relay.worker import LARGEST_TRANSACTION, LONGEST_TRANSACTION
from tests.benchmarks.harness import Benchmark, count_committed, in_turn, median, pin

CHANGES = 60_000
PAGE = 1000
ROUNDS = 4
PARTITIONS = 6
TABLE = TableSchema("orders", "orders", (KeyColumn("customer", "S"), KeyColumn("order_id", "N")), 1)
STREAM = Stream("orders", "2026-01-01T00:00:00.000")
SETTINGS: dict[str, Any] = {
    "linger.ms": 5,
    "compression.type": "lz4",
    "batch.size": 1 << 20,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 128 << 10,
    "enable.idempotence": True,
    "acks": "all",
}


def run() -> Benchmark:
    pin(os.getpid(), 0)
    with KafkaBroker() as broker:
        pin(broker.process.pid, 1)
        return _run({"bootstrap.servers": broker.bootstrap_servers})


def _run(client: dict[str, Any]) -> Benchmark:
    name = f"bench-{secrets.token_hex(3)}"
    topics = {kind: f"{name}.{kind}" for kind in ("ours", "bare", "again", "checkpoints", "schemas")}
    counts = {"checkpoints": CHECKPOINT_PARTITIONS, "schemas": 1}
    requests = [NewTopic(topic, counts.get(kind, PARTITIONS), 1) for kind, topic in topics.items()]
    admin = AdminClient(client)
    for made in admin.create_topics(requests).values():
        made.result(30)
    changes = [_change(number) for number in range(CHANGES)]
    outbox = Outbox(TABLE, topics["ours"], PARTITIONS, "hash", TopicSchemas(client, topics["schemas"]))
    messages = _finished(outbox, changes)

    view = CheckpointView(client, topics["checkpoints"])
    group = Assignment(client, f"{name}.relay", view, transaction_timeout=10.0)
    while len(group.owned) < CHECKPOINT_PARTITIONS:
        group.poll(0.1)
        group.fence()
    transaction = Transaction(Publisher({**client, **SETTINGS}, name), group, topics["checkpoints"])

    def ours() -> float:
        begun = time.perf_counter()
        for at in range(0, CHANGES, PAGE):
            page = changes[at : at + PAGE]
            transaction.begin()
            for change in page:
                transaction.size += outbox.send(transaction.publisher, change, 1_700_000_000)
            transaction.record(STREAM.checkpoint_key("shard"), _checkpoint(page[-1]))
            if transaction.age >= LONGEST_TRANSACTION or transaction.size >= LARGEST_TRANSACTION:
                transaction.commit()
                group.poll(0)
        transaction.commit()
        return CHANGES / (time.perf_counter() - begun)

    bare = Producer({**client, **SETTINGS})
    figures = in_turn(
        ROUNDS,
        {
            "ours": ours,
            "bare": lambda: _bare(bare, topics["bare"], messages),
            "again": lambda: _bare(bare, topics["again"], messages),
        },
    )
    seen = count_committed(client, topics["ours"])
    group.close()
    view.close()
    figure, yardstick, again = (median(figures[kind]) for kind in ("ours", "bare", "again"))
    size = sum(len(message[0]) for message in messages) // CHANGES
    return Benchmark(
        name="encode_publish",
        figure=figure,
        yardstick=yardstick,
        unit="changes/s on one core",
        ratio=figure / yardstick,
        expected=CHANGES * (ROUNDS + 1),
        seen=seen,
        aa=again / yardstick,
        note=f"values of {size} bytes, two images each; the broker on the other core; median of {ROUNDS}",
    )


def _change(number: int) -> Change:
    chance = random.Random(number)
    key = {"customer": f"customer-{number % 5000:05}", "order_id": str(number)}
    images = [
        image_json(
            {
                "customer": {"S": key["customer"]},
                "order_id": {"N": key["order_id"]},
                "version": {"N": str(version)},
                "total": {"N": f"{chance.randint(1, 10**9)}.25"},
                "payload": {"S": "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=200))},
                "tags": {"SS": ["red", "green", "blue"]},
            }
        )
        for version in (1, 2)
    ]
    shard = STREAM.qualified("shardId-00000001700000000000-0123abcd")
    position = f"DynamoDB/{10**20 + number}"
    return Change(
        event_id=event_id(shard, position, "orders", key["customer"].encode(), 0),
        operation=Operation.UPDATE,
        source="orders",
        table="orders",
        key=key,
        old=images[0],
        new=images[1],
        images=Images.NEW_AND_OLD,
        token=EventToken(1_700_000_000 + number // 1000, shard, position),
        committed_at=1_700_000_000_000_000,
        attributes={"event_version": "1.1"},
    )


def _checkpoint(last: Change) -> bytes:
    position = {"type": "after_sequence", "sequence": "1"}
    return Checkpoint(ShardState.READING, position, last.token, updated_at=time.time()).to_json()


class _Kept:
    """Stands where a publisher does, and keeps what it is given to send."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes, int, list[Any]]] = []

    def send(self, topic: str, value: bytes, key: bytes, partition: int, headers: list[Any]) -> None:
        self.messages.append((value, key, partition, headers))


def _finished(outbox: Outbox, changes: list[Change]) -> list[tuple[bytes, bytes, int, list[Any]]]:
    kept = _Kept()
    for change in changes:
        outbox.send(kept, change, 1_700_000_000)  # type: ignore[arg-type]
    return kept.messages


def _bare(producer: Producer, topic: str, messages: list[tuple[bytes, bytes, int, list[Any]]]) -> float:
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

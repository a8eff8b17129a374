"""Changes encoded and published in transactions, against a bare producer that sends the same bytes.

Our side does all that the worker does with a page: Avro, key, partition, headers, produce, checkpoint, offsets of
the group, commit. The yardstick is an idempotent producer without transactions, given finished bytes.
"""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.registry import TopicSchemas
from relay.change import Change
from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.outbox import Outbox
from relay.kafka.publisher import Publisher
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.kafka.transaction import Transaction
from relay.lineage import Checkpoint, ShardState
from relay.local.kafka import KafkaBroker
from relay.publishing import LARGEST_TRANSACTION, LONGEST_TRANSACTION
from tests.benchmarks.changes import STREAM, TABLE, Message, change, finished
from tests.benchmarks.harness import Benchmark, count_committed, in_turn, median, pin

CHANGES = 60_000
PAGE = 1000
ROUNDS = 4
PARTITIONS = 6
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
    changes = [change(number) for number in range(CHANGES)]
    outbox = Outbox(TABLE, topics["ours"], PARTITIONS, "hash", TopicSchemas(client, topics["schemas"]))
    messages = finished(outbox, changes)

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
            for one in page:
                transaction.size += outbox.send(transaction.publisher, one, 1_700_000_000)
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


def _checkpoint(last: Change) -> bytes:
    position = {"type": "after_sequence", "sequence": "1"}
    return Checkpoint(ShardState.READING, position, last.token, updated_at=time.time()).to_json()


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

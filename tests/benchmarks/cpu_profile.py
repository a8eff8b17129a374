"""Says where the CPU time of a record goes, from the bytes of the source's answer to the topic, for each source.

Every step runs over all records on its own, on one core, and its CPU time is measured: the time that other processes
take from this one does not count. ``records`` is all that the topic writer does; of the same in plain Python, ``rest``
is headers, times, sizes and calls. ``produce`` includes the commit; ``client`` is what librdkafka's threads use. The
yardstick is an idempotent producer without transactions that sends the same bytes.
"""

from __future__ import annotations

import gc
import os
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.avro.encode import ChangeEncoder
from relay.avro.schema import change_schema
from relay.avro.topic_schemas import TopicSchemas
from relay.change import Change, ChangeParts
from relay.kafka import keys
from relay.kafka.publisher import Publisher
from relay.kafka.settings import PRODUCER
from relay.kafka.topic_writer import TopicWriter
from relay.records import ShardCheckpoint, ShardState
from relay.token import EventToken
from tests.benchmarks.changes import STREAM, Message, finished
from tests.benchmarks.cpu_sources import Fed, fed
from tests.benchmarks.harness import Benchmark, count_committed, pin
from tests.services.brokers import OptimisedBroker

T = TypeVar("T")

ROUNDS = 8
PAGE = 1000
PARTITIONS = 6
SETTINGS: dict[str, Any] = {**PRODUCER, "enable.idempotence": True, "acks": "all", "socket.nagle.disable": True}


class Steps:
    """The least CPU seconds of each step: a neighbour on the machine makes a step slower, never faster."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, step: str, call: Callable[..., T], *arguments: Any) -> T:
        begun, others = time.thread_time(), time.process_time()
        result = call(*arguments)
        used = time.thread_time() - begun
        self._keep(step, used)
        self._keep(f"client of {step}", time.process_time() - others - used)
        return result

    def _keep(self, step: str, used: float) -> None:
        self.seconds[step] = min(self.seconds.get(step, used), used)


def run() -> list[Benchmark]:
    gc.set_threshold(50_000, 20, 20)  # as a worker does
    pin(os.getpid(), 0)
    with OptimisedBroker() as broker:
        pin(broker.process.pid, 1)
        return [_profile({"bootstrap.servers": broker.bootstrap_servers}, each) for each in fed()]


def _profile(client: dict[str, Any], source: Fed) -> Benchmark:
    name = f"bench-{secrets.token_hex(3)}"
    topics = {kind: f"{name}.{kind}" for kind in ("ours", "bare", "schemas", "checkpoints")}
    requests = [NewTopic(topic, 1 if kind == "schemas" else PARTITIONS, 1) for kind, topic in topics.items()]
    admin = AdminClient(client)
    for made in admin.create_topics(requests).values():
        made.result(30)
    schemas, schema = TopicSchemas(client, topics["schemas"]), change_schema(source.table)
    encoder = ChangeEncoder(schema, schemas.register(topics["ours"], schema))
    codec = keys.KeyCodec(source.table, "hash")
    publisher = Publisher({**client, **SETTINGS}, f"{name}-0")
    bare = Producer({**client, **SETTINGS})
    writer = TopicWriter(source.table, topics["ours"], PARTITIONS, "hash", schemas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_NATIVE", "off")
        plain = TopicWriter(source.table, topics["ours"], PARTITIONS, "hash", schemas)
    steps, records = Steps(), 0
    for _ in range(ROUNDS):
        answer = steps.run("parse", source.parse)
        read: list[Change] | ChangeParts = steps.run("change", source.change, answer)
        changes = list(read)
        tokens = list({id(one.token): one.token for one in changes if one.token is not None}.values())
        steps.run("token", _each, EventToken.to_json_bytes, tokens)
        hashed = [each for each, _ in steps.run("key", _each, codec.hash_and_record_key, [one.key for one in changes])]
        steps.run("partition", _each, lambda each: keys.partition(each, PARTITIONS), hashed)
        for number, one in enumerate(changes):
            one.relayed_at, one.resume_timestamp = 1_790_000_000_000_000 + number * 7, 1_700_000_000
        steps.run("avro", _each, encoder.encode, changes)
        messages = steps.run("records", finished, writer, read)
        steps.run("plain", finished, plain, changes)
        publisher.begin()
        checkpoints = steps.run("checkpoint", _checkpoints, changes)
        steps.run("produce", _produce, publisher, topics, messages, checkpoints)
        for kind in ("bare", "again"):
            steps.run(kind, _bare, bare, topics["bare"], messages)
        records += len(changes)
    publisher.close()
    cost = {step: seconds / len(changes) * 1e6 for step, seconds in steps.seconds.items()}
    ours = sum(cost[step] for step in ("parse", "change", "records", "checkpoint", "produce", "client of produce"))
    yardstick, again = (cost[kind] + cost[f"client of {kind}"] for kind in ("bare", "again"))
    shown = [f"{step} {cost[step]:.2f}" for step in ("parse", "change", "records", "checkpoint", "produce")]
    parts = {step: cost[step] for step in ("token", "key", "partition", "avro")}
    parts["rest"] = cost["plain"] - sum(parts.values())
    inside = ", ".join(f"{step} {value:.2f}" for step, value in parts.items())
    size = sum(len(value) for value, *_ in messages) // len(messages)
    return Benchmark(
        name=f"cpu_profile_{source.name}",
        figure=ours,
        yardstick=yardstick,
        unit="us of CPU a record",
        ratio=yardstick / ours,
        expected=records,
        seen=count_committed(client, topics["ours"]),
        aa=again / yardstick,
        note=f"values of {size} bytes; least of {ROUNDS}; {', '.join(shown)}, client {cost['client of produce']:.2f}; "
        f"records in plain Python {cost['plain']:.2f}: {inside}",
    )


def _each(call: Callable[[Any], Any], arguments: list[Any]) -> list[Any]:
    return [call(one) for one in arguments]


def _checkpoints(changes: list[Change]) -> list[bytes]:
    """Return the checkpoint of each page."""
    position = {"type": "after_sequence", "sequence": "1"}
    return [
        ShardCheckpoint(ShardState.READING, position, last.token, updated_at=time.time()).to_json()
        for last in changes[PAGE - 1 :: PAGE]
    ]


def _produce(publisher: Publisher, topics: dict[str, str], messages: list[Message], checkpoints: list[bytes]) -> None:
    """Send and commit everything in one transaction, with the last checkpoint, as the relay does under load."""
    topic = topics["ours"]
    for value, key, partition, headers in messages:
        publisher.send(topic, value, key, partition, headers)
    publisher.send(topics["checkpoints"], checkpoints[-1], STREAM.shard_key("shard"), 0)
    publisher.commit_without_offsets()


def _bare(producer: Producer, topic: str, messages: list[Message]) -> None:
    for value, key, partition, headers in messages:
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()

"""Transactions on a topic with one partition, and what its readers see."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.kafka.publisher import Publisher


def create(client: dict[str, Any], name: str, **settings: str) -> None:
    admin = AdminClient(client)
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(120)


def read_committed(client: dict[str, Any], topic: str) -> list[str]:
    """Return the values of all committed records, and wait for the end of open transactions."""
    reader = Consumer({**client, "group.id": topic, "isolation.level": "read_committed", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    values = []
    while (message := reader.poll(120)) is not None and message.error() is None:
        values.append((message.value() or b"").decode())
    reader.close()
    return values


def publish(publisher: Publisher, topic: str, *values: bytes) -> None:
    publisher.begin()
    for value in values:
        publisher.send(topic, value, b"k", 0)

"""All changes on a topic, as a read_committed consumer sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from relay.avro.decode import decode
from relay.errors import RelayError
from relay.kafka.changes import ReceivedChange, read_change


def read_topic(client: Mapping[str, Any], topic: str, schemas: Any) -> list[ReceivedChange]:
    """Read the changes of ``topic`` from its beginning to its current end."""
    found = read_values(client, topic)
    return [
        read_change(decode(schemas, value, typed_json=False), topic, partition, offset)
        for partition, offset, value in found
    ]


def read_changes(client: Mapping[str, Any], topic: str, schemas: Any) -> list[tuple[int, int, dict[str, Any]]]:
    """Return partition, offset and decoded value of each record of ``topic``, as a read_committed consumer sees it."""
    return [(partition, offset, decode(schemas, value)) for partition, offset, value in read_values(client, topic)]


def read_values(client: Mapping[str, Any], topic: str) -> list[tuple[int, int, bytes]]:
    """Return partition, offset and value of each record of ``topic``, as a read_committed consumer sees it."""
    consumer = Consumer(
        {
            **client,
            "group.id": f"{topic}.truth",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        # The last stable offsets, up to which everything is committed.
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1] for p in partitions}
        ends = {p: end for p, end in ends.items() if end > 0}
        consumer.assign([TopicPartition(topic, p, 0) for p in ends])
        records = []
        while ends:
            message = consumer.poll(120.0)
            if message is None:
                raise RelayError(
                    f"topic {topic}: no record for 120 s, though partitions {sorted(ends)} are not read to their end"
                )
            error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
            if error is None:
                records.append((partition, offset, message.value() or b""))
                offset += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise RelayError(f"topic {topic}: {error.str()}")
            if offset >= ends.get(partition, offset + 1):
                del ends[partition]
        return records
    finally:
        consumer.close()

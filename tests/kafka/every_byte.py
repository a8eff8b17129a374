"""All that a relay has written: the bytes of every record of its topics, also of aborted transactions."""

from __future__ import annotations

import json
import time
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition


def every_byte(bootstrap_servers: str, name: str) -> bytes:
    """Return keys, values and headers of all records of the topics ``<name>.*``, JSON in them also decoded."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": f"{name}.every_byte", "enable.partition.eof": True}
    with closing(Consumer({**settings, "isolation.level": "read_uncommitted"})) as consumer:
        topics = consumer.list_topics(timeout=30).topics.items()
        places = [
            TopicPartition(topic, number, 0)
            for topic, about in topics
            if topic.startswith(f"{name}.")
            for number in about.partitions
        ]
        consumer.assign(places)
        parts: list[bytes] = []
        at_end, deadline = 0, time.monotonic() + 600
        while at_end < len(places):
            assert time.monotonic() < deadline, f"{at_end} of {len(places)} partitions are read to their end"
            for message in consumer.consume(1000, 0.5):
                if message.error():
                    at_end += 1
                    continue
                parts.extend(part for part in (message.key(), message.value()) if part is not None)
                parts.extend(repr(header).encode() for header in message.headers() or ())
    assert len(parts) > 10
    return b"\n".join([*parts, *(_unescaped(part) for part in parts)])


def _unescaped(part: bytes) -> bytes:
    try:
        return json.dumps(json.loads(part), ensure_ascii=False).encode()
    except ValueError:
        return b""

"""A relay that has published, and parts of whose state are then deleted on Kafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.config import load
from relay.kafka import topics
from relay.kafka.checkpoints import partition_of
from relay.kafka.partition_offsets import offset_bounds
from tests.dynamodb.endpoint import TABLE
from tests.operating import Operated
from tests.waiting import wait_until


class LostRelay(Operated):
    @cached_property
    def admin(self) -> AdminClient:
        return topics.connect(load(self.path))

    def publish(self, **source: Any) -> None:
        """Publish versions 1 and 2 of the item k; with ``start="latest"`` only the second."""
        self.configure(**source)
        self.stream.shard("root")
        self.put(1, ago=3600)
        if source.get("start") == "latest":
            self.run()
        self.put(2)
        self.run()

    def put(self, version: int, ago: int = -2) -> None:
        """Write a version of the item, by default after each `latest` that was planned before."""
        self.stream.put("root", "k", version, old=version - 1 or None, created=int(time.time()) - ago)

    def topic(self, kind: str) -> str:
        return f"{self.name}.{TABLE if kind == 'changes' else kind}"

    def watermarks(self) -> list[Any]:
        """Return those that are published, and start no reader while the topic is empty."""
        bounds = offset_bounds(self.admin, [(self.topic("watermarks"), 0)])
        if not any(end for _, end in bounds.values()):
            return []
        answer = self.command("tail", "CONFIG", "watermarks", "--from-beginning", "--exit-at-end", "--json")
        return answer.stdout.splitlines()

    def delete(self, *kinds: str) -> None:
        """Delete topics: those of ``kinds``, such as checkpoints, or of changes."""
        names = [self.topic(kind) for kind in kinds]
        for deleted in self.admin.delete_topics(names).values():
            deleted.result(120)
        wait_until(lambda: not self.admin.list_topics(timeout=60).topics.keys() & set(names))

    def create(self) -> None:
        """Create what is missing, as another worker does."""
        topics.create_missing(self.admin, load(self.path), [TABLE])

    def forget(self, kind: str, keys: Sequence[bytes]) -> None:
        """Remove records of a compacted topic."""
        producer = Producer({"bootstrap.servers": load(self.path).kafka.bootstrap_servers})
        for key in keys:
            producer.produce(self.topic(kind), key=key, value=None, partition=partition_of(key))
        assert producer.flush(30) == 0

    def expire(self) -> None:
        """Remove all records of the topic of changes, as its retention does."""
        numbers = range(load(self.path).kafka.partitions)
        ends = offset_bounds(self.admin, [(self.topic("changes"), number) for number in numbers])
        before = [TopicPartition(*where, end) for where, (_, end) in ends.items()]
        for removed in self.admin.delete_records(before).values():
            removed.result(120)

"""Partitions that are added to a topic while programs and `relay tail` read it, as `relay repartition` does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewPartitions

import relay
from relay.kafka import committed, same_topics, topics
from relay.kafka.keys import partition
from relay.operations.tail import tail
from tests.spark_consumers.topic import Topic, change
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.services

FORMER, ALL = 2, 7
KEYS = [f"c{number}" for number in range(100)]
MOVED = next(key for key in KEYS if partition(key.encode(), ALL) >= FORMER)
KEPT = next(key for key in KEYS if partition(key.encode(), ALL) == partition(key.encode(), FORMER))


def places(key: str, count: int) -> list[tuple[int, int]]:
    return [(partition(key.encode(), ALL), offset) for offset in range(count)]


class EnoughShown(Exception):
    pass


@pytest.fixture
def topic(tmp_path: Path, unique: str, kafka: Any, monkeypatch: pytest.MonkeyPatch) -> Topic:
    monkeypatch.setattr(same_topics, "_LOOK", 0.0)
    monkeypatch.setattr(committed, "_REFRESH", 0.2)
    return Topic(tmp_path, unique, kafka.bootstrap_servers, "redis://127.0.0.1:1/0", partitions=FORMER)


def publish_to_an_added_partition(topic: Topic) -> None:
    admin = topics.connect(topic.config)
    admin.create_partitions([NewPartitions(topic.name, ALL)])[topic.name].result(120)
    wait_until(lambda: len(topics.list_topics(admin, topic.config)[topic.name].partitions) == ALL)
    topic.partitions = ALL
    topic.publish([change(MOVED, version) for version in range(1, 4)])


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("is_in_group", [False, True])
def test_a_program_reads_added_partitions_from_their_beginning(topic: Topic, is_in_group: bool, start: str) -> None:
    """I1: changes of the keys that move there would never come."""
    with relay.changes(topic.path, ["orders"], group=topic.name if is_in_group else None, start=start) as changes:
        wait_until(lambda: changes.poll(0.1) is None and changes._consumer.assignment())
        publish_to_an_added_partition(topic)
        found = [wait_until(lambda: changes.poll(1)) for _ in range(3)]
    assert [(each.partition, each.offset) for each in found] == places(MOVED, 3)


def test_a_tail_shows_added_partitions_from_their_beginning_and_goes_on_in_the_others(topic: Topic) -> None:
    """I1."""
    topic.publish([change(KEPT, 1)])
    shown: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE

    def flush() -> None:
        assert time.monotonic() < deadline, "an added partition is not shown"
        if len(shown) == 1 and topic.partitions == FORMER:
            publish_to_an_added_partition(topic)
            topic.publish([change(KEPT, 2)])
        elif len(shown) >= 5:
            raise EnoughShown

    with pytest.raises(EnoughShown):
        tail(topic.config, ["orders"], shown.append, flush=flush, start="earliest")
    assert sorted((each["partition"], each["offset"]) for each in shown) == sorted(places(KEPT, 2) + places(MOVED, 3))

"""Group membership and the fence: what a worker may commit, and when."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError, Unavailable
from relay.kafka.assignment import Assignment, NotAMember
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.publisher import Aborted, Publisher
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.services.kafka import KafkaBroker
from tests.waiting import pause, wait_until

pytestmark = pytest.mark.services

TIMEOUT = 6.0


@pytest.fixture
def client(kafka: Any) -> dict[str, Any]:
    return {"bootstrap.servers": kafka.bootstrap_servers}


@pytest.fixture
def topic(client: dict[str, Any], unique: str) -> str:
    name = f"{unique}.checkpoints"
    admin = AdminClient(client)
    admin.create_topics([NewTopic(name, CHECKPOINT_PARTITIONS, 1)])[name].result(30)
    return name


@pytest.fixture
def group(client: dict[str, Any], topic: str) -> Iterator[Assignment]:
    view = CheckpointView(client, topic)
    assignment = Assignment(client, f"{topic}.relay", view, transaction_timeout=TIMEOUT)
    assignment.join()
    yield assignment
    assignment.close()
    view.close()


def join(group: Assignment) -> None:
    def fenced() -> bool | None:
        group.poll(0.1)
        group.fence()
        return len(group.owned) == CHECKPOINT_PARTITIONS or None

    wait_until(fenced, 60)


def test_a_single_worker_owns_every_partition_after_the_fence(group: Assignment) -> None:
    assert group.owned == set()
    join(group)
    assert group.gained == set()


def test_a_worker_commits_only_for_partitions_it_owns(group: Assignment) -> None:
    """I4"""
    with pytest.raises(RelayError, match=r"does not own the partitions \[3\]"):
        group.offsets({3})
    join(group)
    assert [where.partition for where in group.offsets({3, 1})] == [1, 3]


def test_an_expelled_worker_cannot_commit_although_the_broker_would_let_it(
    group: Assignment, client: dict[str, Any], topic: str
) -> None:
    """I3: the broker accepts transactional offsets from clients without a generation, so the relay never sends them."""
    join(group)
    stranger = Consumer({**client, "group.id": group.group})
    producer = Producer({**client, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    offsets = [TopicPartition(topic, 0, 7)]
    producer.send_offsets_to_transaction(offsets, stranger.consumer_group_metadata(), 30)
    producer.commit_transaction(30)  # accepted: this is why the relay compares the member id
    stranger.close()
    group._consumer.unsubscribe()
    wait_until(lambda: (group.poll(0.1), not group.owned and not group.joined)[1] or None, 30)
    publisher = Publisher(client, f"{topic}-p")
    publisher.begin()
    with pytest.raises(NotAMember):
        publisher.commit(offsets, group.metadata)
    publisher.abort()


def test_a_transaction_with_the_generation_before_a_rebalance_is_refused(
    group: Assignment, client: dict[str, Any], topic: str
) -> None:
    """I3"""
    join(group)
    old = group.metadata()
    other = Consumer({**client, "group.id": group.group, "partition.assignment.strategy": "cooperative-sticky"})
    joined: list[int] = []
    other.subscribe([topic], on_assign=lambda consumer, partitions: joined.append(len(partitions)))

    def both() -> bool | None:
        group.poll(0.1)
        other.poll(0.1)
        return bool(joined) or None

    wait_until(both, 60)
    publisher = Publisher(client, f"{topic}-p")
    publisher.begin()
    with pytest.raises(Aborted):
        publisher.commit([TopicPartition(topic, 0, 1)], lambda: old)
    publisher.abort()
    other.close()


def test_a_session_timeout_that_the_broker_refuses_is_reported_at_once(client: dict[str, Any], topic: str) -> None:
    view = CheckpointView(client, topic)
    group = Assignment(client, f"{topic}.short", view, transaction_timeout=0.2)
    group.join()

    def poll_for_ever() -> None:
        wait_until(lambda: group.poll(0.1) or None, 60)

    with pytest.raises(Unavailable, match=r"group\.min\.session\.timeout\.ms"):
        poll_for_ever()
    group.close()
    view.close()


def test_a_broker_that_does_not_answer_is_not_mistaken_for_an_empty_topic() -> None:
    """I3: a timed-out request for an end offset gives -1001 without an error."""
    with KafkaBroker() as broker:
        client: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(client)
        admin.create_topics([NewTopic("c", CHECKPOINT_PARTITIONS, 1)])["c"].result(30)
        view = CheckpointView(client, "c")
        assert view.read_to_end([0], 20.0)
        pause(broker.process.pid)
        assert not view.read_to_end([0], 1.0)
        os.kill(broker.process.pid, signal.SIGCONT)
        view.close()

"""Group membership and the fence: what a worker may commit, and when."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError, Unavailable
from relay.kafka import assignment
from relay.kafka.assignment import Assignment, NotAMember
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.group import members
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
    admin.create_topics([NewTopic(name, CHECKPOINT_PARTITIONS, 1)])[name].result(120)
    return name


@pytest.fixture
def member(client: dict[str, Any], topic: str) -> Iterator[Callable[[], Assignment]]:
    """Makes members of one group, which have not joined yet."""
    with ExitStack() as opened:

        def make() -> Assignment:
            view = opened.enter_context(closing(CheckpointView(client, topic)))
            return opened.enter_context(
                closing(Assignment(client, f"{topic}.relay", view, transaction_timeout=TIMEOUT))
            )

        yield make


@pytest.fixture
def group(member: Callable[[], Assignment]) -> Assignment:
    made = member()
    made.join()
    return made


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


def test_a_worker_goes_on_with_what_it_has_to_hand_over_until_another_one_can_take_it(
    group: Assignment,
    member: Callable[[], Assignment],
    client: dict[str, Any],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I3: and only until then, so that at no time two own a partition."""
    monkeypatch.setattr(assignment, "_KEEP", 1e9)
    join(group)
    admin, other = AdminClient(client), member()
    other.join()

    def poll() -> None:
        group.poll(0.1)
        other.poll(0.1)
        other.fence()
        assert not group.owned & other.owned

    def taken_from_it() -> set[int]:
        """Return what the broker has taken from the first of two members."""
        poll()
        found = {each.id: each.partitions for each in members(admin, group.group, topic)}
        kept = found.get(group._consumer.memberid() or "", frozenset())
        return set(range(CHECKPOINT_PARTITIONS)) - kept if len(found) == 2 and kept else set()

    taken = wait_until(lambda: taken_from_it() or None, 60)
    for _ in range(3):
        poll()
    assert len(group.owned) == CHECKPOINT_PARTITIONS
    publisher = Publisher(client, f"{topic}-p")
    publisher.begin()
    publisher.commit(group.offsets(taken), group.metadata)
    publisher.close()

    group._keep_until = 0.0  # the time is over
    assert group.gives_up
    assert group.poll() == taken

    def has_taken_over() -> bool:
        poll()
        return other.owned == taken

    wait_until(has_taken_over, 60)
    assert group.owned == set(range(CHECKPOINT_PARTITIONS)) - taken


@pytest.mark.parametrize("reason", ["it leaves", "the group has expelled it"])
def test_a_worker_keeps_nothing_back_when(
    reason: str, group: Assignment, member: Callable[[], Assignment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "_KEEP", 1e9)
    join(group)
    other = member()
    other.join()

    def is_asked() -> bool:
        group.poll(0.1)
        other.poll(0.1)
        return bool(group._wanted)

    wait_until(is_asked, 60)
    if reason == "it leaves":
        group.close()
    else:
        group._member = "the member that it was"
        assert group.gives_up
        assert group.poll()

    def has_gained() -> bool:
        if reason != "it leaves":
            group.poll(0.1)
        other.poll(0.1)
        return bool(other.fence())

    wait_until(has_gained, 60)


def test_an_idle_worker_sends_its_heartbeats_in_time(
    client: dict[str, Any], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only from the answers does it learn that others come and go. By itself, librdkafka sends two a second."""
    monkeypatch.setattr(assignment, "_HEARTBEAT", 0.01)
    found: list[tuple[float, int]] = []

    def stats(text: str) -> None:
        told = orjson.loads(text)
        sent = sum(broker["req"]["Heartbeat"] for broker in told["brokers"].values())
        found.append((told["ts"] / 1e6, sent))

    told = {"statistics.interval.ms": 2000, "stats_cb": stats}
    with (
        closing(CheckpointView(client, topic)) as view,
        closing(Assignment({**client, **told}, f"{topic}.relay", view, transaction_timeout=TIMEOUT)) as group,
    ):
        group.join()
        join(group)
        before = len(found)
        rates: list[float] = []
        # A busy broker answers each only after a while, but not always.
        while max(rates, default=0.0) < 4.0 and len(rates) < 15:
            group.poll(0.02)
            rates = [(then - sent) / (last - first) for (first, sent), (last, then) in pairwise(found[before:])]
    assert max(rates) >= 4.0


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
        admin.create_topics([NewTopic("c", CHECKPOINT_PARTITIONS, 1)])["c"].result(120)
        view = CheckpointView(client, "c")
        assert view.read_to_end([0], 120.0)
        pause(broker.process.pid)
        assert not view.read_to_end([0], 1.0)
        os.kill(broker.process.pid, signal.SIGCONT)
        view.close()

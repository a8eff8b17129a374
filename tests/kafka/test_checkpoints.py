"""The copy of the checkpoints topic: what it applies, how long it waits, and when it says that it is out of date."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError, Unavailable
from relay.kafka.checkpoints import CheckpointView, StopRequested, partition_of
from relay.kafka.compaction import DELETIONS_KEPT
from relay.kafka.freshness import MissedDeletions
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.records import ShardCheckpoint, ShardState, StreamId
from tests.kafka.proxy import Api, ProxiedBroker, passing
from tests.waiting import wait_until

pytestmark = pytest.mark.services

EVERYTHING = range(CHECKPOINT_PARTITIONS)
STREAM = StreamId("orders", "2026-01-01T00:00:00.000")
KEY = STREAM.shard_key("a")
READING = ShardCheckpoint(ShardState.READING, position={"sequence": "1"}, updated_at=1.0).to_json()
FINISHED = ShardCheckpoint(ShardState.FINISHED, updated_at=2.0).to_json()


def create_topic(client: dict[str, Any], name: str, **settings: str) -> str:
    admin = AdminClient(client)
    topic = NewTopic(name, CHECKPOINT_PARTITIONS, 1, config={"cleanup.policy": "compact", **settings})
    admin.create_topics([topic])[name].result(120)
    return name


@pytest.fixture
def client(kafka: Any) -> dict[str, Any]:
    return {"bootstrap.servers": kafka.bootstrap_servers}


@pytest.fixture
def topic(client: dict[str, Any], unique: str) -> str:
    return create_topic(client, f"{unique}.checkpoints")


def write(client: dict[str, Any], topic: str, *values: bytes | None, key: bytes = KEY) -> None:
    producer = Producer(client)
    for value in values:
        producer.produce(topic, value, key, partition_of(key))
    assert producer.flush(30) == 0


def test_a_read_that_advances_is_never_given_up(client: dict[str, Any], topic: str) -> None:
    """Each record takes a tenth of a second, and the view waits for ten seconds without one."""
    write(client, topic, *[READING] * 5000, FINISHED)
    views: list[CheckpointView] = []
    with closing(CheckpointView(client, topic, clock=lambda: sum(view.records for view in views) / 10)) as view:
        views.append(view)
        view.require_end(EVERYTHING, 10.0)
        assert view.of(STREAM).checkpoints["a"].state is ShardState.FINISHED


def test_a_view_that_is_watched_says_once_it_shows_what_was_committed_and_never_waits(
    broker: ProxiedBroker, unique: str
) -> None:
    client = {"bootstrap.servers": broker.bootstrap_servers}
    topic = create_topic(client, unique)
    with closing(CheckpointView(client, topic)) as view:
        view.require_end(EVERYTHING, 60.0)
        broker.proxy.lose(Api.FETCH, Api.LIST_OFFSETS)
        write(client, topic, READING)
        is_seen = view.watch({partition_of(KEY)})
        for _ in range(10):
            view.poll(0.01)
            assert not is_seen()  # a fetch that the broker had already may bring the record
        broker.proxy.rule = passing

        def seen() -> bool:
            view.poll(0.01)
            return is_seen()

        assert wait_until(seen, 90)
        assert view.of(STREAM).checkpoints["a"].state is ShardState.READING


def test_a_read_that_does_not_advance_is_given_up_and_its_partitions_are_named(
    broker: ProxiedBroker, unique: str
) -> None:
    # A lost request is sent again after this time.
    client = {"bootstrap.servers": broker.bootstrap_servers, "socket.timeout.ms": 2000}
    topic = create_topic(client, unique)
    write(client, topic, READING, READING)
    broker.proxy.lose(Api.FETCH)
    with closing(CheckpointView(client, topic)) as view:
        stuck = rf"topic {unique} .* 5 s in partition {partition_of(KEY)} \(at offset 0 of 2\)"
        with pytest.raises(Unavailable, match=stuck):
            view.require_end(EVERYTHING, 5.0)
        # The view goes on where it was once the broker answers.
        broker.proxy.rule = passing
        view.require_end(EVERYTHING, 90.0)
        assert view.of(STREAM).checkpoints["a"].state is ShardState.READING


@pytest.mark.parametrize("lost", [Api.FETCH, Api.LIST_OFFSETS])
def test_a_wait_for_kafka_ends_when_the_relay_is_stopped(broker: ProxiedBroker, lost: Api, unique: str) -> None:
    client = {"bootstrap.servers": broker.bootstrap_servers}
    topic = create_topic(client, unique)
    write(client, topic, READING)
    broker.proxy.lose(lost)
    asked = iter([False, True])
    with closing(CheckpointView(client, topic, stopping=lambda: next(asked))) as view, pytest.raises(StopRequested):
        view.require_end(EVERYTHING, 60.0)


def test_of_each_key_only_the_last_record_has_to_be_readable(client: dict[str, Any], topic: str) -> None:
    write(client, topic, b"what nobody can read", READING)
    with closing(CheckpointView(client, topic)) as view:
        view.require_end(EVERYTHING, 30.0)
        assert view.of(STREAM).checkpoints["a"].position == {"sequence": "1"}
        assert view.records == 2
    write(client, topic, b"what a newer version wrote")
    with closing(CheckpointView(client, topic)) as view:
        where = rf"{topic}\[{partition_of(KEY)}\] offset 2: this version of the relay cannot read the record"
        with pytest.raises(RelayError, match=where):
            view.require_end(EVERYTHING, 30.0)


@pytest.mark.parametrize(
    ("records", "ended"),
    [((FINISHED,), True), ((READING, FINISHED), True), ((FINISHED, None), True), ((None,), True), ((READING,), False)],
)
def test_the_end_of_a_shard_is_noticed_though_only_its_last_record_is_applied(
    client: dict[str, Any], topic: str, records: tuple[bytes | None, ...], ended: bool
) -> None:
    """I2: whether children may be opened is asked again only when this number changes."""
    write(client, topic, READING)
    with closing(CheckpointView(client, topic)) as view:
        view.require_end(EVERYTHING, 30.0)
        before = view.of(STREAM).endings
        write(client, topic, *records)
        view.require_end(EVERYTHING, 30.0)
        assert (view.of(STREAM).endings > before) is ended
        view.require_end(EVERYTHING, 30.0)
        assert view.of(STREAM).endings <= before + 1


class Clocks:
    """A monotonic clock and a wall clock that a test can advance."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped

    def wall(self) -> float:
        return time.time() + self.skipped


def poll_until(view: CheckpointView, done: Callable[[], bool]) -> None:
    def polled() -> bool | None:
        view.poll(0.05)
        return done() or None

    wait_until(polled, 60)


def test_a_view_knows_up_to_when_it_has_read_each_partition(client: dict[str, Any], topic: str) -> None:
    """I10"""
    clocks = Clocks()
    with closing(CheckpointView(client, topic, clock=clocks.monotonic, wall=clocks.wall)) as view:
        view.require_end(EVERYTHING, 30.0)
        clocks.skipped += 100.0
        skipped_to = clocks.monotonic()
        write(client, topic, READING)
        poll_until(view, lambda: min(view.freshness.read_at.values()) > skipped_to)
        assert view.of(STREAM).checkpoints["a"].state is ShardState.READING


def test_a_partition_that_cannot_be_fetched_stays_behind_while_others_advance(
    broker: ProxiedBroker, unique: str
) -> None:
    """I10: the consumer reports nothing, and every other client reaches the broker."""
    client = {"bootstrap.servers": broker.bootstrap_servers}
    topic = create_topic(client, unique)
    clocks = Clocks()
    with closing(CheckpointView(client, topic, clock=clocks.monotonic, wall=clocks.wall)) as view:
        view.require_end(EVERYTHING, 30.0)
        broker.proxy.lose(Api.FETCH)
        poll_until(view, lambda: bool(broker.proxy.lost))  # the request under way is still answered
        write(client, topic, READING)
        clocks.skipped += 100.0
        skipped_to = clocks.monotonic()
        poll_until(view, lambda: max(view.freshness.read_at.values()) > skipped_to)
        assert [p for p, at in view.freshness.read_at.items() if at < skipped_to] == [partition_of(KEY)]


def test_a_view_that_was_paused_until_kafka_forgot_a_deletion_is_not_used_any_longer() -> None:
    """I4: a reset and a pruned shard are deletions. Here Kafka forgets them at once, and the clock is advanced."""
    prompt = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
    with ProxiedBroker(settings=prompt) as broker:
        client = {"bootstrap.servers": broker.bootstrap_servers}
        topic = create_topic(
            client, "c", **{"delete.retention.ms": "1", "segment.ms": "1", "max.compaction.lag.ms": "1"}
        )
        clocks = Clocks()
        write(client, topic, READING)
        paused = {**client, "client.id": "paused", "socket.timeout.ms": 2000}
        with closing(CheckpointView(paused, topic, clock=clocks.monotonic, wall=clocks.wall)) as view:
            view.require_end(EVERYTHING, 30.0)
            broker.proxy.lose(Api.FETCH, client="paused")
            wait_until(lambda: bool(broker.proxy.lost) or None, 30)
            write(client, topic, None)
            other = next(k for k in map(STREAM.shard_key, map(str, range(9999))) if same_partition(k))

            def is_forgotten() -> bool | None:
                write(client, topic, READING, key=other)  # ends the segment before it
                return KEY not in keys_left(client, topic, partition_of(KEY)) or None

            wait_until(is_forgotten, 60)
            broker.proxy.rule = passing
            clocks.skipped += DELETIONS_KEPT
            with pytest.raises(MissedDeletions, match=rf"c\[{partition_of(KEY)}\] was not read for 3[0-9]{{3}} s"):
                view.require_end([partition_of(KEY)], 30.0)


def test_a_topic_that_is_created_again_has_to_be_read_anew(client: dict[str, Any], topic: str) -> None:
    """I3: its records are not those that were read, and another worker goes by them."""
    with closing(CheckpointView(client, topic)) as reading, closing(CheckpointView(client, topic)) as asking:
        for _ in range(3):
            write(client, topic, READING)
        for view in (reading, asking):
            view.require_end(EVERYTHING, 30.0)
        admin = AdminClient(client)
        admin.delete_topics([topic])[topic].result(120)
        wait_until(lambda: topic not in admin.list_topics(timeout=60).topics)
        create_topic(client, topic)
        asking._consumer.unassign()  # it gets no record of the new topic
        write(client, topic, READING)
        ended = rf"{topic}\[{partition_of(KEY)}\] was read up to offset 3 and now ends at "
        for view in (reading, asking):
            with pytest.raises(MissedDeletions, match=ended):
                wait_until(lambda view=view: view.poll(0.1))  # type: ignore[misc]


def same_partition(key: bytes) -> bool:
    return partition_of(key) == partition_of(KEY)


def keys_left(client: dict[str, Any], topic: str, partition: int) -> set[bytes | None]:
    """The keys of all records that a reader from the start still finds."""
    keys: set[bytes | None] = set()
    with closing(Consumer({**client, "group.id": "left", "enable.partition.eof": True})) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(120.0)) is not None and message.error() is None:
            keys.add(message.key())
    return keys

"""The copy of the checkpoints topic: what it applies, how long it waits, and when it says that it is out of date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError, Unavailable
from relay.kafka.checkpoints import CheckpointView, StopRequested, partition_of
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.lineage import Checkpoint, ShardState, StreamId
from tests.kafka.proxy import Api, ProxiedBroker, passing

pytestmark = pytest.mark.services

EVERYTHING = range(CHECKPOINT_PARTITIONS)
STREAM = StreamId("orders", "2026-01-01T00:00:00.000")
KEY = STREAM.checkpoint_key("a")
READING = Checkpoint(ShardState.READING, position={"sequence": "1"}, updated_at=1.0).to_json()
FINISHED = Checkpoint(ShardState.FINISHED, updated_at=2.0).to_json()


def create_topic(client: dict[str, Any], name: str) -> str:
    admin = AdminClient(client)
    topic = NewTopic(name, CHECKPOINT_PARTITIONS, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])[name].result(30)
    return name


@pytest.fixture
def client(kafka: Any) -> dict[str, Any]:
    return {"bootstrap.servers": kafka.bootstrap_servers}


@pytest.fixture
def topic(client: dict[str, Any], unique: str) -> str:
    return create_topic(client, f"{unique}.checkpoints")


@pytest.fixture
def broker() -> Iterator[ProxiedBroker]:
    with ProxiedBroker() as proxied:
        yield proxied


def write(client: dict[str, Any], topic: str, *values: bytes | None, key: bytes = KEY) -> None:
    producer = Producer(client)
    for value in values:
        producer.produce(topic, value, key, partition_of(key))
    assert producer.flush(30) == 0


def test_a_read_that_advances_is_never_given_up(client: dict[str, Any], topic: str) -> None:
    """Each record takes a second, and the view waits for ten seconds without one."""
    write(client, topic, *[READING] * 5000, FINISHED)
    with closing(CheckpointView(client, topic, clock=lambda: float(view.version))) as view:
        view.require_end(EVERYTHING, 10.0)
        assert view.checkpoints[STREAM]["a"].state is ShardState.FINISHED


def test_a_read_that_does_not_advance_is_given_up_and_its_partitions_are_named(broker: ProxiedBroker) -> None:
    # A lost request is sent again after this time.
    client = {"bootstrap.servers": broker.bootstrap_servers, "socket.timeout.ms": 2000}
    topic = create_topic(client, "c")
    write(client, topic, READING, READING)
    broker.proxy.lose(Api.FETCH)
    with closing(CheckpointView(client, topic)) as view:
        stuck = rf"topic c .* 0 s in partition {partition_of(KEY)} \(at offset 0 of 2\)"
        with pytest.raises(Unavailable, match=stuck):
            view.require_end(EVERYTHING, 0.4)
        # The view goes on where it was once the broker answers.
        broker.proxy.rule = passing
        view.require_end(EVERYTHING, 90.0)
        assert view.checkpoints[STREAM]["a"].state is ShardState.READING


@pytest.mark.parametrize("lost", [Api.FETCH, Api.LIST_OFFSETS])
def test_a_wait_for_kafka_ends_when_the_relay_is_stopped(broker: ProxiedBroker, lost: Api) -> None:
    client = {"bootstrap.servers": broker.bootstrap_servers}
    topic = create_topic(client, "c")
    write(client, topic, READING)
    broker.proxy.lose(lost)
    asked = iter([False, True])
    with (
        closing(CheckpointView(client, topic, stopping=lambda: next(asked))) as view,
        pytest.raises(StopRequested),
    ):
        view.require_end(EVERYTHING, 60.0)


def test_of_each_key_only_the_last_record_has_to_be_readable(client: dict[str, Any], topic: str) -> None:
    write(client, topic, b"what an older version wrote", READING)
    with closing(CheckpointView(client, topic)) as view:
        view.require_end(EVERYTHING, 30.0)
        assert view.checkpoints[STREAM]["a"].position == {"sequence": "1"}
        assert view.version == 2
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
        before = view.endings
        write(client, topic, *records)
        view.require_end(EVERYTHING, 30.0)
        assert (view.endings > before) is ended
        view.require_end(EVERYTHING, 30.0)
        assert view.endings <= before + 1

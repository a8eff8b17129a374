"""Where a reader of topics starts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.errors import ConfigError, Unavailable
from relay.kafka import group_offsets, topics
from relay.kafka.group_offsets import EARLIEST, GroupOffsets
from tests.kafka.configs import config
from tests.kafka.limited_topics import create
from tests.listening import NOBODY

pytestmark = pytest.mark.services

HOUR = 3600.0


@pytest.fixture
def relayed(kafka: Any, unique: str) -> Config:
    """The topic of ``orders`` with a record from three hours ago, one from an hour ago, and one from now."""
    relayed = config(unique, kafka.bootstrap_servers)
    create(kafka.bootstrap_servers, relayed.topic("orders"), relayed.kafka.partitions)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for hours in (3, 1, 0):
        producer.produce(relayed.topic("orders"), b"x", partition=0, timestamp=int((time.time() - hours * HOUR) * 1000))
    assert producer.flush(30) == 0
    return relayed


@pytest.fixture
def group(relayed: Config) -> Iterator[GroupOffsets]:
    found = GroupOffsets(relayed, "log", [relayed.topic("orders")])
    yield found
    found.close()


def test_a_start_may_be_a_word_a_time_or_a_time_ago(relayed: Config, group: GroupOffsets) -> None:
    an_hour_and_a_half = (datetime.now(UTC) - timedelta(hours=1.5)).isoformat()
    starts = {
        start: group.resolve(start)[relayed.topic("orders")]["0"]
        for start in ("earliest", "latest", "-2h", "-30m", "-4h", an_hour_and_a_half)
    }
    assert list(starts.values()) == [EARLIEST, 3, 1, 2, 0, 1]


def test_a_record_that_comes_while_a_time_is_looked_up_is_not_passed_over(
    relayed: Config, group: GroupOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1"""
    end_of, producer = group._end_of, Producer(relayed.kafka.client())

    def publish_and_ask(partition: TopicPartition) -> TopicPartition:
        producer.produce(partition.topic, b"x", partition=partition.partition)
        assert producer.flush(30) == 0
        return end_of(partition)

    monkeypatch.setattr(group, "_end_of", publish_and_ask)
    begun = datetime.now(UTC).isoformat()
    assert group.resolve(begun)[relayed.topic("orders")] == {"0": 3, "1": 0, "2": 0}


def test_a_start_may_be_where_a_group_stands(relayed: Config, group: GroupOffsets, unique: str) -> None:
    topic = relayed.topic("orders")
    with pytest.raises(ConfigError, match=f"--from committed: group {unique}.log has no committed offsets for {topic}"):
        group.resolve("committed")
    group.commit({topic: {"0": 2}}, ids={}, wait=True)
    expected = {"0": 2, "1": EARLIEST, "2": EARLIEST}
    assert group.resolve("committed") == {topic: expected}
    other = GroupOffsets(relayed, "copy", [topic])
    try:
        assert other.resolve(f"committed:{unique}.log") == {topic: expected}
        with pytest.raises(ConfigError, match="--from committed:nobody: group nobody has no committed offsets"):
            other.resolve("committed:nobody")
    finally:
        other.close()


def test_offsets_that_are_not_named_are_the_beginning(relayed: Config, group: GroupOffsets) -> None:
    topic = relayed.topic("orders")
    assert group.resolve(json.dumps({topic: {"1": 7}})) == {topic: {"0": EARLIEST, "1": 7, "2": EARLIEST}}


def test_the_end_is_where_a_partition_ends_now(relayed: Config, group: GroupOffsets) -> None:
    """I1: a consumer that is killed before its first batch starts there again, and not at the end of that time."""
    topic = relayed.topic("orders")
    assert group.resolve(json.dumps({topic: {"0": -1, "1": -1}})) == {topic: {"0": 3, "1": 0, "2": EARLIEST}}


@pytest.mark.parametrize("start", ["", "yesterday", "committed:", "-2", "trim_horizon", "2026-13-01", "2h"])
def test_any_other_start_is_refused_with_what_there_is(group: GroupOffsets, start: str) -> None:
    with pytest.raises(ConfigError, match=f"--from {start}: use earliest, latest, committed, committed:GROUP"):
        group.resolve(start)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("{", "write offsets as JSON"),
        ("{7}", "write offsets as JSON"),
        ('{"other": {"0": 1}}', r"does not read partition other\[0\]"),
        ('{"TOPIC": {"9": 1}}', r"does not read partition .*\[9\]"),
        ('{"TOPIC": {"0": -3}}', "-3 is not an offset"),
        ('{"TOPIC": {"0": true}}', "True is not an offset"),
    ],
)
def test_wrong_offsets_are_refused(relayed: Config, group: GroupOffsets, start: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"--from: .*{said}"):
        group.resolve(start.replace("TOPIC", relayed.topic("orders")))


def test_topics_that_no_broker_describes_are_unavailable(monkeypatch: pytest.MonkeyPatch, unique: str) -> None:
    """A ``TimeoutError`` is an ``OSError``, which Spark's runner would take for the end of the JVM."""
    monkeypatch.setattr(group_offsets, "_TIMEOUT", 1.0)
    address = NOBODY
    admin = AdminClient({"bootstrap.servers": address}, logger=topics.SILENT_LOG)
    with pytest.raises(Unavailable, match=f"cannot describe the topics at {address}"):
        group_offsets.topic_ids(admin, config(unique, address), ["orders"])


def test_a_topic_to_which_brokers_give_no_id_is_left_out(relayed: Config) -> None:
    """As before Kafka 2.8: the same for all topics, it would change once the brokers begin to give ids."""
    answers = {"new": Future[Any](), "old": Future[Any]()}
    for topic, number in ("new", Uuid(1, 2)), ("old", Uuid(0, 0)):
        answers[topic].set_result(SimpleNamespace(topic_id=number))

    class Describing:
        def describe_topics(self, *_: Any, **__: Any) -> Any:
            return answers

    admin: Any = Describing()
    assert group_offsets.topic_ids(admin, relayed, list(answers)) == {"new": str(Uuid(1, 2))}


def test_a_partition_whose_leader_is_not_known_yet_is_asked_for_again(
    relayed: Config, group: GroupOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a topic that was just created, which a real broker does for some milliseconds only."""
    answers = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE]
    consumer = group._consumer

    class Electing:
        def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> Any:
            if answers:
                raise KafkaException(KafkaError(answers.pop()))
            return consumer.get_watermark_offsets(partition, timeout=timeout)

        def __getattr__(self, name: str) -> Any:
            return getattr(consumer, name)

    monkeypatch.setattr(group, "_consumer", Electing())
    assert group.resolve("latest")[relayed.topic("orders")]["0"] == 3
    assert not answers
    answers.append(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(Unavailable, match="cannot read offsets from Kafka at"):
        group.resolve("latest")


def test_a_group_that_has_the_offsets_of_another_cache_is_told_from_its_own(relayed: Config) -> None:
    """I10: while one of them does not run, it would seem to be where the other one is."""
    first, second, unknown = (
        GroupOffsets(relayed, "cache", [relayed.topic("orders")], cache=cache)
        for cache in ("shop@redis1:6379", "shop@redis2:6379", "")
    )
    with closing(first), closing(second), closing(unknown):
        ids = first.topic_ids()
        assert [group.other_cache() for group in (first, second)] == [None, None]
        unknown.commit({relayed.topic("orders"): {"0": 1}}, ids=ids, wait=True)
        assert second.other_cache() is None
        first.commit({relayed.topic("orders"): {"0": 2}}, ids=ids, wait=True)
        assert first.other_cache() is None
        said = f"group {relayed.name}.cache has the offsets of the cache shop@redis1:6379, and shop@redis2:6379, which"
        assert str(second.other_cache()).startswith(said)
        # The id of the topic stands beside the cache.
        assert second.resolve(f"committed:{first.group}")[relayed.topic("orders")]["0"] == 2
        # So may the address of a consumer.
        first.http = "10.0.0.5:9410@host"
        first.commit({relayed.topic("orders"): {"0": 2}}, ids=ids, wait=True)
        assert str(second.other_cache()).startswith(said)
        assert second.resolve(f"committed:{first.group}")[relayed.topic("orders")]["0"] == 2

"""The lag of consumers of SQL sources in the status of a relay."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

from relay.config import Config
from relay.kafka import topics
from relay.kafka.group_offsets import GroupOffsets
from relay.kafka.unread import unread_of_all
from relay.observe.server import serve_observer
from relay.operations.status import status
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def test_the_lag_of_the_cache_counts_the_statements_that_it_has_not_read(kafka: Any, unique: str) -> None:
    source = {"shards": {"-": ["db:3306"]}, "database": "shop", "tables": ["orders"], "user": "u", "password": "p"}
    raw = {
        "name": unique,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1},
        "sources": [{"name": "legacy", "type": "mysql", **source}],
        "cache": {"url": "redis://127.0.0.1:1/0", "namespace": "n", "keys": {"orders": ["order:{id}"]}},
    }
    config = Config.model_validate(raw, by_alias=True, by_name=False)
    topics.create_missing(topics.connect(config), config, ["orders"])
    producer = Producer(config.kafka.client())
    producer.produce(config.internal("ddl"), b"{}", b"shard", 0)
    assert producer.flush(30) == 0
    with closing(GroupOffsets(config, "cache", [config.topic("orders"), *config.own_topics.values()])) as group:
        group.commit({config.topic("orders"): {"0": 0}, config.internal("gaps"): {"0": 0}}, ids={}, wait=True)
        assert [consumer.offsets_behind for consumer in status(config).consumers] == [1]
        group.commit({config.internal("ddl"): {"0": 1}}, ids={}, wait=True)
        assert [consumer.offsets_behind for consumer in status(config).consumers] == [0]


def test_the_lag_of_a_log_of_all_tables_counts_the_topics_that_it_has_begun(kafka: Any, unique: str) -> None:
    """I10: the config does not name them."""
    raw = {
        "name": unique,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1},
        "sources": [{"name": "legacy", "type": "mysql", "shards": {"-": ["db:3306"]}, "database": "shop"}],
        "log": {"path": "/nowhere"},
    }
    config = Config.model_validate(raw, by_alias=True, by_name=False)
    topics.create_missing(topics.connect(config), config, ["orders", "others"])
    producer, topic = Producer(config.kafka.client()), config.topic("orders")
    for name in ("orders", "others"):
        producer.produce(config.topic(name), b"{}", b"shard", 0)
    assert producer.flush(30) == 0
    with closing(GroupOffsets(config, "log", [topic])) as group:
        group.commit({topic: {"0": 0}}, ids={}, wait=True)
    assert [found["offsets"] for found in unread_of_all(config)] == [1]


def test_a_consumer_is_late_once_a_record_has_waited_long(
    kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: whether one runs that is on no page cannot be known. One that runs has soon read each record."""
    source = {"name": "orders", "type": "dynamodb", "table": "orders"}
    raw = {
        "name": unique,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2},
        "sources": [source],
        "log": {"path": "/nowhere", "apply_every": "60s"},
        "http": {"address": "127.0.0.1:0", "bearer": "secret"},
    }
    config = Config.model_validate(raw, by_alias=True, by_name=False)
    assert list(unread_of_all(config)) == []
    topics.create_missing(topics.connect(config), config, ["orders"])
    producer, topic, now = Producer(config.kafka.client()), config.topic("orders"), int(time.time() * 1000)
    for at in (now - 600_000, now):
        producer.produce(topic, b"{}", b"shard", 1, timestamp=at)
    assert producer.flush(30) == 0

    def seen() -> tuple[int, bool]:
        [found] = unread_of_all(config)
        assert found["consumer"] == "log"
        [consumer] = status(config).consumers
        assert (consumer.offsets_behind, consumer.is_late) == (found["offsets"], found["is_late"])
        return found["offsets"], found["is_late"]

    with closing(GroupOffsets(config, "log", [topic])) as group:
        assert list(unread_of_all(config)) == []  # it has not begun
        group.commit({topic: {"0": 0}}, ids={}, wait=True)  # the other partition is not read at all
        assert seen() == (2, True)
        with serve_observer(config) as observer:  # the page shows it, even if it asks nobody whom only Kafka names
            assert wait_until(lambda: list(observer.unread())) == list(unread_of_all(config))
        group.commit({topic: {"1": 1}}, ids={}, wait=True)
        assert seen() == (1, False)
        monkeypatch.setattr("relay.kafka.unread.time", lambda: time.time() + 40.0)
        assert seen() == (1, False)
        monkeypatch.setattr("relay.kafka.unread.time", lambda: time.time() + 200.0)
        assert seen() == (1, True)
        group.commit({topic: {"1": 2}}, ids={}, wait=True)
        assert seen() == (0, False)

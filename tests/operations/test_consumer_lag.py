"""The lag of consumers of SQL sources in the status of a relay."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

from relay.config import Config
from relay.kafka import topics
from relay.kafka.group_offsets import GroupOffsets
from relay.operations.status import status

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

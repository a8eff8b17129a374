"""The cache consumer with a memcached, with Spark and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.cache import LoadedValue, MemcachedStore, Outcome, TokenCache
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

pytestmark = pytest.mark.services


@pytest.mark.parametrize("engine", ["python", "spark"])
def test_values_in_memcached_are_invalidated(
    tmp_path: Path, kafka: Any, memcached_server: Any, unique: str, engine: str, spark_process: SparkProcess
) -> None:
    """I6"""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, memcached_server.url, spark_process)
    with MemcachedStore(memcached_server.url) as store:
        cache = TokenCache(store, topic.config.name)

        def load(value: bytes) -> Any:
            return lambda key, compare: LoadedValue(value, {}, fresher=True)

        topic.publish([change("c0", 1)])
        topic.consume("cache", checkpoint="one", engine=engine)
        for customer in ("c0", "c1"):
            cache.get_or_load(f"order:{customer}", load(b"old"))
        topic.publish([change("c0", 2)])
        topic.consume("cache", checkpoint="one", engine=engine)
        found = {customer: cache.get_or_load(f"order:{customer}", load(b"new")) for customer in ("c0", "c1")}
    assert {customer: (each.value, each.outcome) for customer, each in found.items()} == {
        "c0": (b"new", Outcome.FILLED),
        "c1": (b"old", Outcome.HIT),
    }

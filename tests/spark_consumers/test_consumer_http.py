"""What is looked at beside a consumer: the group and the store of its cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from relay.config import Config
from relay.kafka.group_offsets import GroupOffsets
from relay.observe.consumers import ConsumersObserver, ConsumerWatch
from spark_consumers import consumer_http
from tests.kafka.limited_topics import create
from tests.listening import NOBODY
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@contextmanager
def looked_at(config: Config) -> Iterator[ConsumerWatch]:
    watch, stop = ConsumerWatch("cache", [config.topic("orders")], ConsumersObserver("r").counted), Event()
    thread = Thread(target=consumer_http._look, args=(config, watch, stop))
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()


def test_two_caches_that_began_at_once_with_one_group_are_told_apart_while_they_run(
    kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: neither found offsets of the other."""
    monkeypatch.setattr(consumer_http, "_LOOK", 0.2)
    config = Config.model_validate(
        {
            "name": unique,
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1},
            "sources": [{"name": "orders", "type": "dynamodb", "table": "orders"}],
            "cache": {"url": f"redis://{NOBODY}/0", "namespace": "shop", "keys": {"orders": ["o:{id}"]}},
        }
    )
    assert config.cache is not None
    topic = config.topic("orders")
    create(kafka.bootstrap_servers, topic, 1)
    mine, other = (
        GroupOffsets(config, "cache", [topic], cache=place) for place in (config.cache.place, "shop@elsewhere:6379")
    )
    with closing(mine), closing(other), looked_at(config) as watch:
        ids = mine.topic_ids()

        def commit(group: GroupOffsets) -> None:
            group.commit({topic: {"0": 0}}, ids=ids, wait=True)

        commit(mine)
        watch.start_at({topic: {"0": 0}})
        wait_until(lambda: watch.lag())
        looked = time.monotonic()
        wait_until(lambda: watch._progress.looked_at > looked)
        assert watch.store.rival is None
        commit(other)
        wait_until(lambda: watch.store.rival)
        said = {stall.what: str(stall.error) for stall in watch.stalls()}
        assert "give this cache a `name`" in said["consumer cache: another cache commits to its group"]
        commit(mine)
        wait_until(lambda: watch.store.rival is None or None)

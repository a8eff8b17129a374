"""Consumers killed in mid-stream and started again: nothing lost, nothing doubled (I6, I7).

``RELAY_KILLS`` says how often they are killed: a start of Spark costs ten to twenty seconds of a core.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from relay.cache import RedisStore, State, entry_key, generation_key
from relay.cache.entry import decode
from relay.change import Change, Operation
from tests.faults.harness import Relay
from tests.log_lines import rows_applied
from tests.spark_consumers.spark_classes import with_settings
from tests.spark_consumers.spark_process import INTERPRETED
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

pytestmark = pytest.mark.services

KILLS = int(os.environ.get("RELAY_KILLS", "1"))
CONSUMERS = ("cache", "log", "copy")


@pytest.fixture
def topic(tmp_path: Path, kafka: Any, redis_server: Any, unique: str, monkeypatch: pytest.MonkeyPatch) -> Topic:
    # Compiling its queries takes half of the CPU of a Spark.
    for name, value in with_settings(INTERPRETED).items():
        monkeypatch.setenv(name, value)
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url)


class Published:
    """Random changes on the topic. ``newest``: the last one of each item."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._chance = random.Random(5)
        self._made = 0
        self.newest: dict[str, Change] = {}
        self.event_ids: list[str] = []

    def more(self, count: int) -> None:
        changes = [self._next() for _ in range(count)]
        self._topic.publish(changes)
        self.event_ids += [each.event_id for each in changes]

    def versions(self) -> dict[str, int]:
        """Return the version of each item that exists."""
        found = {item: last.new for item, last in self.newest.items() if last.new is not None}
        return {item: int(json.loads(image)["version"]["N"]) for item, image in found.items()}

    def _next(self) -> Change:
        self._made += 1
        customer = f"c{self._chance.randrange(60)}"
        before = self.newest.get(customer)
        if before is None or before.operation is Operation.DELETE:
            kind = Operation.INSERT
        else:
            kind = Operation.DELETE if self._chance.random() < 0.1 else Operation.UPDATE
        self.newest[customer] = change(customer, self._made, kind)
        return self.newest[customer]


def apply_in_part(published: Published, consumers: Relay, log: Path) -> None:
    """Publish more once each consumer has applied rows, and return once one has applied some of that."""

    def applied() -> Counter[str]:
        assert consumers.is_running, consumers.log()
        return rows_applied(log)

    wait_until(lambda: applied().keys() == set(CONSUMERS))
    before = applied()
    published.more(100)
    wait_until(lambda: applied() != before)


def test_consumers_killed_in_mid_stream_lose_and_double_nothing(topic: Topic, redis_server: Any, unique: str) -> None:
    """I7: kill -9 them while changes come, then let them finish; compare with what was published."""
    published, consumers = Published(topic), " ".join(CONSUMERS)
    for _ in range(KILLS):
        published.more(100)
        killed = topic.start(consumers, checkpoint="first")
        try:
            apply_in_part(published, killed, topic.log)
        finally:
            killed.kill()
    published.more(20)
    last = topic.start(consumers, "--until-caught-up", checkpoint="first")
    try:
        assert last.wait(180) == 0, last.log()
    finally:
        last.kill()

    found = topic.apply()
    assert found["copy"] == published.versions()
    assert Counter(found["log"]) == Counter(published.event_ids)

    # Each item's entry keeps out everything up to its last change.
    items = sorted(published.newest)
    store = RedisStore(redis_server.url)
    entries, _ = store.read([entry_key(unique, f"order:{item}") for item in items], generation_key(unique))
    store.close()
    for item, stored in zip(items, entries, strict=True):
        entry, last_token = decode(stored.meta) if stored else None, published.newest[item].token
        assert entry is not None, item
        assert entry.state is State.TOMBSTONE
        assert last_token is not None
        assert [token.position for token in entry.tokens.values() if token] == [last_token.position], item

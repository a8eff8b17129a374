"""Consumers killed in mid-stream and started again: nothing lost, nothing doubled (I6, I7).

``RELAY_KILLS`` says how often they are killed: a start of Spark costs ten to twenty seconds of a core.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay.cache import RedisStore, State, entry_key, generation_key
from relay.cache.entry import decode
from relay.demo.truth import check_versions, final_versions
from relay.demo.workload import cache_key
from tests.faults.consumed import CONSUMERS, add_consumers, read_back
from tests.faults.harness import Relay, Scene
from tests.log_lines import rows_applied
from tests.waiting import wait_until

pytestmark = pytest.mark.services

KILLS = int(os.environ.get("RELAY_KILLS", "1"))


@pytest.fixture
def scene(tmp_path: Path, kafka: Any, dynamodb: Any, redis_server: Any, unique: str) -> Iterator[Scene]:
    scene = Scene(tmp_path, unique, kafka.bootstrap_servers, dynamodb.endpoint_url)
    add_consumers(scene, tmp_path, redis_server.url, unique)
    yield scene
    scene.close()


def start(scene: Scene, number: int, *arguments: str) -> Relay:
    """Start all consumers, in one Spark."""
    command = [sys.executable, "-m", "relay.cli", "consume", *CONSUMERS, str(scene.path)]
    options = ["--checkpoint", str(scene.folder / "checkpoints"), *arguments]
    scene.processes.append(Relay([*command, *options], log_of(scene, number)))
    return scene.processes[-1]


def log_of(scene: Scene, number: int) -> Path:
    return scene.folder / f"consumers-{number}.log"


def all_have_rows(consumers: Relay, log: Path) -> bool:
    assert consumers.is_running, consumers.log()
    return rows_applied(log).keys() == set(CONSUMERS)


def test_consumers_killed_in_mid_stream_lose_and_double_nothing(scene: Scene, redis_server: Any, unique: str) -> None:
    """I7: kill -9 them while changes come, then let them finish; compare with the writers' record."""
    workload = scene.workload(pause=0.1)
    workload.start()
    relay = scene.relay()
    scene.wait_for_more(0)
    for number in range(KILLS):
        consumers = start(scene, number)
        wait_until(partial(all_have_rows, consumers, log_of(scene, number)))
        consumers.kill()
    history = workload.stop()
    assert relay.terminate() == 0, relay.log()
    assert scene.finish(history) == []
    last = start(scene, KILLS, "--until-caught-up")
    assert last.wait(180) == 0, last.log()

    events = scene.events()
    copied, logged = read_back(scene)
    assert check_versions("copy", final_versions(history), copied) == []
    assert Counter(logged) == Counter(event.event_id for event in events)

    # Each item's entry keeps out everything up to its last change.
    last_change = {event.item: event for event in sorted(events, key=lambda e: (e.partition, e.offset))}
    items = sorted(last_change)
    names = [entry_key(unique, cache_key(item)) for item in items]
    store = RedisStore(redis_server.url)
    found, _ = store.read(names, generation_key(unique))
    store.close()
    for item, stored in zip(items, found, strict=True):
        entry = decode(stored.meta) if stored else None
        assert entry is not None, item
        assert entry.state is State.TOMBSTONE
        positions = [token.position for token in entry.tokens.values() if token]
        assert positions == [last_change[item].position], item

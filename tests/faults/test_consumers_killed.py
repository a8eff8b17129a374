"""Consumers killed in mid-stream and started again: nothing lost, nothing doubled (I6, I7).

``RELAY_KILLS`` says how often each is killed: a start of Spark costs twenty seconds of a core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.cache import RedisStore, State, entry_key, generation_key
from relay.cache.entry import decode
from relay.demo.truth import check_versions, final_versions
from relay.demo.watching import BatchLog
from relay.demo.workload import CACHE_KEY, Item, cache_key
from tests.faults.harness import Relay, Scene
from tests.waiting import wait_until

pytestmark = pytest.mark.services

KILLS = int(os.environ.get("RELAY_KILLS", "1"))
CONSUMERS = ("cache", "log", "copy")


@pytest.fixture
def scene(tmp_path: Path, kafka: Any, dynamodb: Any, redis_server: Any, unique: str) -> Iterator[Scene]:
    scene = Scene(tmp_path, unique, kafka.bootstrap_servers, dynamodb.endpoint_url)
    raw = yaml.safe_load(scene.path.read_text())
    raw["cache"] = {"url": redis_server.url, "namespace": unique, "keys": {scene.table: [CACHE_KEY]}}
    raw["log"] = {"path": f"file://{tmp_path}/log"}
    raw["copy"] = {"url": f"delta://{tmp_path}/copy"}
    scene.path.write_text(yaml.safe_dump(raw))
    yield scene
    scene.close()


class Life:
    """One start of one consumer."""

    def __init__(self, scene: Scene, consumer: str, number: int, *arguments: str) -> None:
        self.log = scene.folder / f"{consumer}-{number}.log"
        checkpoint = str(scene.folder / "checkpoints" / consumer)
        command = ["-m", "relay.cli", "consume", consumer, str(scene.path), "--checkpoint", checkpoint, *arguments]
        self.process = Relay([sys.executable, *command], self.log)
        scene.processes.append(self.process)
        self._batches = BatchLog(self.log, scene.config.topic(scene.table))

    def wait_for_rows(self) -> None:
        def rows() -> bool | None:
            assert self.process.is_running, self.process.log()
            return self._batches.refresh().rows > 0 or None

        wait_until(rows, 120)


def read_back(scene: Scene) -> tuple[dict[Item, int], list[str]]:
    """Read copy and log in a process of their own: py4j leaves its sockets to the collector, which is a warning."""
    script = f"""
import json, pathlib, sys
from relay.config import load
from relay.demo.tables import read_copy, read_log, spark

config = load(pathlib.Path({str(scene.path)!r}))
with spark() as session:
    copied, logged = read_copy(session, config, {scene.table!r}), read_log(session, config)
json.dump([[[*item, version] for item, version in copied.items()], logged], sys.stdout)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=600, check=True)
    copied, logged = json.loads(answer.stdout)
    return {(customer, order): version for customer, order, version in copied}, logged


def test_consumers_killed_in_mid_stream_lose_and_double_nothing(scene: Scene, redis_server: Any, unique: str) -> None:
    """I7: kill -9 each consumer while changes come, then let it finish; compare with the writers' record."""
    workload = scene.workload(pause=0.1)
    workload.start()
    relay = scene.relay()
    scene.wait_for_more(0)
    for number in range(KILLS):
        lives = [Life(scene, consumer, number) for consumer in CONSUMERS]
        for life in lives:
            life.wait_for_rows()
            life.process.kill()
    history = workload.stop()
    assert relay.terminate() == 0, relay.log()
    assert scene.finish(history) == []
    for last in [Life(scene, consumer, 9, "--until-caught-up") for consumer in CONSUMERS]:
        assert last.process.wait(180) == 0, last.process.log()

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

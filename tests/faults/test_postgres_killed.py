"""A copy in PostgreSQL while the server and the consumer are killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.demo.truth import check_versions, final_versions
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, version_in
from relay.services.postgres import PostgresServer
from tests.faults.harness import Relay, Scene
from tests.waiting import wait_until

pytestmark = pytest.mark.services

KILLS = int(os.environ.get("RELAY_KILLS", "2"))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as found:
        yield found


@pytest.fixture
def scene(tmp_path: Path, kafka: Any, dynamodb: Any, server: PostgresServer, unique: str) -> Iterator[Scene]:
    scene = Scene(tmp_path, unique, kafka.bootstrap_servers, dynamodb.endpoint_url)
    raw = yaml.safe_load(scene.path.read_text())
    raw["copy"] = {"url": server.url}
    scene.path.write_text(yaml.safe_dump(raw))
    yield scene
    scene.close()


def start(scene: Scene, number: int, *arguments: str) -> Relay:
    command = ["-m", "relay.cli", "consume", "copy", str(scene.path), "--checkpoint", str(scene.folder / "copy")]
    scene.processes.append(Relay([sys.executable, *command, *arguments], scene.folder / f"copy-{number}.log"))
    return scene.processes[-1]


def test_the_copy_ends_right_though_its_server_and_its_consumer_are_killed(
    scene: Scene, server: PostgresServer
) -> None:
    """I7: also a commit whose answer is lost is applied once."""
    table = f'"{scene.config.sources[0].name}"."{scene.table}"'

    def newest() -> list[tuple[Any, ...]]:
        return server.execute(f"SELECT max(_relay_updated_at) FROM {table}")

    workload = scene.workload(pause=0.05)
    workload.start()
    relay = scene.relay()
    scene.wait_for_more(0)
    consumer = start(scene, 0)
    wait_until(lambda: '"batch"' in consumer.log() or None, 120)
    for _ in range(KILLS):
        server.kill()
        server.restart()
        before = newest()
        wait_until(partial(lambda last: newest() != last or None, before), 120)  # the consumer goes on by itself
        assert consumer.is_running, consumer.log()
    consumer.kill()
    history = workload.stop()
    assert relay.terminate() == 0, relay.log()
    assert scene.finish(history) == []
    last = start(scene, 1, "--until-caught-up")
    assert last.wait(180) == 0, last.log()

    rows = server.execute(f"SELECT {HASH_KEY}, {RANGE_KEY}::text, item::text FROM {table} WHERE NOT _relay_deleted")
    copied: dict[Item, int] = {(customer, order): version_in(item) for customer, order, item in rows}
    assert check_versions("copy", final_versions(history), copied) == []

"""A version takes over from the one before it, and hands back: I1, I2, I3, I6, I7.

It goes on from what the other left: checkpoints, layouts and schemas on Kafka, entries of the cache, checkpoints of
Spark and tables of Delta.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.demo.truth import check_topic, check_versions, final_versions
from relay.demo.workload import cache_key
from relay.services.mariadb import MariaDB
from relay.services.sql_server import PASSWORD, USER
from tests.faults.audited import ITEMS, TABLE, audit, history, opened, problems
from tests.faults.consumed import CONSUMERS, add_consumers, read_back
from tests.faults.harness import Relay, Scene
from tests.faults.versions import THIS_VERSION, Version, previous_version
from tests.faults.world import World
from tests.waiting import patience, wait_until

pytestmark = pytest.mark.services

DATABASE = "shop"
# Reads cache keys through a cache, and prints whether each was a hit, and the version of its item.
_READ = """
import json, pathlib, sys
import boto3
from relay.cache import DynamoDBLoader, RedisStore, TokenCache
from relay.config import load
from relay.demo.workload import HASH_KEY, RANGE_KEY, item_of, version_in

config, keys = load(pathlib.Path(sys.argv[1])), json.load(sys.stdin)
source = config.sources[0]
client = boto3.client("dynamodb", endpoint_url=source.endpoint_url, region_name=source.region)

def primary_key(key):
    customer, order = item_of(key)
    return {HASH_KEY: {"S": customer}, RANGE_KEY: {"N": order}}

store = RedisStore(config.cache.url)
cache = TokenCache(store, config.cache.namespace, tombstone_ttl=config.cache.tombstone_ttl)
loader = DynamoDBLoader(client, source.table, primary_key)
found = {key: cache.get_or_load(key, loader.load) for key in keys}
print(json.dumps({key: [each.outcome, each.value and version_in(each.value)] for key, each in found.items()}))
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return previous_version(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def consumed(scene: Scene, tmp_path: Path, redis_server: Any, unique: str) -> Scene:
    add_consumers(scene, tmp_path, redis_server.url, unique)
    return scene


def consume(scene: Scene, version: Version, number: int) -> None:
    """Let the consumers of a version apply what is on the topic."""
    checkpoint = ["--checkpoint", str(scene.folder / "checkpoints"), "--until-caught-up"]
    command = version.relay("consume", *CONSUMERS, str(scene.path), *checkpoint)
    process = Relay(command, scene.folder / f"consumers-{number}.log")
    scene.processes.append(process)
    assert process.wait(240) == 0, process.log()


def read(scene: Scene, version: Version, keys: list[str]) -> dict[str, tuple[str, int | None]]:
    """Read through the cache by the code of a version: by key the outcome, and the item's version."""
    command = version.python("-c", _READ, str(scene.path))
    done = subprocess.run(
        command, input=json.dumps(keys), capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert done.returncode == 0, done.stderr
    return {key: (outcome, found) for key, (outcome, found) in json.loads(done.stdout).items()}


def test_the_consumers_and_the_relay_go_on_where_another_version_stopped(consumed: Scene, previous: Version) -> None:
    """I1, I6, I7: the previous version, this one, and back, killed and stopped in mid-stream."""
    scene = consumed
    workload = scene.workload(pause=0.05)
    keys = [cache_key(item) for item in workload.items]
    workload.start()
    seen = 0
    for number, version in enumerate([previous, THIS_VERSION, previous]):
        relay = scene.relay(version=version)
        seen = scene.wait_for_more(scene.wait_for_more(seen))
        if number == 1:
            relay.kill()
        else:
            assert relay.terminate() == 0, relay.log()
        if number == 2:
            truth = workload.stop()
            last = scene.relay("--until-caught-up", version=version)
            assert last.wait(120) == 0, last.log()
        consume(scene, version, number)
        read(scene, version, keys)  # stored in the cache, for the next version to invalidate

    events = scene.events()
    assert check_topic(truth, events) == []
    copied, logged = read_back(scene)
    assert check_versions("copy", final_versions(truth), copied) == []
    assert Counter(logged) == Counter(event.event_id for event in events)
    for version in (THIS_VERSION, previous):
        found = read(scene, version, keys)
        assert {outcome for outcome, _ in found.values()} == {"hit"}
        expected = {cache_key(item): number for item, number in final_versions(truth).items()}
        assert {key: number for key, (_, number) in found.items() if number is not None} == expected


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[World]:
    with MariaDB() as server:
        server.execute(f"create database {DATABASE}")
        server.execute(ITEMS.replace(TABLE, f"{DATABASE}.{TABLE}", 1))
        account = {"database": DATABASE, "user": USER, "password": PASSWORD}
        world = World(
            tmp_path,
            kafka.bootstrap_servers,
            unique,
            20,
            connect=lambda: opened(server.connect(autocommit=False, defer_connect=True)),
            place=lambda _: DATABASE,
            source={"name": "legacy", "type": "mysql", **account, "shards": {"-": [server.address]}},
        )
        audit(world.connect, [DATABASE])
        yield world
        world.close()


def test_positions_and_layouts_of_mariadb_are_read_by_another_version(world: World, previous: Version) -> None:
    """I1, I2, I3, I8: columns are added while nobody reads, so that a version decodes rows by layouts of the other."""
    relay = world.start(version=previous)
    wait_until(lambda: "to read shard" in relay.log() or None, 60)
    world.start_writers()
    seen = 0
    for number, version in enumerate([THIS_VERSION, previous, THIS_VERSION]):
        seen = wait_until(lambda before=seen: found if (found := len(world.changes())) > before else None, 60)  # type: ignore[misc]
        relay.kill()
        with world.paused(), closing(world.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"alter table {DATABASE}.{TABLE} add column extra{number} int default 7")
        relay = world.start(version=version)
        wait_until(lambda log=relay.log: "took over" in log() or None, 60)  # type: ignore[misc]
    world.stop_writers()
    assert relay.terminate() == 0, relay.log()
    for version in (previous, THIS_VERSION):
        last = world.start("--until-caught-up", version=version)
        assert last.wait(120) == 0, last.log()
    truth = history(world.connect, [DATABASE])
    changes = world.changes()
    assert problems(truth, changes, ("customer", "line")) == []
    columns = [frozenset(each["new"] or each["old"]) for *_, each in changes]
    assert {f"extra{number}" for number in range(3)} <= max(columns, key=len)


def test_workers_of_two_versions_share_the_work_while_one_replaces_the_other(scene: Scene, previous: Version) -> None:
    """I1, I2, I3: as an upgrade replaces one worker after the other, and as it is undone."""
    workload = scene.workload(pause=0.05)
    workload.start()
    seen = 0
    first = scene.relay(version=previous)
    for version in (THIS_VERSION, previous, THIS_VERSION):
        seen = scene.wait_for_more(seen)
        second = scene.relay(version=version)
        wait_until(lambda log=second.log: "took over" in log() or None, 60)  # type: ignore[misc]
        for _ in range(3):
            seen = scene.wait_for_more(seen)
        assert first.terminate() == 0, first.log()
        seen = scene.wait_for_more(seen)
        assert second.is_running, second.log()
        first = second
    history = workload.stop()
    assert first.terminate() == 0, first.log()
    assert scene.finish(history) == []

"""A relay goes on from a mirror of its topics, whose partitions end anywhere, since its cluster is gone: I1, I2.

The times of the scripted stream are an hour apart, so that a start is not trivially before everything.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from relay.config import load
from relay.config.value_types import iso_time
from relay.kafka.keys import partition
from relay.services.kafka import KafkaBroker
from tests.command_line import relay, run_until_caught_up
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.mirrored import Keep, mirror
from tests.faults.scripted_relay import SplittingTable, published_versions, write_config
from tests.in_memory import folder_in_memory

pytestmark = pytest.mark.services

HOUR = 3600
BATCHES = 6


class Lost:
    """A relay whose cluster is gone, and what it had read: batches of an hour each, in shards that split."""

    def __init__(self, folder: Path, stream: ScriptedStream, home: str, away: str, name: str) -> None:
        self.folder, self.stream, self.away, self.name = folder, stream, away, name
        self.table = SplittingTable(stream, seed=3)
        self.began = int(time.time()) - (BATCHES + 1) * HOUR
        (folder / "home").mkdir()
        self.home = write_config(folder / "home", stream, home, name)
        # When each batch was published, by the clock of the relay.
        self.published: list[float] = []
        for batch in range(BATCHES):
            self.write(batch)
            self.relay()

    def relay(self) -> None:
        run_until_caught_up(self.home)
        self.published.append(time.time())
        time.sleep(1.0)

    def write_to_one_partition(self, batch: int) -> None:
        """Write an item of each shard, all of which are in one partition."""
        created, partitions = self.began + batch * HOUR, load(self.home).kafka.partitions
        self.stream.set_clock(lambda: created + 90.0)
        for shard in self.table.leaves:
            names = (f"{shard}-{number}" for number in count())
            item = next(name for name in names if partition(name.encode(), partitions) == 0)
            versions = self.table.histories[item]
            versions.append(len(versions) + 1)
            self.stream.put(shard, item, versions[-1], created=created, old=versions[-1] - 1 or None)

    def write(self, batch: int) -> None:
        created = self.began + batch * HOUR
        self.stream.set_clock(lambda: created + 90.0)
        self.table.write(40, created)
        self.table.split()
        self.table.write(20, created + 1)

    def config(self, name: str, **source: Any) -> Path:
        """Write a config of the new cluster."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return write_config(folder, self.stream, self.away, name, **source)

    def mirror(self, name: str, keep: Keep) -> Path:
        """Mirror the topics under ``name``; return the config that reads the mirror."""
        path = self.config(name)
        mirror(load(self.home), load(path), [TABLE], keep)
        return path

    def require_whole(self, mirrored: Path, path: Path) -> int:
        """Check that nothing is lost or in another order, and return how many changes the second config has again."""
        (before, first), (after, second) = published_versions(mirrored), published_versions(path)
        assert {*first.values(), *second.values()} == {1}
        for item, versions in self.table.histories.items():
            assert before[item] == versions[: len(before[item])]
            assert after[item] == versions[len(versions) - len(after[item]) :]
            assert len(before[item]) + len(after[item]) >= len(versions)
        return len({*first} & {*second})


@pytest.fixture(scope="module")
def away() -> Iterator[str]:
    with folder_in_memory() as folder, KafkaBroker(folder) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def lost(tmp_path: Path, stream: ScriptedStream, kafka: Any, away: str, unique: str) -> Lost:
    return Lost(tmp_path, stream, kafka.bootstrap_servers, away, unique)


def start_of(mirrored: Path, *options: str, code: int = 0) -> str:
    answer = relay("status", mirrored, "--mirrored", "s", *options)
    assert answer.exit_code == code, (answer.output, answer.exception)
    return (answer.stderr if code else answer.stdout).strip()


def of_topic(share: Keep) -> Keep:
    """Cut off the topic of changes and the checkpoints, and nothing of the schemas."""
    return lambda topic, found: len(found) if topic.endswith(".schemas") else share(topic, found)


def is_ahead(mirrored: Path, lost: Lost) -> bool:
    """Whether a checkpoint of the mirror covers a change that the mirror lacks."""
    there, shards = published_versions(mirrored)[1], json.loads(relay("status", mirrored, "--json", "--all").stdout)
    missing = {e["event_id"]: e for e in _changes(lost.home) if e["event_id"] not in there}
    (source,) = shards["sources"]
    reached = {each["shard"]: int(each["position"]["sequence"]) for each in source["shards"] if each["position"]}
    places = [(each["token"]["shard"].rpartition("/")[2], each["token"]["position"]) for each in missing.values()]
    return any(int(position.rpartition("/")[2]) <= reached.get(shard, 0) for shard, position in places)


def _changes(path: Path) -> list[dict[str, Any]]:
    answer = relay("tail", path, TABLE, "--from-beginning", "--exit-at-end", "--json")
    return [json.loads(line)["value"] for line in answer.stdout.splitlines()]


def test_a_start_by_the_changes_of_a_mirror_loses_nothing_wherever_it_is_cut_off(lost: Lost) -> None:
    """I1, I2: checkpoints are ahead of changes or behind them, and each partition ends elsewhere."""
    seen, later = 0, set[str]()
    for seed in range(4):
        chance = random.Random(seed)
        least = chance.uniform(0.3, 0.9)

        def keep(topic: str, found: list[Any]) -> int:
            if topic.endswith(".checkpoints") and seed % 2:  # noqa: B023
                return len(found)
            return max(1, int(chance.uniform(least, 1.0) * len(found)))  # noqa: B023

        mirrored = lost.mirror(f"m{seed}.{lost.name}", of_topic(keep))
        seen += is_ahead(mirrored, lost)
        start = start_of(mirrored)
        later.add(start)
        path = lost.config(f"{lost.name}-{seed}", start=start)
        run_until_caught_up(path)
        lost.require_whole(mirrored, path)
    assert seen
    assert max(later) > iso_time(lost.began + HOUR), later


def test_a_quiet_partition_holds_the_start_back_unless_a_person_knows_how_far_the_mirror_is_whole(lost: Lost) -> None:
    """I1: what it lacks may be as old as the newest change that it has."""
    for batch in (BATCHES, BATCHES + 1, BATCHES + 2):
        lost.write_to_one_partition(batch)
        lost.relay()
    whole = lost.published[-2] + 0.5
    mirrored = lost.mirror(f"m.{lost.name}", lambda _, found: len(found))
    start, later = (
        start_of(mirrored, "--whole-until", iso_time(until, "milliseconds"))
        for until in (whole, lost.published[-1] + 0.5)
    )
    assert iso_time(lost.began) < start_of(mirrored) < start < later, (lost.began, start, later)
    assert later < iso_time(lost.began + (BATCHES + 2) * HOUR)
    path = lost.config(f"{lost.name}-w", start=start)
    run_until_caught_up(path)
    lost.require_whole(mirrored, path)
    empty = lost.mirror(f"e.{lost.name}", of_topic(lambda *_: 0))
    assert "--whole-until" in start_of(empty, code=1)
    assert "--whole-until latest" in start_of(empty, "--whole-until", "latest", code=2)
    assert "before --whole-until" in start_of(empty, "--whole-until", iso_time(whole), code=1)
    assert "is in the future" in start_of(empty, "--whole-until", iso_time(time.time() + HOUR), code=2)
    assert "omit --token and --json" in start_of(empty, "--json", code=2)
    nowhere = lost.config(f"nowhere.{lost.name}")
    assert f"none of its topics exist (nowhere.{lost.name}.{TABLE})" in start_of(nowhere, code=2)


def test_a_mirror_with_the_same_names_is_refused_until_its_sources_are_reset(lost: Lost) -> None:
    """I1: the checkpoints of the mirror cover changes that it lacks."""
    path = lost.mirror(
        lost.name, of_topic(lambda topic, found: len(found) - (len(found) > 3 and topic.endswith(TABLE)))
    )
    assert is_ahead(path, lost)
    before = published_versions(path)
    said = run_until_caught_up(path, expected_code=3)
    assert "to another Kafka cluster" in said
    assert f"`relay status {path} --mirrored s`" in said
    assert published_versions(path) == before
    done = relay("reset", path, "s", "--to", start_of(path))
    assert done.exit_code == 0, done.output
    lost.write(BATCHES)
    run_until_caught_up(path)
    histories, _ = published_versions(path)
    for item, versions in lost.table.histories.items():
        assert list(dict.fromkeys(histories[item])) == versions
    run_until_caught_up(path)

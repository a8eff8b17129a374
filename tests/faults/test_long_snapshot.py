"""A snapshot that takes longer than a stream keeps its records, which are read, and trimmed, beside it (I1, I3, I7)."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.avro.registry import open_schemas
from relay.change import MARK, Operation
from relay.config import load
from relay.dynamodb.table_snapshots import MARGIN
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import TABLE, ScriptedStream, full
from tests.faults.copied import Seen, copied, seen
from tests.faults.harness import Relay
from tests.faults.scripted_relay import tail_topic, write_config
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services

HOUR = 3600
ITEMS = 120


class World:
    """A table, the relays that read it, and a clock for both that jumps. Segments are read one page at a time."""

    def __init__(self, folder: Path, stream: ScriptedStream, servers: str, name: str) -> None:
        self.stream = stream
        self.folder = folder
        self.path = write_config(folder, stream, servers, name, snapshot="initial", on_gap="skip")
        self.gaps = f"{name}.gaps"
        self.random = random.Random(14)
        self.writes: dict[str, list[int | None]] = defaultdict(list)
        self.leaves = {"root": [f"item-{number}" for number in range(ITEMS)]}
        self.pages_allowed = 0.0
        self.pages = 0
        self.ahead = 0
        self.pass_hours(0)
        stream.shard("root")
        stream.before = self._hold_scans
        self.relays: list[Relay] = []

    def now(self) -> float:
        return time.time() + self.ahead

    def pass_hours(self, hours: int) -> None:
        """Let time pass, in which iterators expire and records older than a day are trimmed."""
        self.ahead += hours * HOUR
        self.stream.set_clock(self.ahead)
        file = self.folder / "ahead.new"
        file.write_text(str(self.ahead))
        os.replace(file, self.folder / "ahead")
        self.stream.expire_iterators()
        for shard in self.stream.shards.values():
            times = [record["dynamodb"]["ApproximateCreationDateTime"] for record in shard.records]
            self.stream.trim(shard.id, sum(created < self.now() - 24 * HOUR for created in times))

    def start(self, *options: str) -> Relay:
        command = [sys.executable, "-m", "tests.faults.clocked_relay", str(self.folder / "ahead"), str(self.path)]
        relay = Relay([*command, *options], self.folder / f"relay-{len(self.relays)}.log")
        self.relays.append(relay)
        return relay

    def write(self, item: str, *, delete: bool = False) -> None:
        shard = next(shard for shard, items in self.leaves.items() if item in items)
        before = self.writes[item][-1] if self.writes[item] else None
        if delete and before is None:
            return
        version = 1 + sum(version is not None for version in self.writes[item])
        more: dict[str, Any] = {"eventName": "REMOVE"} if delete else {}
        self.stream.put(shard, item, version, old=before, created=int(self.now()), **more)
        self.writes[item].append(None if delete else version)

    def split(self) -> None:
        shard = self.random.choice(list(self.leaves))
        items = self.leaves.pop(shard)
        left, right = f"{shard}0", f"{shard}1"
        self.stream.split(shard, left, right)
        self.leaves |= {left: items[::2], right: items[1::2]}

    def replace_stream(self) -> None:
        """Disable the stream and enable it again: the new one has shards of its own."""
        self.stream.replace("2026-01-02T00:00:00.000")
        items = [item for items in self.leaves.values() for item in items]
        self.stream.shard("again")
        self.leaves = {"again": items}

    def pass_six_hours(self) -> None:
        """Write beside the snapshot, which reads one page, and wait until both have arrived."""
        self.pass_hours(6)
        for item in self.random.sample(list(self.writes), 15):
            self.write(item, delete=self.random.random() < 0.4)
        self.pages_allowed = self.pages + 1
        self.wait_until_published()
        wait_until(lambda: self.pages >= self.pages_allowed or None, 60)

    def start_with_pages(self, pages: int) -> Relay:
        """Start a relay, and wait until it has read the stream to its head, and ``pages`` of the snapshot."""
        for item in self.leaves["root"]:
            self.write(item)
        self.pass_hours(1)
        self.pages_allowed = pages
        relay = self.start()
        relay.wait_for("reading shard")  # its topics exist
        self.wait_until_published()
        wait_until(lambda: self.pages >= pages or None, 60)
        return relay

    def finish(self) -> list[Seen]:
        """Let the snapshot end, and return everything on the topic."""
        self.pages_allowed = float("inf")
        last = self.start("--until-caught-up")
        assert last.wait(120) == 0, last.log()
        return self.seen()

    def check(self, seen: list[Seen]) -> None:
        """Check that each write is on the topic once, in its order, and that a copy of it equals the table."""
        for item, versions in self.writes.items():
            assert [each.new for each in seen if each.item == item and each.token is not None] == versions
        assert copied(seen) == {item: int(row["version"]["N"]) for item, row in self.stream.items.items()}

    def seen(self) -> list[Seen]:
        """Return everything on the topic, each partition in its order."""
        config = load(self.path)
        changes = read_changes(config.kafka.client(), config.topic(TABLE), open_schemas(config))
        return [_seen(partition, change) for partition, _, change in sorted(changes, key=lambda found: found[:2])]

    def wait_until_published(self) -> None:
        """Wait until the stream was read to its head."""
        written = sum(map(len, self.writes.values()))
        wait_until(lambda: sum(each.token is not None for each in self.seen()) == written or None, 60)

    def _hold_scans(self, operation: str) -> None:
        if operation == "Scan":
            if self.pages >= self.pages_allowed:
                raise Refused("ProvisionedThroughputExceededException")
            self.pages += 1


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[World]:
    with ScriptedStream(page=5) as stream:
        world = World(tmp_path, stream, kafka.bootstrap_servers, unique)
        yield world
        for relay in world.relays:
            relay.kill()


def test_a_snapshot_that_takes_more_than_a_day_loses_nothing_and_undoes_nothing(world: World) -> None:
    relay = world.start_with_pages(2)
    for step in range(5):
        world.pass_six_hours()
        if step in (0, 2):
            world.split()
        if step in (1, 3):
            relay.kill()
            relay = world.start()
    root = world.stream.shards[full("root")]
    assert root.trimmed == len(root.records)
    assert relay.is_running, relay.log()
    relay.kill()
    seen = world.finish()
    world.check(seen)
    assert tail_topic(world.path, world.gaps) == []
    assert len({each.event_id for each in seen if each.item is not None}) == sum(e.item is not None for e in seen)
    begin = _check_marks(seen)
    rows = [each for each in seen if each.item is not None and each.operation is Operation.READ]
    # Each row has the time of its own page, though the snapshot began 30 hours before the last.
    assert all(each.snapshot and begin <= each.snapshot.as_of <= each.read_at - MARGIN for each in rows)
    assert max(each.snapshot.as_of for each in rows if each.snapshot) > begin + 29 * HOUR


def test_a_stream_that_replaces_another_during_a_snapshot_is_read_before_its_records_expire(world: World) -> None:
    """The snapshot begins again: what it has read so far does not cover the writes between the streams."""
    relay = world.start_with_pages(2)
    world.pass_six_hours()
    world.replace_stream()
    for _ in range(5):
        world.pass_six_hours()
    assert world.stream.shards[full("again")].trimmed > 0
    assert relay.is_running, relay.log()
    relay.kill()
    world.check(world.finish())
    assert [gap["value"]["reason"] for gap in tail_topic(world.path, world.gaps)] == ["new stream"]


def _check_marks(seen: list[Seen]) -> int:
    """Check that each partition has one snapshot, between two marks; return its ``as_of``."""
    times = set()
    for partition in {each.partition for each in seen}:
        of_snapshot = [e for e in seen if e.partition == partition and e.snapshot is not None]
        kinds = [each.attributes.get(MARK) for each in of_snapshot]
        assert kinds == ["begin", *[None] * (len(kinds) - 2), "end"]
        times |= {each.snapshot.as_of for each in of_snapshot if each.item is None and each.snapshot is not None}
        assert len({each.snapshot.id for each in of_snapshot if each.snapshot is not None}) == 1
    [begin] = times
    return begin


def _seen(partition: int, change: Mapping[str, Any]) -> Seen:
    return seen(
        partition,
        change,
        item=change["key"]["id"] if change["key"] else None,
        new=int(orjson.loads(change["new"])["version"]["N"]) if change["new"] else None,
    )

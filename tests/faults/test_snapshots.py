"""Snapshots through real relays and a real broker: complete, once, beside the stream, and as a repair (I1, I3, I9)."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.avro.registry import open_schemas
from relay.config import load
from relay.operations.snapshot import request
from relay.operations.status import status
from tests.command_line import run_until_caught_up
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.harness import Relay
from tests.faults.scripted_relay import start_relay, tail_topic, write_config
from tests.topic_changes import read_changes

pytestmark = pytest.mark.services

ITEMS = 60


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    with ScriptedStream(page=7) as scripted:
        scripted.shard("root")
        for number in range(ITEMS):
            scripted.put("root", f"item-{number}", 1, created=long_ago())
        yield scripted


def long_ago() -> int:
    """A time that a snapshot does not have to wait for, and that the stream still has."""
    return int(time.time()) - 3600


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[int, dict[str, Any]]]]:
    """Return the READ rows, and the marks with their partitions, in the order of partition and offset."""
    config = load(path)
    rows, marks = [], []
    changes = read_changes(config.kafka.client(), config.topic(TABLE), open_schemas(config))
    for partition, _, change in sorted(changes, key=lambda found: found[:2]):
        if change["operation"] == "READ" and change["key"] is None:
            marks.append((partition, change))
        elif change["operation"] == "READ":
            assert not marks or marks[-1][0] != partition or marks[-1][1]["attributes"]["snapshot"] == "begin"
            rows.append(change)
    return rows, marks


@pytest.mark.faults("kills anywhere: the last test kills at commits, test_long_snapshot.py in an initial snapshot")
def test_a_snapshot_holds_every_item_once_between_its_marks_though_the_relay_is_killed(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I1, I3"""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique, snapshot="initial")
    scans = 0

    def slowly(operation: str) -> None:
        nonlocal scans
        if operation == "Scan":
            scans += 1
            if scans % 3 == 0:
                raise Refused("ProvisionedThroughputExceededException")

    stream.before = slowly
    for _ in range(3):
        relay = start_relay(path)
        before = scans
        while scans < before + 3 and relay.is_running:
            time.sleep(0.01)
        relay.kill()
    run_until_caught_up(path)
    run_until_caught_up(path)
    rows, marks = read(path)
    assert Counter(row["key"]["id"] for row in rows) == {f"item-{number}": 1 for number in range(ITEMS)}
    partitions = load(path).kafka.partitions
    assert [(where, change["attributes"]["snapshot"]) for where, change in marks] == [
        (where, kind) for where in range(partitions) for kind in ("begin", "end")
    ]
    [begin] = {change["snapshot"]["as_of"] for _, change in marks}
    assert all(begin <= row["snapshot"]["as_of"] <= time.time() - 60 for row in rows)
    assert all(row["token"] is None and orjson.loads(row["new"])["version"]["N"] == "1" for row in rows)


def test_a_loss_under_resnapshot_is_followed_by_one_snapshot_of_what_is_left(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I9: rows that were deleted in the loss are missing between its marks."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique, on_gap="resnapshot")
    run_until_caught_up(path)
    assert read(path) == ([], [])
    stream.put("root", "item-0", 1, old=1, created=long_ago(), eventName="REMOVE")
    stream.put("root", "item-1", 2, old=1, created=long_ago())
    stream.trim("root", ITEMS + 2)
    run_until_caught_up(path)
    run_until_caught_up(path)
    assert [gap["value"]["reason"] for gap in tail_topic(path, f"{unique}.gaps")] == ["trimmed"]
    rows, marks = read(path)
    assert sorted(row["key"]["id"] for row in rows) == sorted(f"item-{number}" for number in range(1, ITEMS))
    [changed] = [row for row in rows if row["key"]["id"] == "item-1"]
    assert orjson.loads(changed["new"])["version"]["N"] == "2"
    assert len(marks) == 2 * load(path).kafka.partitions


@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("before_commit", 3),
        pytest.param("after_commit", 2, marks=pytest.mark.faults("another step of the same commits")),
    ],
)
def test_a_requested_snapshot_that_is_killed_at_each_of_its_commits_is_marked_and_read_once(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str, step: str, number: int
) -> None:
    """I1, I3: between its request and its beginning, before its first page, after its last one, and after its end."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique, transaction_timeout=1000)
    run_until_caught_up(path)
    config = load(path)
    request(config, "s", [])

    def is_served() -> bool:
        [found] = status(config).to_json()["sources"]
        return bool(found["snapshot"]) and found["snapshot"]["state"] == "finished" and not found["snapshot_requests"]

    kills = 0
    while not is_served():
        relay = Relay(
            [sys.executable, "-m", "tests.faults.killed_worker", str(path), step, str(number)],
            tmp_path / f"killed-{kills}.log",
        )
        assert relay.wait(120) == -signal.SIGKILL, relay.log()
        kills += 1
    assert kills > 3
    run_until_caught_up(path)
    rows, marks = read(path)
    assert Counter(row["key"]["id"] for row in rows) == {f"item-{item}": 1 for item in range(ITEMS)}
    assert [(where, change["attributes"]["snapshot"]) for where, change in marks] == [
        (where, kind) for where in range(config.kafka.partitions) for kind in ("begin", "end")
    ]

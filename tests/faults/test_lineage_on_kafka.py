"""Whole lineages of a scripted stream, through real relays and a real broker: I1, I2, I3, I9."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.dynamodb.head import QUIET_PAGES
from tests.command_line import run_until_caught_up
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream, full
from tests.faults.scripted_relay import SplittingTable, published_versions, start_relay, tail_topic, write_config

pytestmark = pytest.mark.services


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    with ScriptedStream(page=7, listing_page=3) as scripted:
        yield scripted


@pytest.fixture
def config(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> Path:
    return write_config(tmp_path, stream, kafka.bootstrap_servers, unique)


def test_every_item_keeps_its_order_across_splits(config: Path, stream: ScriptedStream) -> None:
    """I2: parents before children, each change once."""
    table = SplittingTable(stream, seed=1)
    for _ in range(5):
        table.write(40)
        table.split()
    table.write(40)
    run_until_caught_up(config)
    histories, ids = published_versions(config)
    assert histories == table.histories
    assert set(ids.values()) == {1}


@pytest.mark.faults("the kills of test_random_scenarios.py, of which many come while shards split")
def test_kills_while_shards_split_lose_and_disorder_nothing(config: Path, stream: ScriptedStream) -> None:
    """I1, I2, I3: kill -9 in mid-stream, with the lineage growing meanwhile."""
    table = SplittingTable(stream, seed=2)
    table.write(60)
    for _ in range(4):
        relay = start_relay(config)
        for _ in range(4):
            time.sleep(0.8)
            table.write(20)
        table.split()
        assert relay.is_running, relay.log()
        relay.kill()
    run_until_caught_up(config)
    histories, ids = published_versions(config)
    assert histories == table.histories
    assert set(ids.values()) == {1}


def test_lost_changes_stop_the_relay_until_they_are_accepted(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I9: a gap under `fail` ends with exit code 1 and loses nothing more; under `skip` it is recorded once."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    table = SplittingTable(stream, seed=3)
    table.write(20)
    run_until_caught_up(path)
    table.write(20)
    stream.trim("root", 30)
    assert "changes are missing" in run_until_caught_up(path, expected_code=1)
    run_until_caught_up(path, expected_code=1)
    write_config(tmp_path, stream, kafka.bootstrap_servers, unique, on_gap="skip")
    run_until_caught_up(path)
    run_until_caught_up(path)
    gaps = tail_topic(path, f"{unique}.gaps")
    assert [gap["value"]["reason"] for gap in gaps] == ["trimmed"]
    histories, _ = published_versions(path)
    assert sum(map(len, histories.values())) == 30


def test_a_shard_that_came_and_went_while_no_relay_ran_is_lost_before_its_child_is_read(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I9: only the listing's parent names show it."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    SplittingTable(stream, seed=5).write(5)
    run_until_caught_up(path)
    stream.split("root", "came-and-went")
    stream.put("came-and-went", "late", 1)
    stream.split("came-and-went", "leaf")
    stream.put("leaf", "late", 2, old=1)
    stream.forget("came-and-went")
    assert "came-and-went" in run_until_caught_up(path, expected_code=1)
    assert "late" not in published_versions(path)[0]
    write_config(tmp_path, stream, kafka.bootstrap_servers, unique, on_gap="skip")
    run_until_caught_up(path)
    run_until_caught_up(path)
    gaps = tail_topic(path, f"{unique}.gaps")
    assert [(gap["value"]["reason"], gap["value"]["shard"]) for gap in gaps] == [("shard lost", full("came-and-went"))]
    assert published_versions(path)[0]["late"] == [2]


def test_a_stream_that_throttles_is_read_all_the_same(config: Path, stream: ScriptedStream) -> None:
    """I1, I10: however often a shard cannot be read, the relay goes on."""
    table = SplittingTable(stream, seed=6)
    table.write(40)
    table.split()
    table.write(40)
    refuses, refused = random.Random(6), 0

    def throttle(operation: str) -> None:
        nonlocal refused
        if operation in ("GetRecords", "GetShardIterator") and refused < 30 and refuses.random() < 0.8:
            refused += 1
            raise Refused("ThrottlingException")

    stream.before = throttle
    run_until_caught_up(config)
    assert refused == 30
    histories, ids = published_versions(config)
    assert histories == table.histories
    assert set(ids.values()) == {1}


def lack(stream: ScriptedStream, shard: str, lacking: range) -> None:
    """Leave a shard out of the listings with these numbers, from 1 on."""
    listings = 0

    def before(operation: str) -> None:
        nonlocal listings
        asked = stream.requests[-1]
        if operation == "DescribeStream" and "ExclusiveStartShardId" not in asked and asked.get("Limit") != 1:
            listings += 1
            stream.shards[full(shard)].listed = listings not in lacking

    stream.before = before


def test_a_listing_that_lacks_a_shard_does_not_make_the_relay_caught_up(config: Path, stream: ScriptedStream) -> None:
    """I1: `--until-caught-up` looks again before it believes that a shard it has not finished is gone."""
    table = SplittingTable(stream, seed=8)
    table.write(10)
    run_until_caught_up(config)
    table.write(40)
    lack(stream, "root", range(1, 2))
    run_until_caught_up(config)
    assert published_versions(config)[0] == table.histories


@pytest.mark.parametrize(("shard", "first"), [("root", 1), ("root.0", 2)])
def test_a_shard_that_listings_lack_for_a_while_is_read_all_the_same(
    config: Path, stream: ScriptedStream, shard: str, first: int
) -> None:
    """I1: under `fail` the relay would stop, and under `skip` the rest of the shard would be lost."""
    table = SplittingTable(stream, seed=9)
    table.write(10)
    run_until_caught_up(config)
    table.write(20)
    table.split()
    table.write(20)
    lack(stream, shard, range(first, first + 3))
    run_until_caught_up(config)
    assert published_versions(config)[0] == table.histories


def test_a_shard_that_is_listed_after_its_children_were_begun_is_a_gap(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I1, I2, I9"""
    config = write_config(tmp_path, stream, kafka.bootstrap_servers, unique, on_gap="skip")
    table = SplittingTable(stream, seed=9)
    table.write(20)
    table.split()
    table.write(20)
    stream.shards[full("root")].listed = False
    run_until_caught_up(config)
    stream.shards[full("root")].listed = True
    run_until_caught_up(config)
    histories, ids = published_versions(config)
    assert (sum(map(len, histories.values())), set(ids.values())) == (20, {1})
    gaps = tail_topic(config, f"{unique}.gaps")
    assert [(gap["value"]["reason"], gap["value"]["shard"]) for gap in gaps] == [("shard lost", full("root"))]
    run_until_caught_up(config)
    assert tail_topic(config, f"{unique}.gaps") == gaps


def test_empty_pages_do_not_make_the_relay_caught_up(config: Path, stream: ScriptedStream) -> None:
    """I1: only the end of a closed shard says that it was read, however many empty pages are between its records."""
    for shard, empty in (("closed", 2 * QUIET_PAGES), ("open", QUIET_PAGES - 1)):
        stream.shard(shard)
        stream.pages(shard, 3, *[0] * empty, 3)
    stream.close("closed")
    run_until_caught_up(config)
    _, ids = published_versions(config)
    assert (len(ids), set(ids.values())) == (12, {1})


def test_a_changed_start_is_refused_and_says_what_it_was(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    SplittingTable(stream, seed=4).write(5)
    run_until_caught_up(path)
    write_config(tmp_path, stream, kafka.bootstrap_servers, unique, start="latest")
    assert "trim_horizon" in run_until_caught_up(path, expected_code=2)


def test_a_start_at_latest_leaves_out_what_was_there_and_takes_all_that_comes(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I1, I4: `latest` is a time, so nothing is lost between the plan and the first read."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique, start="latest")
    stream.shard("root")
    stream.put("root", "item", 1, created=int(time.time()) - 3600)
    run_until_caught_up(path)
    assert published_versions(path)[0] == {}
    # Before the next run, which has to wait for them; the same second may be after the plan.
    stream.put("root", "item", 2, created=int(time.time()), old=1)
    stream.split("root", "left", "right")
    stream.put("left", "item", 3, created=int(time.time()), old=2)
    run_until_caught_up(path)
    assert published_versions(path)[0] == {"item": [2, 3]}

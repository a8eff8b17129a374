"""Partitions that somebody adds to a live topic of changes: the order of a key's changes is never lost in silence."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

from relay.avro.registry import open_schemas
from relay.config import load
from relay.kafka.partition_offsets import offset_bounds
from tests.command_line import errors
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.scripted_relay import start_relay
from tests.stream.lost_relay import LostRelay
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services

ITEMS = [f"item-{number}" for number in range(20)]


@pytest.fixture
def relay(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> LostRelay:
    stream.shard("root")
    return LostRelay(tmp_path, stream, kafka.bootstrap_servers, unique)


def write(relay: LostRelay, version: int) -> None:
    for item in ITEMS:
        relay.stream.put("root", item, version, old=version - 1 or None)


def partitions(relay: LostRelay, count: int, **config: Any) -> None:
    """Let the config say another number of partitions, and more."""
    content = yaml.safe_load(relay.path.read_text()) | config
    content["topic_settings"] = {TABLE: {"partitions": count}}
    relay.path.write_text(yaml.safe_dump(content))


def add_partitions(relay: LostRelay, count: int) -> None:
    topic = relay.topic("changes")
    relay.admin.create_partitions([NewPartitions(topic, count)])[topic].result(120)
    offset_bounds(relay.admin, [(topic, number) for number in range(count)])


def places(relay: LostRelay) -> dict[str, list[tuple[int, str]]]:
    """By item, the partition and the version of each of its changes, in the order of the topic."""
    config = load(relay.path)
    with closing(open_schemas(config)) as schemas:
        found = read_changes(config.kafka.client(), config.topic(TABLE), schemas)
    places: dict[str, list[tuple[int, str]]] = {}
    for partition, _, change in sorted(found, key=lambda each: each[:2]):
        places.setdefault(change["key"]["id"], []).append((partition, change["new"]))
    return places


def test_a_running_relay_keeps_each_key_in_its_partition_and_the_next_start_is_refused(relay: LostRelay) -> None:
    """I2"""
    write(relay, 1)
    relay.create()
    running = start_relay(relay.path)
    try:
        wait_until(lambda: len(relay.changes()) == len(ITEMS) or None, 120)
        add_partitions(relay, 12)
        write(relay, 2)
        wait_until(lambda: len(relay.changes()) == 2 * len(ITEMS) or None, 120)
    finally:
        assert running.terminate() == 0, running.log()
    assert all(len({partition for partition, _ in each}) == 1 for each in places(relay).values())
    assert "has 12 partitions but needs 6: the changes of a key" in errors(relay.run(code=3))[-1]


def test_partitions_that_were_added_are_refused_although_the_config_names_their_number(relay: LostRelay) -> None:
    """I2: whoever adds partitions changes the config as well, and keys would move."""
    write(relay, 1)
    relay.run()
    add_partitions(relay, 12)
    partitions(relay, 12)
    write(relay, 2)
    said = errors(relay.run(code=3))[-1]
    assert f"topic '{relay.topic('changes')}' had 6 partitions when its changes were published, and has 12 now" in said
    assert f"run `relay repartition {relay.path} TABLE --partitions 12`" in said
    assert len(relay.changes()) == len(ITEMS)
    checked = relay.command("check", "CONFIG", code=3).stdout.splitlines()
    assert [line for line in checked if "had 6 partitions when its changes were published" in line]
    # As the error says: in a new topic every key is in one partition.
    partitions(relay, 12, topics="{name}.{table}.2")
    relay.command("reset", "CONFIG", "--moved", TABLE)
    relay.run()
    assert len(places(relay)) == len(relay.changes()) == len(ITEMS)
    relay.run()


def test_a_topic_that_was_created_again_may_have_other_partitions(relay: LostRelay) -> None:
    write(relay, 1)
    relay.run()
    relay.delete("changes")
    partitions(relay, 12)
    write(relay, 2)
    relay.run()
    assert max(partition for each in places(relay).values() for partition, _ in each) > 5
    write(relay, 3)
    relay.run()
    add_partitions(relay, 14)
    partitions(relay, 14)
    assert "had 12 partitions when" in errors(relay.run(code=3))[-1]


def test_a_reset_does_not_forget_the_partitions(relay: LostRelay) -> None:
    """I2: what was published before the reset is still there."""
    write(relay, 1)
    relay.run()
    relay.command("reset", "CONFIG", "s", "--to", "trim_horizon")
    add_partitions(relay, 12)
    partitions(relay, 12)
    assert "had 6 partitions when" in errors(relay.run(code=3))[-1]

"""A relay that moves to another Kafka cluster by the how-to, as the page prints it: I1, I2, I3."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.config import load
from relay.services.kafka import KafkaBroker
from tests.command_line import run_until_caught_up
from tests.conftest import QUIET
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.mirrored import mirror
from tests.faults.moved import TABLE, Moving, gtids, histories, killed_relay, play, printed, section
from tests.faults.scripted_relay import start_relay
from tests.in_memory import folder_in_memory

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("the commands of the page on two sources: test_mirrored_cluster.py has the rule on one"),
]

PLANNED = "Move to another Kafka cluster"
MIRRORED = "Go on from a mirror"


@pytest.fixture(scope="module")
def new_cluster() -> Iterator[str]:
    with folder_in_memory() as folder, KafkaBroker(folder, options=QUIET) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def moving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka: Any, new_cluster: str, mariadb: Any, unique: str
) -> Iterator[Moving]:
    monkeypatch.chdir(tmp_path)
    with ScriptedStream(page=20, table=f"orders-{unique}") as stream:
        yield Moving(unique, stream, mariadb, kafka.bootstrap_servers, new_cluster)


def end_within_a_transaction(moving: Moving) -> None:
    """Relay a part of a transaction of 6 MB. A relay that is told to stop would publish what it has read of it."""
    moving.customers.write(range(10_000, 11_500), size=4000)
    for commits in range(5, 20):  # the first ones may come before its first page
        relay = killed_relay(Path("relay.yaml"), "after_commit", commits)
        assert relay.wait(120) == -signal.SIGKILL, relay.log()
        (shard,) = moving.status("relay.yaml", "legacy")["shards"]
        if "transaction" in shard["position"]:
            return
    raise AssertionError(f"never within the transaction: {shard}")


def test_a_move_by_the_page_loses_nothing_and_doubles_only_the_part_of_a_transaction(moving: Moving) -> None:
    """I1, I2, I3: with changes from before, during and after the move, in shards that split meanwhile."""
    run_until_caught_up(Path("relay.yaml"))  # plans
    moving.write(30)
    run_until_caught_up(Path("relay.yaml"))
    moving.write(30)
    end_within_a_transaction(moving)
    play(printed(PLANNED, "status relay.yaml --token"))
    play(printed(PLANNED, "status relay.yaml --json"))
    (of_page,) = (yaml.safe_load(block.text) for block in section(PLANNED) if block.language == "yaml")
    starts = {
        each["name"]: {key: each[key] for key in ("start", "snapshot") if key in each} for each in of_page["sources"]
    }
    starts["legacy"]["start"]["gtid"] = gtids(Path("before.json"))
    moving.configure("new.yaml", starts)
    moving.write(30)
    play(printed(PLANNED, "check new.yaml"))
    relay = start_relay(Path("new.yaml").absolute())
    relay.wait_for("to read shard")
    moving.write(30)
    assert relay.terminate() == 0, relay.log()
    run_until_caught_up(Path("new.yaml"))
    old, new = moving.changes("relay.yaml"), moving.changes("new.yaml")
    assert {*Counter(change["event_id"] for change in old).values()} == {1}
    assert {*Counter(change["event_id"] for change in new).values()} == {1}
    published = {change["event_id"] for change in old}
    doubled = [change for change in new if change["event_id"] in published]
    assert 0 < len(doubled) < 1500
    assert {(change["source"], change["key"]["id"] >= 10_000) for change in doubled} == {("legacy", True)}
    assert histories(old + [change for change in new if change["event_id"] not in published]) == moving.truth()
    run_until_caught_up(Path("relay.yaml"))  # the way back
    assert histories(moving.changes("relay.yaml")) == moving.truth()


def test_a_relay_goes_on_from_a_mirror_by_the_page_and_loses_nothing(moving: Moving) -> None:
    """I1, I2: its cluster is gone, and the mirror lacks the end of some partitions. Its topics have a prefix."""
    run_until_caught_up(Path("relay.yaml"))  # plans
    for _ in range(3):  # the changes of the first run cannot say from when on a restart would have to read
        moving.write(30)
        run_until_caught_up(Path("relay.yaml"))
    chance = random.Random(5)
    (of_move,), (of_page,) = (
        [yaml.safe_load(block.text) for block in section(title) if block.language == "yaml"]
        for title in (PLANNED, MIRRORED)
    )
    assert of_page.keys() == of_move.keys()
    mirrored = moving.configure("mirror.yaml", {"legacy": {"tables": [TABLE]}}, name=f"old.{moving.name}")
    mirror(
        load(Path("relay.yaml")),
        load(mirrored),
        [moving.stream.table, TABLE],
        lambda topic, found: (
            len(found) if topic.endswith("schemas") else chance.randint(4 * len(found) // 5, len(found))
        ),
    )
    moving.write(30)
    assert "source legacy: name its `tables`" in play("relay status relay.yaml --mirrored legacy", code=2)
    commands = [printed(MIRRORED, f"status mirror.yaml --mirrored {name}") for name in ("orders", "legacy")]
    starts = {command.split()[-1]: {"start": play(command).strip()} for command in commands}
    for each in of_page["sources"]:
        starts[each["name"]] |= {key: each[key] for key in ("snapshot",) if key in each}
    moving.configure("new.yaml", starts)
    play(printed(PLANNED, "check new.yaml"))
    run_until_caught_up(Path("new.yaml"))
    before, after = moving.changes("mirror.yaml"), moving.changes("new.yaml")
    published = {change["event_id"] for change in before}
    assert published & {change["event_id"] for change in after}
    assert {*Counter(change["event_id"] for change in after).values()} == {1}
    assert histories(before + [each for each in after if each["event_id"] not in published]) == moving.truth()

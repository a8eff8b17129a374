"""``relay repartition``: more partitions while the relay runs, with the changes of every item in order (I2)."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from confluent_kafka import murmur2

from relay.avro.registry import open_schemas
from relay.change import MARK
from relay.config import load
from relay.kafka.checkpoints import OWNER_KEYS
from relay.kafka.settings import KafkaSettings
from relay.kafka.topics import connect, list_topics
from relay.kafka.unfenced import write_unfenced
from relay.operations import repartition as operation
from relay.operations.repartition import Repartitioned
from relay.operations.repartition import repartition as spread
from relay.records import PartitionOwner
from relay.token import EventToken, Order, compare
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.harness import Relay
from tests.faults.scripted_relay import SplittingTable, start_relay
from tests.operating import Operated
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services

BEFORE, AFTER = 6, 16


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    with ScriptedStream(page=5) as scripted:
        yield scripted


@pytest.fixture
def relay(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch) -> Operated:
    monkeypatch.setenv("COLUMNS", "200")
    return Operated(tmp_path, stream, kafka.bootstrap_servers, unique)


@contextmanager
def running(relay: Operated, workers: int = 1) -> Iterator[list[Relay]]:
    started = [start_relay(relay.path) for _ in range(workers)]
    try:
        wait_until(lambda: any(shard["owner"] for shard in relay.source()["shards"]) or None, 60)
        yield started
    finally:
        for each in started:
            each.terminate()


class Published:
    """The records of the topic: changes before and after the mark of their partition, in its order."""

    def __init__(self, relay: Operated) -> None:
        config = load(relay.path)
        with closing(open_schemas(config)) as schemas:
            found = sorted(read_changes(config.kafka.client(), config.topic(TABLE), schemas), key=lambda each: each[:2])
        marked: dict[int, str] = {}
        self.marks: dict[int, list[str]] = defaultdict(list)
        self.before: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        self.after: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        for partition, _, change in found:
            if change["attributes"].get(MARK) == "repartition":
                marked[partition] = change["attributes"]["partitions"]
                self.marks[partition].append(change["attributes"]["partitions"])
            elif change["key"] is not None:
                is_after = partition in marked or partition >= BEFORE
                (self.after if is_after else self.before)[change["key"]["id"]].append((partition, change))

    def versions(self, item: str) -> list[int]:
        """The versions of an item: in the former partitions, then in the present ones."""
        changes = [change for _, change in self.before[item] + self.after[item]]
        return [int(orjson.loads(change["new"])["version"]["N"]) for change in changes]

    @staticmethod
    def order(*changes: tuple[int, dict[str, Any]]) -> Order:
        return compare(*(EventToken(**each["token"]) for _, each in changes))

    def is_in_order(self, histories: dict[str, list[int]]) -> bool:
        return all(self.versions(item) == versions for item, versions in histories.items())


def repartition(relay: Operated, partitions: int = AFTER, code: int = 0) -> dict[str, Any]:
    answer = json.loads(relay.command("repartition", "CONFIG", TABLE, "--partitions", str(partitions), "--json").stdout)
    assert isinstance(answer, dict)
    return answer


def in_background(relay: Operated) -> Future[Repartitioned]:
    return ThreadPoolExecutor(1).submit(spread, load(relay.path), TABLE, AFTER, patience=120.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_changes_go_to_more_partitions_while_the_relay_runs_and_each_item_stays_in_order(
    relay: Operated, stream: ScriptedStream, workers: int
) -> None:
    """I2, I3: every former partition ends with one mark, and each item has all its versions once, in order."""
    table = SplittingTable(stream, seed=workers)
    table.write(120)
    with running(relay, workers):
        wait_until(lambda: Published(relay).is_in_order(table.histories) or None, 60)
        table.split()
        table.write(60)
        answer = repartition(relay)
        assert answer["done"], answer
        assert (answer["before"], answer["partitions"], answer["workers"]) == (BEFORE, AFTER, workers)
        table.write(120)
        table.split()
        table.write(60)
        wait_until(lambda: Published(relay).is_in_order(table.histories) or None, 60)
    published = Published(relay)
    assert published.marks == {number: [str(AFTER)] for number in range(BEFORE)}
    for item, changes in published.after.items():
        assert {partition for partition, _ in changes} == {murmur2(item.encode(), AFTER)}
    for item, changes in published.before.items():
        assert {partition for partition, _ in changes} == {murmur2(item.encode(), BEFORE)}
        orders = {published.order(*pair) for pair in product(changes, published.after[item])}
        assert orders <= {Order.OLDER}, "whoever reads the new partition first sees which change is the newer one"


def test_tokens_tell_the_order_of_changes_in_former_and_in_present_partitions(
    relay: Operated, stream: ScriptedStream
) -> None:
    """I5, I7: also of two shards, whose tokens have nothing but their timestamps to compare."""
    now = int(time.time()) + 1
    stream.shard("a")
    stream.shard("b")
    stream.put("a", "k", 1, created=now)
    relay.run()
    repartition(relay)
    stream.put("b", "k", 2, created=now)  # in the same second
    relay.run()
    published = Published(relay)
    assert published.versions("k") == [1, 2]
    assert published.order(*published.before["k"], *published.after["k"]) is Order.OLDER


def test_without_a_worker_the_next_run_uses_the_new_partitions(relay: Operated, stream: ScriptedStream) -> None:
    stream.shard("root")
    for number in range(50):
        stream.put("root", f"item-{number}", 1)
    relay.run()
    said = relay.command("repartition", "CONFIG", TABLE, "--partitions", str(AFTER)).stdout
    assert "No worker is running" in said
    assert f"set `topic_settings: {{{TABLE}: {{partitions: {AFTER}}}}}`" in said
    for number in range(50):
        stream.put("root", f"item-{number}", 2, old=1)
    relay.run()
    published = Published(relay)
    assert published.is_in_order({f"item-{number}": [1, 2] for number in range(50)})
    assert len(published.marks) == BEFORE
    assert max(partition for changes in published.after.values() for partition, _ in changes) >= BEFORE
    assert "go to 16 partitions already" in relay.command("repartition", "CONFIG", TABLE, "--partitions", "16").stdout
    # A second time, from the new number.
    relay.command("repartition", "CONFIG", TABLE, "--partitions", "20")
    relay.run()
    assert len(list_topics(connect(load(relay.path)), load(relay.path))[f"{relay.name}.{TABLE}"].partitions) == 20
    assert len(Published(relay).marks) == AFTER


@pytest.mark.parametrize("said", [None, AFTER])
def test_the_relay_starts_again_whether_the_config_has_the_former_or_the_new_number(
    relay: Operated, stream: ScriptedStream, said: int | None
) -> None:
    stream.shard("root")
    stream.put("root", "k", 1)
    relay.run()
    repartition(relay)
    if said is not None:
        config = yaml.safe_load(relay.path.read_text())
        relay.path.write_text(yaml.safe_dump({**config, "topic_settings": {TABLE: {"partitions": said}}}))
    for version in (2, 3):
        stream.put("root", "k", version, old=version - 1)
        relay.run()
    relay.command("check", "CONFIG")
    assert Published(relay).versions("k") == [1, 2, 3]


def test_a_number_that_the_config_raises_is_refused_until_the_command_has_run(
    relay: Operated, stream: ScriptedStream
) -> None:
    stream.shard("root")
    stream.put("root", "k", 1)
    relay.run()
    config = yaml.safe_load(relay.path.read_text())
    relay.path.write_text(yaml.safe_dump({**config, "topic_settings": {TABLE: {"partitions": AFTER}}}))
    refused = relay.run(code=3).stderr
    assert f"relay repartition {relay.path} TABLE --partitions {AFTER}" in refused
    repartition(relay)
    relay.run()
    assert len(Published(relay).marks) == BEFORE


def test_what_cannot_be_done_is_refused_before_anything_is_changed(relay: Operated, stream: ScriptedStream) -> None:
    stream.shard("root")
    stream.put("root", "k", 1)

    def refusal(*arguments: str, code: int) -> str:
        return relay.command("repartition", "CONFIG", *arguments, code=code).stderr

    assert "has not published table" in refusal(TABLE, "--partitions", "8", code=1)
    relay.run()
    assert f"did you mean `{TABLE}`" in refusal(f"{TABLE}s", "--partitions", "8", code=2)
    assert "Kafka cannot remove any" in refusal(TABLE, "--partitions", "5", code=2)
    assert "go to 6 partitions already" in relay.command("repartition", "CONFIG", TABLE, "--partitions", "6").stdout
    repartition(relay)
    assert "16 were already requested" in refusal(TABLE, "--partitions", "8", code=2)
    relay.configure(envelope="debezium")
    config = yaml.safe_load(relay.path.read_text())
    relay.path.write_text(yaml.safe_dump({**config, "schema_registry": {"url": "http://127.0.0.1:9"}}))
    assert "has no mark that ends a partition" in refusal(TABLE, "--partitions", "32", code=2)


def test_a_source_that_another_worker_does_not_have_is_refused(
    relay: Operated, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: if that worker keeps the plan, the source would stand still."""
    stream.shard("root")
    stream.put("root", "k", 1)
    relay.run()
    settings, other = KafkaSettings.from_config(load(relay.path)), PartitionOwner("host/7", {})
    write_unfenced(settings, OWNER_KEYS[5], other.to_json(), "relay status")
    monkeypatch.setattr(operation, "members", lambda *of: ["a worker"])
    refused = relay.command("repartition", "CONFIG", TABLE, "--partitions", "16", code=1).stderr
    assert "source s is not in the config of host/7: give every worker the same config first" in refused
    assert len(list_topics(connect(load(relay.path)), load(relay.path))[f"{relay.name}.{TABLE}"].partitions) == BEFORE


def test_a_worker_that_is_killed_between_the_request_and_the_switch_loses_and_doubles_nothing(
    relay: Operated, stream: ScriptedStream
) -> None:
    """I1, I2, I3."""
    table = SplittingTable(stream, seed=7)
    table.write(100)
    with running(relay, 2) as workers:
        wait_until(lambda: Published(relay).is_in_order(table.histories) or None, 60)
        workers[0].pause()
        try:
            answer = in_background(relay)
            table.write(100)
            time.sleep(2.0)  # the worker that runs waits for the other one meanwhile
        finally:
            workers[0].kill()
        assert answer.result().done
        wait_until(lambda: Published(relay).is_in_order(table.histories) or None, 120)
    assert Published(relay).marks == {number: [str(AFTER)] for number in range(BEFORE)}

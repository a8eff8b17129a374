"""Workers of one relay whose configs differ, on a real broker."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.config import Config
from relay.config.config import PUBLISHED
from relay.config.sources import DynamoDBConfig
from relay.config.sql_sources import MySQLConfig, VitessConfig
from relay.engine import same_sources
from relay.engine.same_sources import SameSources
from relay.engine.worker import Worker
from relay.kafka.checkpoints import OWNER_KEYS
from relay.observe.health import Stall
from relay.observe.observer import Observer
from relay.records import PartitionOwner, Plan, StreamId
from tests.clock import Clock
from tests.engine.maintained import Committed
from tests.scripted_source import ScriptedSource, config_of, running
from tests.waiting import wait_until

NOT_PUBLISHED = {
    *(
        "name",
        "type",
        "start",
        "on_gap",
        "on_alter",
        "user",
        "password",
        "tls",
        "iam",
        "shards",
        "database",
        "snapshot",
    ),
    "max_lag",
    *("snapshot_rows_per_second", "reshard_checkpoint_table", "vtgate", "keyspace", "tablet_type", "cells", "silence"),
    *("table", "tags", "stream_arn", "region", "endpoint_url", "model", "profile", "role_arn", "external_id"),
    "role_session_name",
}
"""The keys of sources that do not decide which rows and values are published: a `model` is in `columns`."""


def observed(unique: str, count: int = 2) -> list[Observer]:
    """Return observers of workers that are processes of their own, as far as others can tell."""
    observers = [Observer(unique, keeps_status=True, stalled_after=2.0) for _ in range(count)]
    for number, observer in enumerate(observers):
        observer.process = f"worker-{number}"
    return observers


def differs(observer: Observer) -> Stall | None:
    return next((stall for stall in observer.stalls() if "the same config" in stall.what), None)


def ready(observer: Observer) -> None:
    wait_until(lambda: not observer.not_ready_reasons() or None, 60)


@pytest.mark.services
def test_a_worker_that_lacks_a_source_of_another_and_that_one_say_so_until_one_of_them_stops(
    kafka: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I10: nobody reads the shards of a source whose owner lacks it, and each worker was green."""
    one, two = ScriptedSource("one"), ScriptedSource("two", shards=8)
    observers = observed(unique)
    other = config_of(unique, kafka.bootstrap_servers, [one])
    with running(config_of(unique, kafka.bootstrap_servers, [one, two]), [one, two], observer=observers[0]):
        ready(observers[0])
        assert differs(observers[0]) is None
        with running(other, [ScriptedSource("one")], observer=observers[1]):
            said = "source two is relayed by worker-0, but not in this worker's config. Give every worker the same"
            assert said in wait_until(lambda: differs(observers[1]), 60).what
            assert "but not in the config of worker-1" in wait_until(lambda: differs(observers[0]), 60).what
            assert "source two is not in the config of this worker, but has unread shards (8)" in caplog.text
            assert caplog.text.count("source two is relayed by worker-0") == 1
    with running(other, [ScriptedSource("one")], observer=observers[1]):
        ready(observers[1])
        wait_until(lambda: differs(observers[1]) is None or None, 60)


@pytest.mark.services
def test_a_source_that_was_removed_from_all_configs_is_warned_of_and_not_red(
    kafka: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = ScriptedSource("one"), ScriptedSource("two")
    with running(config_of(unique, kafka.bootstrap_servers, [one, two]), [one, two]) as worker:
        wait_until(lambda: all(source.committed.checkpoints for source in worker._sources.values()) or None, 60)
    assert "is not in the config" not in caplog.text
    observer = Observer(unique, keeps_status=True, stalled_after=1.0)
    with running(config_of(unique, kafka.bootstrap_servers, [one]), [one], observer=observer):
        ready(observer)
        assert "source two is not in the config of this worker, but has unread shards (1)" in caplog.text
        assert differs(observer) is None


def published_otherwise(unique: str, servers: str, source: ScriptedSource) -> Config:
    return config_of(unique, servers, [source], on_unencodable="dead_letter")


@pytest.mark.services
def test_a_config_is_read_by_only_when_no_worker_wants_the_one_before(
    kafka: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: what one of them leaves out was passed by it, and never published."""
    caplog.set_level("INFO", "relay")
    old, new = ScriptedSource("orders", shards=16), ScriptedSource("orders", shards=16)
    observers = observed(unique)
    before = config_of(unique, kafka.bootstrap_servers, [old])
    with ExitStack() as older, ExitStack() as newer:
        older.enter_context(running(before, [old], observer=observers[0]))
        wait_until(lambda: len(old.openings) == 16 or None, 60)
        after = published_otherwise(unique, kafka.bootstrap_servers, new)
        worker: Worker = newer.enter_context(running(after, [new], observer=observers[1]))
        clock = [time.monotonic()]
        worker._same_sources.clock = lambda: clock[0]
        for observer, other in zip(observers, ("worker-1", "worker-0"), strict=True):
            stall = wait_until(partial(differs, observer), 60)
            assert f"the config of {other} publishes source orders differently" in stall.what
        for _ in range(4):  # the difference has lasted
            clock[0] += same_sources._COMES_BACK - 5.0
            wait_until(lambda: worker._same_sources._differed["orders"][1] == clock[0] or None, 60)
        older.close()
        wait_until(lambda: len(worker._group.owned) == 64 or None, 60)
        clock[0] += same_sources._COMES_BACK - 1.0
        old.openings.clear()
        older.enter_context(running(before, [old], observer=observers[0]))  # it was only started again
        wait_until(lambda: old.openings or None, 60)
        wait_until(lambda: differs(observers[1]), 60)
        assert not new.openings
        older.close()
        wait_until(lambda: len(worker._group.owned) == 64 or None, 60)
        wait_until(lambda: not worker._same_sources.differences or None, 60)
        assert not new.openings
        clock[0] += same_sources._COMES_BACK
        wait_until(lambda: len(new.openings) == 16 or None, 60)
        assert caplog.text.count("source orders: the config of this worker is in force from here on") == 1
        wait_until(lambda: differs(observers[1]) is None or None, 60)


def test_a_config_comes_into_force_some_time_after_no_worker_has_the_one_before() -> None:
    """I1, I10: the last of them may only be started again."""
    committed, clock = Committed(), Clock(0.0)
    group: Any = SimpleNamespace(owned=set(), view=committed.view)
    same = SameSources(group, PartitionOwner("me", {"s": "new", "t": "same"}), clock=clock)
    plan = Plan("latest", 0.0, {}, {}, in_force="old")

    def serve(owned: set[int], at: float) -> Plan | None:
        group.owned, clock.now = owned, at
        same.serve(cast(Any, committed), {})
        return same.put_into_force("s", plan)

    def told(process: str, partition: int, **sources: str) -> None:
        committed.view.apply(OWNER_KEYS[partition], PartitionOwner(process, sources).to_json())

    committed.view.apply(StreamId("s", "x").plan_key, plan.to_json())
    told("other", 1, s="old", t="same", u="more")
    told("alike", 2, s="new", t="same")
    assert serve({0}, 5.0) is None
    assert same.differences == [
        "the config of other publishes source s differently, and only one of the two is in force",
        "source u is relayed by other, but not in this worker's config",
    ]
    assert committed.view.owners[OWNER_KEYS[0]].process == "me"
    assert serve({0}, 15.0) is None
    told("alike", 1, s="new", t="same")
    assert (serve({0}, 24.0), same.differences) == (None, [])  # it has lasted for ten seconds
    taken = serve({0}, 25.0)
    assert taken is not None
    assert taken.in_force == "new"
    assert same.is_in_force("s", taken)
    told("other", 1, t="same")
    assert serve({0}, 100.0) is not None  # nobody reads by the one in force, and this worker alone has the source
    assert same.differences == ["source s is relayed here, but not in the config of other"]
    told("other", 1, s="newest", t="same")
    assert serve({0}, 100.0) is not None
    told("other", 1, s="old", t="same")
    assert serve({0}, 100.0) is None
    assert [serve({0}, at) for at in (125.0, 150.0)] == [None, None]
    assert serve({0, 1}, 179.0) is None
    assert serve({0, 1}, 180.0) is not None


def test_a_config_is_in_force_at_once_for_what_nobody_has_read_by_another() -> None:
    committed = Committed()
    group: Any = SimpleNamespace(owned={0}, view=committed.view)
    same = SameSources(group, PartitionOwner("me", {"s": "new"}))
    committed.view.apply(OWNER_KEYS[1], PartitionOwner("other", {"s": "old"}).to_json())
    same.serve(cast(Any, committed), {})
    assert same.put_into_force("s", Plan("latest", 0.0, {}, {})) is not None


@pytest.mark.services
def test_a_single_worker_that_is_started_with_another_config_reads_by_it_at_once(kafka: Any, unique: str) -> None:
    old, new = ScriptedSource("orders", shards=2), ScriptedSource("orders", shards=2)
    with running(config_of(unique, kafka.bootstrap_servers, [old]), [old]):
        wait_until(lambda: len(old.openings) == 2 or None, 60)
    with running(published_otherwise(unique, kafka.bootstrap_servers, new), [new]) as worker:
        wait_until(lambda: len(new.openings) == 2 or None, 60)
        assert not worker._same_sources._differed


@pytest.mark.parametrize("entry", [DynamoDBConfig, MySQLConfig, VitessConfig], ids=lambda entry: entry.__name__)
def test_each_key_of_a_source_is_known_to_decide_what_is_published_or_not_to(entry: type[DynamoDBConfig]) -> None:
    """I1: a new one that does is to be compared, too."""
    assert {*entry.model_fields} - PUBLISHED - NOT_PUBLISHED == set()


@pytest.mark.parametrize(
    "keys",
    [
        {"tables": ["a"]},
        {"where": {"a": {"id": 1}}},
        {"protect": {"a": {"c": "mask"}}},
        {"protect": {"a": {"c": {"hash": {"salt": "x"}}}}},
        {"protect": {"a": {"c": {"hash": {"salt": "y"}}}}},
        {"key": "item"},
        {"keyrange": "-80"},
    ],
    ids=str,
)
def test_what_a_source_publishes_is_compared(keys: dict[str, Any]) -> None:
    def hash_of(topics: str = "{name}.{table}", **keys: Any) -> str:
        entry = {"name": "s", "type": "mysql", "shards": {"-": ["db:3306"]}, "database": "d", "tables": ["a", "b"]}
        config = {"name": "n", "kafka": {"bootstrap_servers": "k:9092"}, "topics": topics, "sources": [entry | keys]}
        return Config.model_validate(config).hashes()["s"]

    assert hash_of(**keys) != hash_of()
    assert hash_of(topics="{table}") != hash_of()
    assert hash_of(max_lag="5s", tables=["b", "a"], shards={"-": ["other:3306"]}) == hash_of()


def test_each_partition_has_a_record_of_its_owner() -> None:
    assert OWNER_KEYS.keys() == set(range(64))


def test_a_topic_gets_more_partitions_only_once_the_owner_of_each_partition_waits_for_them() -> None:
    """I2: one that publishes to the former partitions may have said nothing, or wait for another number."""
    committed = Committed()
    group: Any = SimpleNamespace(owned=set(range(64)), view=committed.view)
    same = SameSources(group, PartitionOwner("me", {"s": "new"}))
    same.serve(cast(Any, committed), {})
    assert not same.are_ready("t", 24)
    same.serve(cast(Any, committed), {"t": 24})
    assert same.are_ready("t", 24)
    assert not same.are_ready("t", 48)
    (said,) = same.differences  # I10: if it lasts, health is red
    assert said.startswith("topic t waits for 24 partitions, until every worker has seen the request")
    for other in PartitionOwner("other", {"s": "new"}), PartitionOwner("other", {"s": "new"}, {"t": 12}):
        committed.view.apply(OWNER_KEYS[5], other.to_json())
        assert not same.are_ready("t", 24)
    committed.view.apply(OWNER_KEYS[5], None)
    assert not same.are_ready("t", 24)
    committed.view.apply(OWNER_KEYS[5], PartitionOwner("other", {"s": "new"}, {"t": 24}).to_json())
    assert same.are_ready("t", 24)

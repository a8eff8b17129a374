"""A database, a registry or a disk that answers late delays only what needs the answer, never the group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from relay.avro.decode import decode
from relay.avro.schema_registry import RegistrySchemas
from relay.config import Config
from relay.engine.config_reload import ReloadedConfig
from relay.errors import NoAnswer, RelayError
from relay.records import Plan, ShardCheckpoint
from relay.services.registry import SchemaRegistry
from relay.source import Measured, Segment, ShardReader
from relay.table import Column, KeyColumn, TableSchema
from tests.benchmarks.harness import count_committed
from tests.scripted_source import LABEL, ScriptedSource, config_of, running
from tests.topic_changes import read_values
from tests.waiting import wait_until

ALTERED = TableSchema("orders", "orders", (KeyColumn("id", "S"),), 1, row=(Column("id", "string"),))


def published(config: Config, source: ScriptedSource, at_least: int = 1) -> int | None:
    found = count_committed(config.kafka.client(), config.topic(source.name))
    return found if found >= at_least else None


def assert_refused(config: Config, source: ScriptedSource, make: Callable[[TableSchema], None], shard: str) -> None:
    """Run a worker, which has to put ``shard`` aside for what ``make`` raises, and to go on."""
    with running(config, [source], make=make) as worker:
        refusals = worker._sources[source.name].set_aside
        wait_until(lambda: bool(refusals.refusals))
        found = [(each.name, str(each.error)) for each in refusals.refusals.values()]
        assert found == [(shard, "the registry refuses it")]


@pytest.mark.services
def test_a_source_that_is_planned_for_long_delays_no_other(kafka: Any, unique: str) -> None:
    """I10"""
    slow, quick = ScriptedSource("slow"), ScriptedSource("quick")
    let_go = slow.hold("starting_points")
    config = config_of(unique, kafka.bootstrap_servers, [slow, quick])
    with running(config, [slow, quick]):
        slow.wait_for("starting_points")
        assert wait_until(lambda: published(config, quick), 60) == 1
        assert not published(config, slow)
        let_go()
        assert wait_until(lambda: published(config, slow), 60) == 1


@pytest.mark.services
def test_a_change_of_columns_holds_only_the_shard_that_needs_its_schema(kafka: Any, unique: str) -> None:
    """I2: and the pages of that shard stay in order."""
    source = ScriptedSource("orders", shards=3)
    source.new_tables["shard-00001"] = (ALTERED,)
    asked, let_go = threading.Event(), threading.Event()

    def make(table: TableSchema) -> None:
        if table is ALTERED:
            asked.set()
            assert let_go.wait(60)

    config = config_of(unique, kafka.bootstrap_servers, [source])
    with running(config, [source], make=make):
        assert asked.wait(60)
        assert wait_until(lambda: published(config, source, 2), 60) == 2
        let_go.set()
        assert wait_until(lambda: published(config, source, 3), 60) == 3


@pytest.mark.services
def test_a_schema_that_cannot_be_published_stops_its_shard_with_the_reason(kafka: Any, unique: str) -> None:
    """I12"""
    source = ScriptedSource("orders")
    source.new_tables["shard-00000"] = (ALTERED,)

    def make(table: TableSchema) -> None:
        if table is ALTERED:
            raise RelayError("the registry refuses it")

    assert_refused(config_of(unique, kafka.bootstrap_servers, [source]), source, make, "shard-00000")


@pytest.mark.services
def test_a_registry_that_is_away_when_a_table_gets_a_new_schema_delays_only_that_table(
    kafka: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1, I10"""
    altered, other = ScriptedSource("orders"), ScriptedSource("other")
    altered.new_tables["shard-00000"] = (ALTERED,)
    config = config_of(unique, kafka.bootstrap_servers, [altered, other])
    let_go, let_other_go = altered.hold("starting_points"), other.hold("starting_points")
    # One that was killed refuses a connection at once; one that has just started may take long for its first answers.
    with SchemaRegistry() as registry, closing(RegistrySchemas(registry.url, timeout=120.0, retries=0)) as schemas:
        with running(config, [altered, other], schemas=schemas):
            other.wait_for("starting_points")  # the tables that the relay starts with have their schemas
            registry.kill()
            let_go()
            named = f"the schema registry at {registry.url} does not answer"
            assert wait_until(lambda: named in caplog.text, 60)
            let_other_go()
            assert wait_until(lambda: published(config, other), 60) == 1
            assert not published(config, altered)
            registry.restart()
            assert wait_until(lambda: published(config, altered), 60) == 1
        assert "the schemas are published now" in caplog.text
        ((_, _, value),) = read_values(config.kafka.client(), config.topic("orders"))
        assert value[:1] == b"\x00"  # the number of its schema in the registry follows
        assert decode(schemas, value)["key"] == {"id": "shard-00000"}
        (subject,) = schemas.subjects()  # it began anew, without those of the start
        assert subject == f"{config.topic('orders')}-value"


@pytest.mark.services
def test_a_schema_that_no_registry_answers_for_delays_no_other_new_schema(kafka: Any, unique: str) -> None:
    """I10: a registry may fail for ever with one subject."""
    failing, other = ScriptedSource("orders"), ScriptedSource("other")
    failing.new_tables["shard-00000"] = (ALTERED,)
    other.new_tables["shard-00000"] = (replace(ALTERED, source="other", table="other"),)
    let_other_go = other.hold("starting_points")
    asked = threading.Event()

    def make(table: TableSchema) -> None:
        if table is ALTERED:
            asked.set()
            raise NoAnswer("HTTP status 500")

    config = config_of(unique, kafka.bootstrap_servers, [failing, other])
    with running(config, [failing, other], make=make):
        assert asked.wait(60)
        let_other_go()
        assert wait_until(lambda: published(config, other), 60) == 1
        assert not published(config, failing)


@pytest.mark.services
def test_a_schema_that_is_refused_stops_its_shard_also_while_another_is_waited_for(kafka: Any, unique: str) -> None:
    """I12"""
    source = ScriptedSource("orders", shards=2)
    refused = replace(ALTERED, table="refused")
    source.new_tables |= {"shard-00000": (ALTERED,), "shard-00001": (refused,)}

    def make(table: TableSchema) -> None:
        if table is ALTERED:
            raise NoAnswer("HTTP status 500")
        if table is refused:
            raise RelayError("the registry refuses it")

    assert_refused(config_of(unique, kafka.bootstrap_servers, [source]), source, make, "shard-00001")


@pytest.mark.services
def test_a_relay_that_waits_for_a_registry_can_be_stopped(kafka: Any, unique: str) -> None:
    source = ScriptedSource("orders")
    source.new_tables["shard-00000"] = (ALTERED,)
    asked = threading.Event()

    def make(table: TableSchema) -> None:
        if table is ALTERED:
            asked.set()
            raise NoAnswer("the registry is away")

    config = config_of(unique, kafka.bootstrap_servers, [source])
    with running(config, [source], make=make) as worker:
        assert asked.wait(60)
        worker.stop()  # which raises nothing


@pytest.mark.services
def test_a_config_that_is_read_slowly_delays_nothing(kafka: Any, unique: str) -> None:
    source = ScriptedSource("orders")
    config = config_of(unique, kafka.bootstrap_servers, [source])
    reading, let_go = threading.Event(), threading.Event()

    def read() -> Config:
        reading.set()
        assert let_go.wait(60)
        return config

    reloaded = ReloadedConfig(config, read)
    with running(config, [source], reloaded=reloaded):
        reloaded.request()
        assert reading.wait(60)
        assert wait_until(lambda: published(config, source), 60) == 1
        let_go.set()


class SlowSnapshot:
    """The snapshot of a table that is measured for as long as its source holds ``measure``."""

    margin = 0.0
    reads_at_once = 1
    is_selective = False

    def __init__(self, source: ScriptedSource) -> None:
        self._source = source

    def is_initial(self, plan: Plan) -> bool:
        return True

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        self._source.arrive("measure")
        return Measured(0, 0)

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        return True

    def open(self, segment: Segment) -> ShardReader:
        raise AssertionError("it has no segments")


@pytest.mark.services
def test_a_table_that_is_measured_for_long_delays_nothing(kafka: Any, unique: str) -> None:
    slow, quick = ScriptedSource("slow"), ScriptedSource("quick")
    slow.snapshots = SlowSnapshot(slow)
    let_go = slow.hold("measure")
    config = config_of(unique, kafka.bootstrap_servers, [slow, quick])
    with running(config, [slow, quick]):
        slow.wait_for("measure")
        assert wait_until(lambda: published(config, quick), 60) == 1
        assert wait_until(lambda: published(config, slow), 60) == 1
        let_go()
        assert wait_until(lambda: published(config, slow, 3), 60) == 3  # with the marks of beginning and end


@pytest.mark.services
def test_a_new_stream_that_is_slow_to_connect_to_delays_no_other_source(kafka: Any, unique: str) -> None:
    replaced, other = ScriptedSource("replaced", ends=True), ScriptedSource("other")
    replaced.on_gap = "skip"
    config = config_of(unique, kafka.bootstrap_servers, [replaced, other])
    with running(config, [replaced, other]):
        let_go = replaced.hold("connect")
        replaced.label = LABEL.replace("01", "02")
        replaced.wait_for("connect")
        assert wait_until(lambda: published(config, other), 60) == 1
        assert published(config, replaced) == 1
        let_go()
        assert wait_until(lambda: published(config, replaced, 2), 60) == 2

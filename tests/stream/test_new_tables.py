"""Tables that appear after the plan was made, and the worker that keeps the plan does not meet itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.config.topic_routes import TopicClaims
from relay.errors import ConfigError
from relay.reading.reader_pool import ReaderPool
from relay.records import Shard, ShardCheckpoint, ShardState, SnapshotBeginning, SnapshotControl, UnplannedTable
from relay.source import LastPage, Page, Segment, ShardReader
from relay.stream.new_tables import known_in
from relay.stream.source_state import SourceState
from relay.table import KeyColumn, TableSchema
from tests.engine.maintained import Maintained, NoRows
from tests.scripted_source import CLAIMS, ScriptedReader, ScriptedSource


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource("orders", shards=2)


def test_a_table_that_only_another_worker_has_met_is_added_to_the_plan(source: ScriptedSource) -> None:
    """I1, I2: or its key could change, and nobody would say that it is emptied if it is dropped while no relay runs."""
    source.has_journals = True
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    other = SourceState(cast(Any, source), relay.stream, relay.view, ReaderPool(), CLAIMS)
    other.poll_listing(relay.owned)
    other.shards.open_ready(relay.owned)
    other.check_tables([TableSchema("orders", "later", (KeyColumn("a", "int"), KeyColumn("b", "int")), 1)])
    shard, page = other.shards.open["shard-00000"], Page(Shard("shard-00000"), [], {"n": 1}, None, None, 0.0)
    told = other.checkpoint(shard, page)
    assert isinstance(told, ShardCheckpoint)
    relay.write("shard-00000", told)
    relay.serve_until(lambda: "later" in relay.plan.keys)
    plan = relay.plan
    assert (plan.keys["later"], plan.hashed["later"]) == ((("a", "int"), ("b", "int")), 1)
    relay.serve()
    assert relay.committed.claimed == [("orders", "later")]
    last = other.checkpoint(shard, replace(page, end=LastPage()))
    assert last is not None
    assert last.unplanned == {}
    other.close_shards()


class OneTable(NoRows):
    """The snapshots of a table that is one segment."""

    def __init__(self, source: ScriptedSource) -> None:
        self._source = source

    def open(self, segment: Segment) -> ShardReader:
        return ScriptedReader(self._source, cast(Any, SimpleNamespace(shard=segment.shard, position=None)))


def test_a_table_that_only_the_snapshot_of_another_worker_has_met_is_added_to_the_plan(source: ScriptedSource) -> None:
    """I1, I2: as one that was renamed from another database, of which no row is in the stream."""
    source.has_journals = True
    source.snapshots = OneTable(source)
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    control = SnapshotControl(ShardState.READING, "1", begun=SnapshotBeginning(900, 1, 1), updated_at=1000.0)
    relay.view.apply(relay.stream.snapshot_key, control.to_json())
    other = SourceState(cast(Any, source), relay.stream, relay.view, ReaderPool(), CLAIMS)
    assert other.snapshots is not None
    other.snapshots.open_ready_segments(relay.owned)
    other.check_tables([TableSchema("orders", "later", (KeyColumn("a", "int"), KeyColumn("b", "int")), 1)])
    segment, page = other.snapshots.open["1/0"], Page(Shard("1/0"), [], {"rows": 1}, None, None, 0.0)
    told = other.checkpoint(segment, page)
    assert told is not None
    relay.view.apply(relay.stream.segment_key("1/0"), told.to_json())
    relay.serve_until(lambda: "later" in relay.plan.keys)
    plan = relay.plan
    assert (plan.keys["later"], plan.hashed["later"]) == ((("a", "int"), ("b", "int")), 1)
    last = other.checkpoint(segment, replace(page, end=LastPage()))
    assert last is not None
    assert last.unplanned == {}
    for each in (other, relay.state):
        each.close_shards()


def state(relay: Maintained, source: ScriptedSource, topic: str) -> SourceState:
    """A worker whose config gives each table the ``topic``, a template."""
    claims = TopicClaims("test", topic, (), lambda _: {})
    return SourceState(cast(Any, source), relay.stream, relay.view, ReaderPool(), claims)


def test_the_checkpoint_that_first_covers_a_table_says_where_its_changes_went(source: ScriptedSource) -> None:
    """I2: its relay may die before the plan knows the table, and start with another route."""
    source.has_journals = True
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    source.tables = list  # type: ignore[method-assign]
    first, later = state(relay, source, "first.{table}"), TableSchema("orders", "later", (KeyColumn("a", "int"),), 1)
    first.check_plan()
    first.poll_listing(relay.owned)
    first.shards.open_ready(relay.owned)
    first.check_tables([later])
    page = Page(Shard("shard-00000"), [], {"n": 1}, None, None, 0.0)
    told = first.checkpoint(first.shards.open["shard-00000"], page)
    assert isinstance(told, ShardCheckpoint)
    first.close_shards()
    relay.write("shard-00000", told)
    source.tables = lambda: [later]  # type: ignore[method-assign]
    state(relay, source, "first.{table}").check_plan()
    with pytest.raises(ConfigError, match=r"of table later went to topic first.later, but the config says other.later"):
        state(relay, source, "other.{table}").check_plan()
    relay.serve_until(lambda: "later" in relay.plan.keys)
    assert relay.plan.topics["later"] == "first.later"
    state(relay, source, "first.{table}").check_plan()
    source.tables = list  # type: ignore[method-assign]
    other = state(relay, source, "other.{table}")  # which leaves the table out, until it appears again
    other.check_plan()
    with pytest.raises(ConfigError, match=r"of table later went to topic first.later"):
        other.check_tables([later])


def test_a_plan_that_gets_another_table_keeps_the_topics_of_those_that_have_moved(source: ScriptedSource) -> None:
    """I2: or the way back would be open to them."""
    source.has_journals = True
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    (table,) = source.tables()
    plan = replace(relay.plan, topics={table.table: "elsewhere"})
    for topic, topics in ("test.later", {}), ("first.later", {"later": "first.later"}):
        met = {"later": UnplannedTable((("a", "int"),), 1, topic)}
        relay.write("shard-00000", ShardCheckpoint(ShardState.READING, unplanned=met))
        assert known_in(plan, relay.view.of(relay.stream), CLAIMS).topics == {table.table: "elsewhere", **topics}


def test_a_worker_that_hung_while_a_move_was_confirmed_is_refused(source: ScriptedSource) -> None:
    """I2: it would go on with the former topic."""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    (table,) = source.tables()
    hung = state(relay, source, "{name}.{table}")
    hung.check_plan()
    hung.check_tables([table])
    assert (relay.plan.routes, relay.plan.topics) == ({"default": "{name}.{table}"}, {})
    hung.check_plan()
    moved = replace(relay.plan, topics={table.table: "elsewhere"})
    relay.view.apply(relay.stream.plan_key, moved.to_json())
    hung.check_plan()
    with pytest.raises(ConfigError, match=f"went to topic elsewhere, but the config says test.{table.table}"):
        hung.check_tables([table])


def test_a_plan_of_an_earlier_version_learns_the_topics_of_its_tables_before_they_move(source: ScriptedSource) -> None:
    """I2: nothing else would tell that they have moved."""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    before = replace(relay.plan, routes={})
    assert before.partitions
    relay.view.apply(relay.stream.plan_key, before.to_json())
    relay.serve()
    assert relay.plan == replace(before, routes={"default": "{name}.{table}"})
    (table,) = source.tables()
    with pytest.raises(ConfigError, match=f"went to topic test.{table.table}, but the config says other"):
        state(relay, source, "other.{table}").check_tables([table])

"""Tables that appear after the plan was made, and the worker that keeps the plan does not meet itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.reading.reader_pool import ReaderPool
from relay.records import Shard, ShardCheckpoint, ShardState, SnapshotBeginning, SnapshotControl
from relay.source import LastPage, Page, Segment, ShardReader
from relay.stream.source_state import SourceState
from relay.table import KeyColumn, TableSchema
from tests.engine.maintained import Maintained, NoRows
from tests.scripted_source import ScriptedReader, ScriptedSource


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource("orders", shards=2)


def test_a_table_that_only_another_worker_has_met_is_added_to_the_plan(source: ScriptedSource) -> None:
    """I1, I2: or its key could change, and nobody would say that it is emptied if it is dropped while no relay runs."""
    source.has_journals = True
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    other = SourceState(cast(Any, source), relay.stream, relay.view, ReaderPool())
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
    other = SourceState(cast(Any, source), relay.stream, relay.view, ReaderPool())
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

"""What a worker plans, lists and opens beside publishing pages, also if a transaction is aborted in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.engine.config_reload import ConfigReload
from relay.engine.reader_pool import ReaderPool
from relay.engine.snapshot_records import CONTROL, records_of
from relay.engine.snapshot_requests import SnapshotRequest
from relay.engine.snapshots import Snapshots
from relay.engine.source_state import SourceState
from relay.engine.upkeep import Upkeep
from relay.errors import Unavailable
from relay.kafka.publisher import Aborted
from relay.lineage import Checkpoint, CommittedRecords, Gap, Plan, Shard, ShardState, StreamId
from relay.source import Measured, Page, Segment, ShardReader, Source
from relay.table import KeyColumn, TableSchema
from tests.scripted_source import LABEL, ScriptedReader, ScriptedSource, config_of

FOLLOWING = StreamId("orders", LABEL.replace("01", "02"))


class Committed:
    """The records that are committed, as a view shows them, and the gaps; ``fails``: what the next commits raise."""

    def __init__(self) -> None:
        self.view = CommittedRecords()
        self.gaps: list[Gap] = []
        # Source and table of those that other workers have met.
        self.claimed: list[tuple[str, str]] = []
        self.writers = SimpleNamespace(claim=lambda *place: self.claimed.append(place))
        self.fails: list[Exception | None] = []
        # Partitions that were waited for although nothing was written to them.
        self.seen: set[int] = set()
        # Whether the view shows at once what is written for snapshots, which nobody waits for.
        self.shows = True
        # What it does not show yet.
        self._hidden: list[dict[bytes, bytes | None]] = []
        self._records: dict[bytes, bytes | None] = {}
        self._gaps: list[Gap] = []

    def gap(self, source: Source, gap: Gap) -> None:
        self._gaps.append(gap)

    def record(self, key: bytes, value: bytes | None) -> None:
        self._records[key] = value

    def commit_and_watch(self, earlier: Set[int] = frozenset()) -> Callable[[], bool]:
        records = {} if self.shows else dict(self._records)
        if not self.shows:
            self._records.clear()
        self.commit_and_see(earlier)
        self._hidden.append(records)
        return lambda: not records or records not in self._hidden

    @property
    def hidden(self) -> list[set[bytes]]:
        return [set(records) for records in self._hidden if records]

    def show(self) -> None:
        """Let the view show what it does not show yet."""
        self.shows = True
        for records in self._hidden:
            for key, value in records.items():
                self.view.apply(key, value)
        self._hidden.clear()

    def commit_and_see(self, earlier: Set[int] = frozenset()) -> None:
        records, self._records = self._records, {}
        gaps, self._gaps = self._gaps, []
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        self.seen |= earlier
        self.gaps += gaps
        for key, value in records.items():
            self.view.apply(key, value)


class Maintained:
    """One source of a worker that owns everything. ``now``: its clock, in seconds."""

    def __init__(self, source: ScriptedSource, *, until_caught_up: bool = False) -> None:
        self.committed = Committed()
        self.view = self.committed.view
        self.now = 1000.0
        self.stream = source.connect()
        self.state = SourceState(
            cast(Any, source),
            self.stream,
            self.view,
            ReaderPool(),
            until_caught_up=until_caught_up,
            clock=lambda: self.now,
        )
        self.owned = set(range(64))
        group: Any = SimpleNamespace(owned=self.owned)
        self._upkeep = Upkeep(group, cast(Any, self.committed), self.view, lambda: None)

    def serve(self) -> None:
        """As the worker does."""
        try:
            self._upkeep.serve([self.state])
        except Aborted:
            self.state.list_soon()

    def serve_until(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not reached():
            assert time.monotonic() < deadline
            self.serve()
            time.sleep(0.01)

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        return self.view.checkpoints.get(self.stream, {})

    def held_up_since(self) -> float | None:
        return self.state.succession.held_up_since

    def write(self, shard: str, checkpoint: Checkpoint) -> None:
        """Commit ``checkpoint``, as another worker does."""
        self.view.apply(self.stream.checkpoint_key(shard), checkpoint.to_json())


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource("orders", shards=2)


@pytest.mark.parametrize("has_journals", [False, True])
def test_the_first_checkpoints_of_shards_are_written_again_after_an_abort(
    source: ScriptedSource, has_journals: bool
) -> None:
    """I1: the resume timestamp does not count a shard without one. No page comes of a shard that cannot be read."""
    source.has_journals = has_journals
    relay = Maintained(source)
    let_go = source.hold("starting_points")
    relay.serve()
    let_go()
    relay.committed.fails = [None, None, Aborted("of the first checkpoints")]  # after the plan, and before a listing
    relay.serve_until(lambda: not relay.committed.fails)
    assert not relay.checkpoints
    relay.serve_until(lambda: len(relay.checkpoints) == 2)


def test_a_stream_with_a_journal_is_not_caught_up_before_its_new_shards_are_known(source: ScriptedSource) -> None:
    """I1: ``--until-caught-up`` would end before they are read. The end may become visible while sources are served."""
    source.has_journals = True
    relay = Maintained(source, until_caught_up=True)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    relay.now = 1010.0
    relay.state.look.soon()
    relay.serve()
    journal = {"id": "1", "participants": ["shard-00000"], "targets": {"-80": {}, "80-": {}}}
    relay.write("shard-00000", Checkpoint(ShardState.FINISHED, journal=journal, updated_at=1009.0))
    relay.write("shard-00001", Checkpoint(ShardState.FINISHED, updated_at=1009.0))
    assert not relay.state.is_caught_up()
    relay.serve()
    assert set(relay.state.lineage.listed) == {"shard-00000", "shard-00001", "-80", "80-"}
    assert not relay.state.is_caught_up()


def test_a_table_that_only_another_worker_has_met_is_added_to_the_plan(source: ScriptedSource) -> None:
    """I1, I2: or its key could change, and nobody would say that it is emptied if it is dropped while no relay runs."""
    source.has_journals = True
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    other = SourceState(cast(Any, source), relay.stream, relay.view, ReaderPool())
    other.poll_listing()
    other.open_ready_shards(relay.owned)
    other.check_tables([TableSchema("orders", "later", (KeyColumn("a", "int"), KeyColumn("b", "int")), 1)])
    page = Page(Shard("shard-00000"), [], {"n": 1}, None, None, 0.0)
    told = other.checkpoint(page)
    assert told is not None
    relay.write("shard-00000", told)
    relay.serve_until(lambda: "later" in relay.view.plans[relay.stream].keys)
    plan = relay.view.plans[relay.stream]
    assert (plan.keys["later"], plan.hashed["later"]) == ([["a", "int"], ["b", "int"]], 1)
    relay.serve()
    assert relay.committed.claimed == [("orders", "later")]
    last = other.checkpoint(replace(page, finished=True))
    assert last is not None
    assert last.unplanned == {}
    other.close_shards()


def test_a_plan_that_another_worker_has_made_first_is_not_taken_for_that_of_the_next_stream(
    source: ScriptedSource,
) -> None:
    """I9: the gap between the two streams would go unsaid."""
    relay = Maintained(source)
    let_go = source.hold("starting_points")
    relay.serve()
    source.wait_for("starting_points")
    shards = {shard.id: {"type": "trim_horizon"} for shard in source.shards()}
    keys = {"orders": [["id", "S"]]}
    relay.view.apply(relay.stream.plan_key, Plan(source.start, 999.0, shards, keys, "scripted").to_json())
    let_go()
    relay.serve()
    for shard in shards:
        relay.write(shard, Checkpoint(ShardState.FINISHED, updated_at=999.0))
    source.label = FOLLOWING.label
    relay.serve_until(lambda: FOLLOWING in relay.view.plans)
    assert [gap.reason for gap in relay.committed.gaps] == ["new stream"]


def test_a_source_is_held_up_while_its_plan_is_made(source: ScriptedSource) -> None:
    """I10"""
    relay = Maintained(source)
    let_go = source.hold("starting_points")
    assert relay.held_up_since() is None
    relay.serve()
    relay.now += 500
    relay.serve()
    assert relay.held_up_since() == 1000.0
    let_go()
    relay.serve_until(lambda: relay.checkpoints)
    relay.serve_until(lambda: relay.held_up_since() is None)


def test_a_plan_is_made_of_the_config_that_was_reloaded_meanwhile(source: ScriptedSource) -> None:
    """I1: a shard that the config no longer has cannot be asked for its start, nor opened."""
    relay = Maintained(source)
    let_go = source.hold("starting_points")
    relay.serve()
    source.wait_for("starting_points")
    source.lists([Shard("-")])
    config, reload = config_of("test", "localhost:9092", [source]), ConfigReload()
    reload.request(lambda: config)
    while source.entry is None:
        reload.serve([relay.state])
    let_go()
    relay.serve_until(lambda: relay.state.plan)
    assert relay.state.plan is not None
    assert set(relay.state.plan.shards) == {"-"}


def test_a_source_is_held_up_until_it_is_connected_to_its_next_stream_however_often_that_fails(
    source: ScriptedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the stream before it has ended, and can still be listed."""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    for shard in source.shards():
        relay.write(shard.id, Checkpoint(ShardState.FINISHED, updated_at=999.0))

    def refuse(label: str | None = None) -> StreamId:
        raise Unavailable("no")

    with monkeypatch.context() as patched:
        patched.setattr(source, "connect", refuse)
        source.label = FOLLOWING.label
        relay.serve_until(lambda: relay.state.succession.is_waiting)
        relay.now += 500
        relay.serve()
        relay.serve_until(lambda: relay.state.succession.is_waiting)
        assert relay.held_up_since() == 1000.0
    relay.now += 500
    relay.serve_until(lambda: FOLLOWING in relay.view.plans)
    relay.serve_until(lambda: relay.held_up_since() is None)


def test_a_source_whose_next_stream_is_known_is_looked_at_until_it_is_switched_to(source: ScriptedSource) -> None:
    """I10: the records of the next stream expire while nobody reads it."""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    source.label = FOLLOWING.label
    relay.state.list_soon()
    relay.serve_until(lambda: relay.state.discovery.successor is not None)
    assert relay.state.look.ask_at == 0.0


def test_a_stream_repairs_no_gaps_of_the_stream_that_follows_it(source: ScriptedSource) -> None:
    """Another worker may have switched already: the table would be read for both, and then once more."""
    source.on_gap = "resnapshot"
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    plan = Plan(source.start, 1000.0, {}, {"orders": [["id", "S"]]}, "scripted", "between", 0)
    relay.view.apply(FOLLOWING.plan_key, plan.to_json())
    fields = {"id": "1", "gaps": ["between"], "after": 0, "as_of": None, "segments": 0, "rows": 0}
    control = Checkpoint(ShardState.PLANNED, snapshot=fields, updated_at=1000.0)
    relay.view.apply(records_of(FOLLOWING).checkpoint_key(CONTROL), control.to_json())
    assert relay.state.gaps_to_repair() == set()


def test_a_shard_that_another_worker_has_pruned_since_the_listing_is_not_read_again(source: ScriptedSource) -> None:
    """I3, I9: its records would be published twice, or it would be reported as lost."""
    parent, child = Shard("parent"), Shard("child", ("parent",))
    source.lists([parent, child])
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    relay.write("parent", Checkpoint(ShardState.FINISHED))
    relay.write("child", Checkpoint(ShardState.READING, parents=("parent",)))
    relay.owned.clear()
    relay.serve()
    relay.view.apply(relay.stream.checkpoint_key("parent"), None)
    relay.state.close_shards()
    relay.owned.update(range(64))
    relay.serve()
    assert set(relay.checkpoints) == {"child"}
    assert "parent" not in relay.state.open


class NoRows:
    """The snapshots of a table without rows."""

    margin = 0.0
    reads_at_once = 1
    is_selective = False

    def is_initial(self, plan: Plan, published: Mapping[str, Checkpoint]) -> bool:
        return False

    def measure(self, published: Mapping[str, Checkpoint], tables: Collection[str] | None = None) -> Measured:
        return Measured(0, 0)

    def may_begin(self, as_of: int, published: Mapping[str, Checkpoint]) -> bool:
        return True

    def open(self, segment: Segment) -> ShardReader:
        raise AssertionError("it has no segments")


def without_segments(source: ScriptedSource) -> tuple[Maintained, Snapshots]:
    """Return what reads the source, whose snapshots have nothing to read."""
    source.snapshots = NoRows()
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    assert relay.state.snapshots is not None
    return relay, relay.state.snapshots


def test_segments_that_were_stopped_wait_until_their_last_checkpoints_are_seen(source: ScriptedSource) -> None:
    """I3: also if the transaction is aborted in which they were stopped."""
    relay, snapshots = without_segments(source)
    snapshots.unseen = {7}
    relay.committed.fails = [Aborted("in which they were stopped")]
    relay.state.look.soon()
    relay.serve_until(lambda: not relay.committed.fails)
    assert (snapshots.unseen, relay.committed.seen) == ({7}, set())
    relay.serve_until(lambda: not snapshots.unseen)
    assert relay.committed.seen == {7}


def test_nothing_follows_from_the_record_of_a_snapshot_until_the_view_shows_it_and_nothing_waits_for_that(
    source: ScriptedSource,
) -> None:
    """I3: or it would be written and marked twice."""
    relay, snapshots = without_segments(source)
    relay.committed.shows = False
    request = SnapshotRequest.new("orders", (), relay.now)
    relay.view.apply(request.key, request.to_json())
    relay.serve_until(lambda: relay.committed.hidden)
    for _ in range(5):
        relay.now += 10.0
        relay.state.look.soon()
        relay.serve()
    assert relay.committed.hidden == [{snapshots.control_key}]
    assert snapshots.control is None
    assert not snapshots.is_settled()
    relay.committed.show()
    relay.serve_until(lambda: snapshots.control is not None and snapshots.control.snapshot is not None)


def test_a_record_of_a_snapshot_that_was_aborted_is_written_again(source: ScriptedSource) -> None:
    """I1"""
    relay, snapshots = without_segments(source)
    request = SnapshotRequest.new("orders", (), relay.now)
    relay.view.apply(request.key, request.to_json())
    relay.committed.fails = [Aborted("in which it was requested")]
    relay.state.look.soon()
    relay.serve_until(lambda: not relay.committed.fails)
    assert snapshots.control is None
    relay.serve_until(lambda: snapshots.control is not None)


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
    records = records_of(relay.stream)
    fields = {"id": "1", "gaps": [], "after": 0, "as_of": 900, "segments": 1, "rows": 1}
    control = Checkpoint(ShardState.READING, snapshot=fields, updated_at=1000.0)
    relay.view.apply(records.checkpoint_key(CONTROL), control.to_json())
    other = SourceState(cast(Any, source), relay.stream, relay.view, ReaderPool())
    assert other.snapshots is not None
    other.snapshots.open_ready_segments(relay.owned)
    other.snapshots.check_tables([TableSchema("orders", "later", (KeyColumn("a", "int"), KeyColumn("b", "int")), 1)])
    page = Page(Shard("1/0"), [], {"rows": 1}, None, None, 0.0)
    told = other.snapshots.checkpoint(page)
    assert told is not None
    relay.view.apply(records.checkpoint_key("1/0"), told.to_json())
    relay.serve_until(lambda: "later" in relay.view.plans[relay.stream].keys)
    plan = relay.view.plans[relay.stream]
    assert (plan.keys["later"], plan.hashed["later"]) == ([["a", "int"], ["b", "int"]], 1)
    last = other.snapshots.checkpoint(replace(page, finished=True))
    assert last is not None
    assert last.unplanned == {}
    for each in (other, relay.state):
        each.close_shards()

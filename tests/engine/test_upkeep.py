"""What a worker plans, lists and opens beside publishing pages, also if a transaction is aborted in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from relay.change import MARK
from relay.engine.config_reload import ReloadedConfig
from relay.errors import RelayError, Unavailable
from relay.kafka.checkpoints import OWNER_KEYS, partition_of
from relay.kafka.publisher import Aborted, Fenced
from relay.records import (
    PRUNE_AFTER,
    PartitionOwner,
    Plan,
    RequestedPartitions,
    ReshardJournal,
    Shard,
    ShardCheckpoint,
    ShardState,
    SnapshotBeginning,
    SnapshotControl,
    StreamId,
    partitions_key,
)
from relay.source import UnknownShard
from relay.stream import discovery
from relay.token import EventToken
from tests.engine.maintained import Maintained, NoRows
from tests.scripted_source import LABEL, ScriptedSource, config_of

FOLLOWING = StreamId("orders", LABEL.replace("01", "02"))
LAST = StreamId("orders", LABEL.replace("01", "03"))


@pytest.fixture(autouse=True)
def lists_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_RELIST_SOON", 0.02)


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
    journal = ReshardJournal("1", ("shard-00000",), {"-80": {}, "80-": {}})
    relay.write("shard-00000", ShardCheckpoint(ShardState.FINISHED, journal=journal, updated_at=1009.0))
    relay.write("shard-00001", ShardCheckpoint(ShardState.FINISHED, updated_at=1009.0))
    assert not relay.state.is_caught_up()
    relay.serve()
    assert set(relay.state.lineage.listed) == {"shard-00000", "shard-00001", "-80", "80-"}
    assert not relay.state.is_caught_up()


def test_a_source_whose_journals_announce_a_shard_twice_stops_alone(source: ScriptedSource) -> None:
    """I12"""
    source.has_journals = True
    source.lists([Shard("-80"), Shard("80-")])
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    for shard in ("-80", "80-"):
        relay.write(shard, ShardCheckpoint(ShardState.FINISHED, journal=ReshardJournal(shard, (shard,), {"0": {}})))
    relay.state.look.soon()
    with pytest.raises(RelayError, match="shard 0 is announced twice") as refused:
        relay.serve()
    assert refused.value.source == "orders"


def test_a_journal_that_cannot_be_followed_is_refused(source: ScriptedSource) -> None:
    source.has_journals = True
    source.lists([Shard("-80")])
    relay = Maintained(source)
    relay.serve_until(lambda: relay.checkpoints)
    with pytest.raises(RelayError, match="merges shard -80 with 80-"):
        relay.state.check_journal(Shard("-80"), ReshardJournal("1", ("-80", "80-"), {"0": {}}))
    relay.state.check_journal(Shard("-80"), ReshardJournal("1", ("-80",), {"0": {}}))


def test_a_plan_that_another_worker_has_made_first_is_not_taken_for_that_of_the_next_stream(
    source: ScriptedSource,
) -> None:
    """I9: the gap between the two streams would go unsaid."""
    relay = Maintained(source)
    let_go = source.hold("starting_points")
    relay.serve()
    source.wait_for("starting_points")
    shards = {shard.id: {"type": "trim_horizon"} for shard in source.shards()}
    keys = {"orders": (("id", "S"),)}
    relay.view.apply(relay.stream.plan_key, Plan(source.start, 999.0, shards, keys, "scripted").to_json())
    let_go()
    relay.serve()
    for shard in shards:
        relay.write(shard, ShardCheckpoint(ShardState.FINISHED, updated_at=999.0))
    source.label = FOLLOWING.label
    relay.serve_until(lambda: relay.view.of(FOLLOWING).plan)
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
    config = config_of("test", "localhost:9092", [source])
    reload = ReloadedConfig(config, lambda: config)
    reload.request()
    while source.entry is None:
        reload.serve([relay.state])
    let_go()
    relay.serve_until(lambda: relay.state.plan)
    assert relay.state.plan is not None
    assert set(relay.state.plan.shards) == {"-"}


def test_a_plan_also_gets_the_partitions_of_tables_that_appear(source: ScriptedSource) -> None:
    """I2: so that partitions that are added to their topics later are noticed."""
    relay = Maintained(source)
    relay.serve_until(lambda: relay.state.plan)
    plan = relay.state.plan
    assert plan is not None
    assert plan.partitions == {"test.orders": 1}
    keys = {**plan.keys, "lines": (("id", "S"),)}
    relay.view.apply(relay.stream.plan_key, replace(plan, keys=keys).to_json())
    relay.state.look.soon()
    relay.serve()
    assert relay.state.plan is not None
    assert relay.state.plan.partitions == {"test.orders": 1, "test.lines": 1}


def test_a_source_is_held_up_until_it_is_connected_to_its_next_stream_however_often_that_fails(
    source: ScriptedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the stream before it has ended, and can still be listed."""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    for shard in source.shards():
        relay.write(shard.id, ShardCheckpoint(ShardState.FINISHED, updated_at=999.0))

    def refuse(label: str | None = None) -> StreamId:
        raise Unavailable("no")

    with monkeypatch.context() as patched:
        patched.setattr(source, "connect", refuse)
        source.label = FOLLOWING.label
        relay.serve_until(lambda: relay.state.switching.is_waiting)
        relay.now += 500
        relay.serve()
        relay.serve_until(lambda: relay.state.switching.is_waiting)
        assert relay.held_up_since() == 1000.0
    relay.now += 500
    relay.serve_until(lambda: relay.view.of(FOLLOWING).plan)
    relay.serve_until(lambda: relay.held_up_since() is None)


def test_a_source_whose_next_stream_is_known_is_looked_at_until_it_is_switched_to(source: ScriptedSource) -> None:
    """I10: the records of the next stream expire while nobody reads it."""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    source.label = FOLLOWING.label
    relay.state.list_soon()
    relay.serve_until(lambda: relay.state.discovery.successor is not None)
    assert relay.state.look.ask_at == 0.0


@pytest.mark.parametrize("is_replaced", [True, False])
def test_the_first_listing_after_the_end_of_a_shard_may_lack_its_children(
    source: ScriptedSource, is_replaced: bool
) -> None:
    """I1: they would not be read if the stream were left for its successor, or ``--until-caught-up`` ended."""
    relay = Maintained(source, until_caught_up=True)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    relay.state.list_soon()
    relay.serve_until(lambda: relay.state.lineage.listings == 2)
    relay.now = 1010.0
    for shard in source.shards():
        relay.write(shard.id, ShardCheckpoint(ShardState.FINISHED, updated_at=1009.0))
    if is_replaced:
        source.label = FOLLOWING.label
    relay.state.list_soon()
    relay.serve_until(lambda: relay.state.lineage.listings == 3)
    source.lists([*source.shards(), Shard("child", ("shard-00000",))])
    assert not relay.state.is_caught_up()
    relay.serve_until(lambda: "child" in relay.checkpoints or relay.state.stream != relay.stream)
    assert relay.state.stream == relay.stream


def test_a_planned_shard_that_the_first_listing_lacks_is_not_taken_for_read(
    source: ScriptedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: it has no checkpoint yet, and ``--until-caught-up`` would end without it."""
    kept, lacking = source.shards()
    listings = iter([[kept, lacking], [kept]])
    monkeypatch.setattr(source, "shards", lambda: next(listings, [kept, lacking]))
    relay = Maintained(source, until_caught_up=True)
    relay.now = 1010.0
    relay.serve_until(lambda: kept.id in relay.checkpoints)
    relay.write(kept.id, ShardCheckpoint(ShardState.READING, {"type": "scripted", "sequence": 1}, progress=1011.0))
    assert not relay.state.is_caught_up()
    relay.serve_until(lambda: lacking.id in relay.checkpoints)
    relay.write(lacking.id, ShardCheckpoint(ShardState.READING, {"type": "scripted", "sequence": 1}, progress=1011.0))
    relay.serve_until(relay.state.is_caught_up)


def test_a_stream_that_is_removed_before_it_is_planned_is_passed_over(source: ScriptedSource) -> None:
    """I10: the stream before it is followed by another one then."""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    for shard in source.shards():
        relay.write(shard.id, ShardCheckpoint(ShardState.FINISHED, updated_at=999.0))
    source.removed = {FOLLOWING.label}
    source.label = FOLLOWING.label
    relay.serve_until(lambda: relay.state.switching.is_waiting)
    assert relay.state.stream == FOLLOWING
    source.label = LAST.label
    relay.now += 500
    relay.serve_until(lambda: relay.view.of(LAST).plan)
    assert relay.view.of(FOLLOWING).plan is None
    assert [(gap.begin, gap.end) for gap in relay.committed.gaps] == [({"stream": LABEL}, {"stream": LAST.label})]


def test_a_shard_that_listings_lack_is_lost_only_once_the_source_does_not_know_it(source: ScriptedSource) -> None:
    """I1, I9: listings may lack a shard for a while that can be read all the time."""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)
    kept, lacking = source.shards()
    source.lists([kept])
    relay.state.list_soon()
    relay.serve_until(lambda: relay.state.lineage.is_gone(lacking.id))
    assert relay.committed.gaps == []
    relay.state.shards.open[lacking.id].note(UnknownShard(lacking, 0.0), 0.0)
    relay.state.list_soon()
    relay.serve_until(lambda: relay.committed.gaps)
    assert [(gap.reason, gap.shard) for gap in relay.committed.gaps] == [("shard lost", lacking.id)]
    assert set(relay.state.shards.open) == {kept.id}


def test_a_shard_that_was_begun_is_opened_although_the_first_listings_lack_it(source: ScriptedSource) -> None:
    """I1: after a restart only its checkpoint says that it is there."""
    kept, lacking = source.shards()
    source.lists([kept])
    relay = Maintained(source)
    shards = {shard.id: {"type": "trim_horizon"} for shard in (kept, lacking)}
    plan = Plan(source.start, 999.0, shards, {"orders": (("id", "S"),)}, "scripted")
    relay.view.apply(relay.stream.plan_key, plan.to_json())
    relay.write(lacking.id, ShardCheckpoint(ShardState.READING, {"type": "scripted", "sequence": 1}))
    relay.serve_until(lambda: relay.state.lineage.is_gone(lacking.id))
    relay.serve()
    assert set(relay.state.shards.open) == {kept.id, lacking.id}
    assert relay.committed.gaps == []


def test_a_stream_repairs_no_gaps_of_the_stream_that_follows_it(source: ScriptedSource) -> None:
    """Another worker may have switched already: the table would be read for both, and then once more."""
    source.on_gap = "resnapshot"
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    plan = Plan(source.start, 1000.0, {}, {"orders": (("id", "S"),)}, "scripted", "between", 0)
    relay.view.apply(FOLLOWING.plan_key, plan.to_json())
    control = SnapshotControl(ShardState.PLANNED, "1", gaps=("between",), updated_at=1000.0)
    relay.view.apply(FOLLOWING.snapshot_key, control.to_json())
    assert relay.state.gaps_to_repair() == set()


def test_a_shard_that_another_worker_has_pruned_since_the_listing_is_not_read_again(source: ScriptedSource) -> None:
    """I3, I9: its records would be published twice, or it would be reported as lost."""
    parent, child = Shard("parent"), Shard("child", ("parent",))
    source.lists([parent, child])
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    relay.write("parent", ShardCheckpoint(ShardState.FINISHED))
    relay.write("child", ShardCheckpoint(ShardState.READING, parents=("parent",)))
    relay.now += PRUNE_AFTER
    relay.owned.clear()
    relay.serve()
    relay.view.apply(relay.stream.shard_key("parent"), None)
    relay.state.close_shards()
    relay.owned.update(range(64))
    relay.serve()
    assert set(relay.checkpoints) == {"child"}
    assert "parent" not in relay.state.shards.open


def test_what_is_open_is_dropped_once_another_config_is_in_force() -> None:
    """I1, I3: a worker that starts over goes by what is committed."""
    relay = Maintained(ScriptedSource("orders"))
    relay.serve_until(lambda: relay.state.shards.open)
    relay.view.apply(relay.stream.plan_key, replace(relay.plan, in_force="other").to_json())
    relay.owned.remove(partition_of(relay.stream.plan_key))
    with pytest.raises(Fenced, match="source orders: the other workers have switched to another config"):
        relay.serve()
    relay.state.close_shards()
    for _ in range(3):
        relay.serve()
    assert not relay.state.shards.open


def another(partition: int, relay: Maintained, ready: Mapping[str, int]) -> None:
    """Let another worker own a partition."""
    relay.owned.discard(partition)
    relay.view.apply(OWNER_KEYS[partition], PartitionOwner("other", {"orders": ""}, ready).to_json())


def test_a_source_is_closed_until_no_worker_publishes_to_the_former_partitions(source: ScriptedSource) -> None:
    """I2, I3, I7"""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)
    keys = (relay.stream.plan_key, relay.stream.listing_key, *map(relay.stream.shard_key, relay.checkpoints))
    free = min(set(range(64)).difference(map(partition_of, keys)))
    another(free, relay, {})
    relay.write("shard-00000", ShardCheckpoint(ShardState.READING, token=EventToken(5000, "s", "x"), updated_at=1000.0))
    before = relay.plan
    relay.view.apply(partitions_key("orders", "test.orders"), RequestedPartitions(24).to_json())
    for _ in range(3):
        relay.serve()
    assert not relay.state.is_open
    assert relay.required >= relay.owned, "it knows what it has committed before it opens shards again"
    assert relay.view.owners[OWNER_KEYS[next(iter(relay.owned))]].ready == {"test.orders": 24}
    assert (relay.plan, relay.committed.marks) == (before, [])
    another(free, relay, {"test.orders": 24})
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)
    assert relay.plan == replace(before, partitions={"test.orders": 24}, floor=5001)
    assert relay.committed.marks == [({MARK: "repartition", "partitions": "24"}, range(1))]
    relay.serve()
    assert relay.view.owners[OWNER_KEYS[next(iter(relay.owned))]].ready == {}


def test_a_running_snapshot_begins_in_new_partitions_too(source: ScriptedSource) -> None:
    """I9: its end counts only where its beginning is."""
    source.snapshots = NoRows()
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)
    running = SnapshotControl(ShardState.READING, "1", begun=SnapshotBeginning(as_of=7), tables=("orders",))
    relay.view.apply(relay.stream.snapshot_key, running.to_json())
    relay.view.apply(partitions_key("orders", "test.orders"), RequestedPartitions(24).to_json())
    relay.serve_until(lambda: relay.plan.partitions == {"test.orders": 24})
    assert ({MARK: "begin"}, range(1, 24)) in relay.committed.marks


def test_a_schema_that_is_refused_while_a_topic_gets_more_partitions_stops_its_source_alone(
    source: ScriptedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12"""
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)

    def refuse(tables: object) -> None:
        raise RelayError("the registry refuses it")

    monkeypatch.setattr(relay.committed.writers, "use", refuse)
    relay.view.apply(partitions_key("orders", "test.orders"), RequestedPartitions(24).to_json())
    with pytest.raises(RelayError, match="the registry refuses it") as refused:
        relay.serve_until(lambda: False)
    assert refused.value.source == "orders"

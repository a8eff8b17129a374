"""What of a source is set aside, and when nothing else is left of it (I12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from relay.errors import ConfigError, NoAnswer, RelayError, Unavailable
from relay.kafka.checkpoints import partition_of
from relay.reading.set_aside import GapPending
from relay.records import Gap, Shard, ShardCheckpoint, ShardState, SnapshotBeginning, SnapshotControl, SnapshotRequest
from relay.source import Opening, Page, PageCounts, ShardReader
from relay.stream import discovery
from tests.engine.maintained import Committed, Maintained, NoRows
from tests.scripted_source import ScriptedSource
from tests.waiting import wait_until

ONE, OTHER, CHILD = "shard-00000", "shard-00001", "child"


class Refusing(ScriptedSource):
    """``error``: what is raised when the first shard is opened."""

    error: Exception | None = None

    def open(self, opening: Opening) -> ShardReader:
        if self.error is not None and opening.shard.id == ONE:
            raise self.error
        return super().open(opening)


@pytest.fixture(autouse=True)
def lists_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_RELIST_SOON", 0.02)


@pytest.fixture
def source() -> Refusing:
    return Refusing("orders", shards=2)


@pytest.fixture
def relay(source: Refusing) -> Maintained:
    relay = Maintained(source, until_caught_up=True)
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)
    return relay


def put_aside(relay: Maintained, shard: str = ONE) -> None:
    relay.state.put_aside(relay.state.shards.open[shard], RelayError("refused"))


def read_up(relay: Maintained, *shards: str) -> None:
    """Let ``shards`` have a change from long after the start."""
    for shard in shards:
        relay.state.confirm(Page(Shard(shard), [], {"n": 1}, None, relay.now + 3600, relay.now, counts=PageCounts(1)))


def until_stuck(relay: Maintained, owned: set[int]) -> None:
    """It is not stuck while the next listing is due, which is soon again."""
    relay.serve_until(lambda: relay.state.is_stuck(owned))


def owner_of(*shards: str) -> Callable[[Maintained], set[int]]:
    return lambda relay: {partition_of(relay.stream.shard_key(shard)) for shard in shards}


def test_a_shard_that_cannot_be_opened_is_set_aside_and_the_others_are_read(source: Refusing) -> None:
    source.error = RelayError("`shards` does not list it")
    relay = Maintained(source)
    relay.serve_until(lambda: relay.state.set_aside.refusals)
    assert set(relay.state.shards.open) == {OTHER}
    source.error = None
    relay.state.set_aside.lose(None)
    relay.state.list_soon()
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)


def test_a_shard_without_a_page_waits_for_a_parent_that_is_listed_late(source: Refusing) -> None:
    """I2: otherwise both are read at once."""
    source.lists([Shard(CHILD, (ONE,))])
    relay = Maintained(source)
    relay.serve_until(lambda: CHILD in relay.state.shards.open)
    source.lists([Shard(ONE, closed=True), Shard(CHILD, (ONE,))])
    relay.state.list_soon()
    relay.serve_until(lambda: ONE in relay.state.shards.open)
    assert set(relay.state.shards.open) == {ONE}
    relay.write(ONE, ShardCheckpoint(ShardState.FINISHED, {"n": 1}, updated_at=relay.now))
    relay.serve_until(lambda: set(relay.state.shards.open) == {CHILD})


def test_a_config_that_does_not_fit_a_shard_ends_the_relay(source: Refusing) -> None:
    source.error = ConfigError("the key has changed")
    relay = Maintained(source)
    with pytest.raises(ConfigError, match="the key has changed"):
        relay.serve_until(lambda: relay.state.shards.open)


def test_a_source_is_stuck_once_all_but_what_is_set_aside_is_read(relay: Maintained) -> None:
    put_aside(relay)
    assert not relay.state.is_stuck(relay.owned)
    read_up(relay, OTHER)
    until_stuck(relay, relay.owned)
    assert not relay.state.is_caught_up()


def test_shards_of_other_workers_and_what_comes_after_them_do_not_count(source: Refusing, relay: Maintained) -> None:
    """Each of two workers would wait for what the other has set aside."""
    source.lists([Shard(ONE), Shard(OTHER), Shard(CHILD, (OTHER,))])
    relay.state.list_soon()
    relay.serve_until(lambda: CHILD in relay.checkpoints)
    put_aside(relay)
    until_stuck(relay, owner_of(ONE, CHILD)(relay))
    assert not relay.state.is_stuck(owner_of(ONE, OTHER)(relay))


def test_a_source_is_not_stuck_while_a_shard_may_be_gone(source: Refusing, relay: Maintained) -> None:
    """I9: the run would end before the gap is published, and each later one too."""
    source.lists([Shard(OTHER)])
    relay.state.list_soon()
    relay.serve_until(lambda: list(relay.state.lineage.listed) == [OTHER])
    read_up(relay, OTHER)
    assert not relay.state.is_stuck(relay.owned)
    until_stuck(relay, owner_of(OTHER)(relay))


def test_a_source_is_not_caught_up_while_one_listing_lacks_a_shard_that_has_ended(
    source: Refusing, relay: Maintained
) -> None:
    """I1: the listing may lack a child of it, too."""
    read_up(relay, ONE)
    relay.now += 5
    relay.write(OTHER, ShardCheckpoint(ShardState.FINISHED, {"n": 1}, updated_at=relay.now))
    relay.now += 5
    listings = relay.state.lineage.listings
    relay.serve_until(lambda: relay.state.lineage.listings > listings)
    source.lists([Shard(ONE)])
    relay.state.list_soon()
    relay.serve_until(lambda: OTHER in relay.state.lineage.absent)
    assert not relay.state.is_caught_up()
    relay.now += 5
    relay.serve_until(relay.state.is_caught_up)


def test_a_source_is_caught_up_only_after_two_listings_from_after_the_end_of_a_shard(
    source: Refusing, relay: Maintained
) -> None:
    """I1: those from before it do not show its children."""
    read_up(relay, ONE)
    source.lists([Shard(ONE)])
    relay.state.list_soon()
    relay.serve_until(lambda: OTHER in relay.state.lineage.absent)
    relay.now += 5
    relay.write(OTHER, ShardCheckpoint(ShardState.FINISHED, {"n": 1}, updated_at=relay.now))
    relay.now += 5
    relay.serve_until(lambda: relay.state.lineage.is_gone(OTHER))
    assert not relay.state.is_caught_up()
    relay.now += 5
    relay.serve_until(relay.state.is_caught_up)


def test_a_source_is_not_stuck_while_it_connects_to_the_next_stream(source: Refusing, relay: Maintained) -> None:
    """I1: nothing of the next one would ever be read by runs that end."""
    let_go = source.hold("connect")
    source.label = "2027"
    for shard in (ONE, OTHER):
        relay.write(shard, ShardCheckpoint(ShardState.FINISHED, {"n": 1}, updated_at=relay.now))
    relay.now += 3600
    relay.state.list_soon()
    relay.serve_until(lambda: relay.state.discovery.successor is not None or relay.state.switching.is_connecting)
    for _ in range(5):
        assert not relay.state.is_stuck(relay.owned)
        relay.serve()
    let_go()


def test_a_source_is_not_stuck_while_it_does_not_see_how_its_snapshot_goes_on(source: Refusing) -> None:
    """I7"""
    source.snapshots = NoRows()
    relay = Maintained(source, until_caught_up=True)
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)
    put_aside(relay)
    read_up(relay, OTHER)
    assert relay.state.snapshots is not None
    assert relay.state.is_stuck(relay.owned)
    relay.state.snapshots.sees = lambda: False
    assert not relay.state.is_stuck(relay.owned)


def test_a_source_is_not_stuck_before_its_segments_are_opened(source: Refusing) -> None:
    """I7: unless they are set aside themselves."""
    source.snapshots = NoRows()
    relay = Maintained(source, until_caught_up=True)
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)
    put_aside(relay)
    read_up(relay, OTHER)
    control = SnapshotControl(ShardState.READING, "1", begun=SnapshotBeginning(900, 1, 1), updated_at=1000.0)
    relay.view.apply(relay.stream.snapshot_key, control.to_json())
    key = relay.stream.segment_key("1/0")
    assert not relay.state.is_stuck(relay.owned)
    relay.state.set_aside.add(key, "1/0", RelayError("refused"))
    assert relay.state.is_stuck(relay.owned)


def test_a_snapshot_that_a_person_has_stopped_keeps_no_run_from_its_end(source: Refusing) -> None:
    """I10: nor is its segment red, which nobody will try again."""
    source.snapshots = NoRows()
    relay = Maintained(source, until_caught_up=True)
    relay.serve_until(lambda: len(relay.state.shards.open) == 2)
    request = SnapshotRequest("orders", "r", (), 990.0, stopped=True)
    control = SnapshotControl(
        ShardState.READING, "1", begun=SnapshotBeginning(900, 1, 1), updated_at=1000.0, requests=("r",)
    )
    for key, record in ((request.key, request), (relay.stream.snapshot_key, control)):
        relay.view.apply(key, record.to_json())
    relay.state.set_aside.add(relay.stream.segment_key("1/0"), "1/0", RelayError("refused"))
    relay.state.try_again()
    assert not relay.state.set_aside.refusals
    put_aside(relay)
    read_up(relay, OTHER)
    assert relay.state.is_stuck(relay.owned)


def test_a_stream_that_is_not_begun_is_stuck_for_the_worker_that_is_to_begin_it(source: Refusing) -> None:
    relay = Maintained(source, until_caught_up=True)
    key = relay.stream.plan_key
    relay.state.set_aside.add(key, None, GapPending(Gap("orders", "2026", None, "new stream", None, None, 1.0)))
    assert relay.state.is_stuck(relay.owned)
    assert relay.state.is_stuck(relay.owned - {partition_of(key)})
    relay.state.set_aside.forget(key)
    assert not relay.state.is_stuck(relay.owned)


def test_a_segment_of_a_snapshot_that_is_over_does_not_stay_set_aside(source: Refusing) -> None:
    """I10: it would be red for ever."""
    source.snapshots = NoRows()
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    key = relay.stream.segment_key("1/0")
    for snapshot, kept in (("1", {key}), ("2", set())):
        control = SnapshotControl(ShardState.READING, snapshot, begun=SnapshotBeginning(900, 1, 1), updated_at=1000.0)
        relay.view.apply(relay.stream.snapshot_key, control.to_json())
        if kept:
            relay.state.set_aside.add(key, "1/0", RelayError("refused"))
        relay.state.try_again()
        assert set(relay.state.set_aside.refusals) == kept


def test_streams_that_wait_for_a_decision_delay_the_plan_of_no_other() -> None:
    """I10: as many plans are made at once, and one that waits is not being made."""
    committed = Committed()
    waiting = [Maintained(ScriptedSource(f"waits-{number}"), committed) for number in range(16)]
    last = Maintained(ScriptedSource("last"), committed)
    for each in waiting:
        gap = Gap(each.stream.source, each.stream.label, None, "new stream", None, None, 1.0)
        each.state.set_aside.add(each.stream.plan_key, None, GapPending(gap))
    everything = [each.state for each in (*waiting, last)]

    def is_planned() -> bool:
        last._upkeep.serve(cast(Any, everything))
        return last.state.plan is not None

    wait_until(is_planned)
    assert all(each.state.plan is None for each in waiting)


def test_a_source_that_is_alone_and_whose_stream_cannot_be_chosen_may_answer_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I12: others may be back by then, and no person has to do anything."""
    source = Refusing("orders", shards=1)

    def first() -> str:
        raise Unavailable("not now")

    monkeypatch.setattr(source, "first", first)
    with pytest.raises(NoAnswer, match="not now"):
        Maintained(source).state.choose_stream(is_alone=True)


def test_why_no_stream_could_be_chosen_is_known_after_a_rebalance_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: a rebalance forgets what is set aside, and nobody else would set this aside again."""
    source = Refusing("orders", shards=1)
    relay = Maintained(source)
    answers: list[str] = []

    def first() -> str:
        if not answers:
            raise Unavailable("not now")
        return answers[0]

    monkeypatch.setattr(source, "first", first)
    relay.state.choose_stream(is_alone=False)
    relay.state.set_aside.lose(None)
    assert not relay.state.join_planned()
    assert [str(each.error) for each in relay.state.set_aside.refusals.values()] == ["not now"]
    answers.append(source.stream.label)
    relay.now += 3600
    wait_until(relay.state.join_planned, 30)
    relay.state.set_aside.lose(None)
    relay.state.join_planned()
    assert not relay.state.set_aside.refusals

"""How far a stream is: never further than its shard that is furthest behind."""

from __future__ import annotations

from typing import Any

from relay.records import CommittedStream, Plan, RecordKind, Shard, ShardCheckpoint, ShardState, StreamId
from relay.stream.progress import CommittedProgress, low_watermark, read_until, resume_timestamp
from tests.records.graphs import finished, lineage_of


def test_the_resume_timestamp_is_the_least_progress_and_zero_while_one_has_none() -> None:
    reading = {str(p): ShardCheckpoint(ShardState.READING, progress=p) for p in (30.9, 20.1)}
    assert resume_timestamp(reading) == 20
    child = ShardCheckpoint(ShardState.READING, progress=40.0, parents=("ended",))
    followed = {"ended": finished(progress=1.0), "child": child}
    assert resume_timestamp({**reading, **followed}) == 20
    assert resume_timestamp({**reading, "new": ShardCheckpoint(ShardState.PLANNED)}) == 0


def test_a_restart_of_an_sql_source_begins_before_statements_that_still_run() -> None:
    """I1: their transactions will have the times when they began."""
    reading = {"other": ShardCheckpoint(ShardState.READING, progress=30.0)}
    assert resume_timestamp({**reading, "-": ShardCheckpoint(ShardState.READING, progress=45.0, reached=47.0)}) == 15
    assert resume_timestamp({**reading, "-": ShardCheckpoint(ShardState.READING, progress=20.0, reached=47.0)}) == 0
    child = ShardCheckpoint(ShardState.READING, progress=50.0, parents=("-",))
    assert resume_timestamp({**reading, "-": finished(progress=45.0, reached=47.0), "child": child}) == 30


def test_a_restart_begins_where_a_shard_has_ended_until_all_its_children_have_checkpoints() -> None:
    """I1: they begin there, and nothing else says so."""
    reading = {"other": ShardCheckpoint(ShardState.READING, progress=50.0)}
    ended, child = finished(progress=20.0), ShardCheckpoint(ShardState.READING, progress=40.0, parents=("p",))
    both = [Shard("p"), Shard("c", ("p",)), Shard("d", ("p",))]
    assert resume_timestamp({**reading, "p": ended}) == 20
    assert resume_timestamp({**reading, "p": ended, "c": child}, both) == 20
    assert resume_timestamp({**reading, "p": finished(progress=20.0, children=("c", "d")), "c": child}) == 20
    assert resume_timestamp({**reading, "p": ended, "c": child, "d": child}, both) == 40


def test_a_shard_of_which_nothing_was_read_begins_where_its_parents_have_got_to() -> None:
    child = ShardCheckpoint(ShardState.PLANNED, parents=("p", "q"))
    parents = {"p": ShardCheckpoint(ShardState.READING, progress=30.0), "q": finished(progress=20.0)}
    assert resume_timestamp({**parents, "c": child}) == 20
    assert resume_timestamp({"p": parents["p"], "c": child}) == 0


HOUR = 3600.0


def test_a_planned_shard_that_was_left_after_its_parent_may_have_lost_what_aged_out_since() -> None:
    """I9: it has no position that a stream would refuse."""
    child, now = Shard("c", ("p",)), 100 * HOUR
    horizon = {"type": "trim_horizon"}
    plan = Plan("trim_horizon", now - 12 * HOUR, {"p": horizon, "c": horizon}, {})
    # Its parent ended with a record of 29 hours ago, and was read twelve hours ago.
    parents = {"p": finished(progress=now - 29 * HOUR, updated_at=now - 12 * HOUR)}
    assert now - read_until(child, plan, None, parents, now) > 24 * HOUR
    # Read at once, at the end of a backlog, nothing was missed that had not been at the horizon before.
    parents = {"p": finished(progress=now - 24.1 * HOUR, updated_at=now - 60)}
    assert now - read_until(child, plan, None, parents, now) < 24 * HOUR
    # What is younger than a day is there, however long the shard was left.
    parents = {"p": finished(progress=now - 23 * HOUR, updated_at=now - 22 * HOUR)}
    assert now - read_until(child, plan, None, parents, now) < 24 * HOUR
    empty = {"p": finished(progress=None, updated_at=now - HOUR)}
    assert now - read_until(child, plan, None, empty, now) > 24 * HOUR


def test_a_planned_shard_loses_nothing_from_before_the_time_that_it_is_wanted_from() -> None:
    child, now = Shard("c", ("p",)), 100 * HOUR
    parents = {"p": finished(progress=now - 40 * HOUR, updated_at=now - 30 * HOUR)}
    for since in (now - 12 * HOUR, now - 20 * HOUR):
        plan = Plan("latest", now - 12 * HOUR, {"p": {"since": since}, "c": {"since": since}}, {})
        assert read_until(child, plan, None, parents, now) == since
    plan = Plan("token", now - 12 * HOUR, {"p": {}, "c": {"type": "after_sequence", "sequence": "5"}}, {})
    assert read_until(child, plan, None, parents, now) == plan.planned_at
    assert read_until(child, plan, None, {}, now) == plan.planned_at
    assert read_until(child, plan, ShardCheckpoint(ShardState.READING, progress=7.0), parents, now) == 7.0


def test_the_low_watermark_waits_for_shards_that_are_not_planned_or_not_listed_yet() -> None:
    """I1: what is before it is on the topic, also while a shard has ended and its children are still to come."""
    reading = ShardCheckpoint(ShardState.READING, progress=50.0)
    graph = lineage_of(Shard("a"), Shard("p"))
    assert low_watermark({"a": reading}, graph) is None
    assert low_watermark({"a": reading, "p": finished(progress=20.0)}, graph) == 20.0
    graph.update([Shard("a"), Shard("p"), Shard("c", ("p",))])
    assert low_watermark({"a": reading, "p": finished(progress=20.0)}, graph) is None
    planned = ShardCheckpoint(ShardState.PLANNED, parents=("p",))
    checkpoints = {"a": reading, "p": finished(progress=20.0), "c": planned}
    assert low_watermark(checkpoints, graph) == 20.0
    checkpoints["c"] = ShardCheckpoint(ShardState.READING, parents=("p",), progress=70.0)
    assert low_watermark(checkpoints, graph) == 50.0
    assert low_watermark({}, lineage_of(listings=0)) is None


def test_the_low_watermark_is_unknown_while_one_listing_lacks_an_ended_shard_and_its_children() -> None:
    """I1: the next one may show them. After a start, the first one lacks all shards that were removed long ago."""
    checkpoints = {"a": ShardCheckpoint(ShardState.READING, progress=50.0), "p": finished(progress=20.0)}
    followed = {**checkpoints, "c": finished(progress=30.0, parents=("p",)), "d": finished(parents=("c",))}
    graph = lineage_of(Shard("a"), Shard("p"))
    graph.update([Shard("a")], checkpoints)
    assert low_watermark(checkpoints, graph) is None
    assert low_watermark(followed, graph) == 50.0
    graph.update([Shard("a")], checkpoints)
    assert low_watermark(checkpoints, graph) == 50.0


class SlowStream(CommittedStream):
    """The checkpoints of a stream with one shard, which take ``cost`` seconds to go through."""

    now = 100.0
    cost = 0.0

    def __init__(self) -> None:
        super().__init__(StreamId("s", "l"))
        self.progress = CommittedProgress(self, clock=lambda: self.now)
        self.advance(30.0, 0.0)

    def __getattribute__(self, name: str) -> Any:
        if name == "checkpoints":
            self.now += self.cost
        return super().__getattribute__(name)

    def advance(self, to: float, seconds: float, gap: str | None = None) -> None:
        self.now += seconds
        checkpoint = ShardCheckpoint(ShardState.READING, progress=to, gap=gap)
        cost, self.cost = self.cost, 0.0
        self.apply(RecordKind.SHARD, "a", checkpoint.to_json())
        self.cost = cost


def test_progress_is_computed_less_often_the_longer_it_takes_and_gaps_at_once_when_they_change() -> None:
    slow = SlowStream()

    def advance(to: float, seconds: float) -> int:
        slow.advance(to, seconds)
        return slow.progress.resume_timestamp()

    assert slow.progress.resume_timestamp() == 30
    assert advance(31.0, 0.09) == 30
    assert advance(32.0, 0.02) == 32
    slow.cost = 0.01
    assert advance(33.0, 0.2) == 33
    assert advance(34.0, 0.4) == 33
    assert resume_timestamp(slow.checkpoints) == 34
    assert slow.progress.gaps() == set()
    slow.advance(35.0, 0.0, gap="g")
    assert slow.progress.gaps() == {"g"}
    before = slow.now
    slow.advance(36.0, 0.0, gap="g")
    assert (slow.progress.gaps(), slow.now) == ({"g"}, before)


def test_the_low_watermark_is_computed_less_often_the_longer_it_takes() -> None:
    slow, graph = SlowStream(), lineage_of(Shard("a"))

    def advance(to: float, seconds: float) -> float | None:
        slow.advance(to, seconds)
        return slow.progress.low_watermark(graph)

    assert advance(30.0, 0.0) == 30.0
    assert advance(31.0, 0.09) == 30.0
    slow.cost = 0.01
    assert advance(32.0, 0.02) == 32.0
    assert advance(33.0, 0.4) == 32.0
    assert advance(34.0, 0.2) == 34.0

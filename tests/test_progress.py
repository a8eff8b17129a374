"""How far a stream is: never further than its shard that is furthest behind."""

from __future__ import annotations

from relay.lineage import Checkpoint, Lineage, Shard, ShardState, Stream
from relay.progress import low_watermark, resume_timestamp
from tests.test_lineage import ended, lineage


def test_the_resume_timestamp_is_the_least_progress_and_zero_while_one_has_none() -> None:
    reading = {str(p): Checkpoint(ShardState.READING, progress=p) for p in (30.9, 20.1)}
    assert resume_timestamp(reading) == 20
    assert resume_timestamp({**reading, "ended": ended(progress=1.0)}) == 20
    assert resume_timestamp({**reading, "new": Checkpoint(ShardState.PLANNED)}) == 0


def test_a_shard_of_which_nothing_was_read_begins_where_its_parents_have_got_to() -> None:
    child = Checkpoint(ShardState.PLANNED, parents=("p", "q"))
    parents = {"p": Checkpoint(ShardState.READING, progress=30.0), "q": ended(progress=20.0)}
    assert resume_timestamp({**parents, "c": child}) == 20
    assert resume_timestamp({"p": parents["p"], "c": child}) == 0


def test_the_low_watermark_waits_for_shards_that_are_not_planned_or_not_listed_yet() -> None:
    """I1: what is before it is on the topic, also while a shard has ended and its children are still to come."""
    reading = Checkpoint(ShardState.READING, progress=50.0)
    graph = lineage(Shard("a"), Shard("p"))
    assert low_watermark({"a": reading}, graph) is None
    assert low_watermark({"a": reading, "p": ended(progress=20.0)}, graph) == 20.0
    graph.update([Shard("a"), Shard("p"), Shard("c", ("p",))])
    assert low_watermark({"a": reading, "p": ended(progress=20.0)}, graph) is None
    planned = Checkpoint(ShardState.PLANNED, parents=("p",))
    checkpoints = {"a": reading, "p": ended(progress=20.0), "c": planned}
    assert low_watermark(checkpoints, graph) == 20.0
    checkpoints["c"] = Checkpoint(ShardState.READING, parents=("p",), progress=70.0)
    assert low_watermark(checkpoints, graph) == 50.0
    assert low_watermark({}, Lineage(Stream("s", "l"))) is None

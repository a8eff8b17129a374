"""The graph of `Stream` and the lineage of the relay allow the same shards to be read: parents first (I2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.dynamodb.stream_graph import ShardGraph
from relay.records import CommittedStream, Lineage, Plan, Shard, ShardCheckpoint, ShardState, StreamId


@st.composite
def lineages(draw: st.DrawFn) -> list[Shard]:
    shards: list[Shard] = []
    for number in range(draw(st.integers(1, 12))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        shards.append(Shard(str(number), () if parent is None else (str(parent),)))
    return shards


@given(lineages(), st.data())
def test_a_stream_and_the_relay_read_the_same_shards_next(shards: list[Shard], data: st.DataObject) -> None:
    committed = CommittedStream(StreamId("orders", "label"))
    committed.plan = Plan("trim_horizon", 0.0, {shard.id: {} for shard in shards}, {})
    graph, lineage = ShardGraph(lambda: 0.0), Lineage(committed)
    graph.add(shards)
    lineage.update(shards)
    while ready := graph.ready((), complete=True):
        assert ready == [shard.id for shard in lineage.ready()]
        ended = data.draw(st.sampled_from(ready))
        graph.end(ended)
        committed.checkpoints[ended] = ShardCheckpoint(ShardState.FINISHED)
    assert list(lineage.ready()) == []
    assert graph.ended.keys() == committed.plan.shards.keys()


@given(lineages(), st.data())
def test_a_partial_listing_starts_no_shard_without_a_known_parent(shards: list[Shard], data: st.DataObject) -> None:
    graph = ShardGraph(lambda: 0.0)
    graph.add(data.draw(st.permutations(shards)))
    roots = set(graph.roots)
    assert set(graph.ready((), complete=True)) == roots
    assert graph.ready((), complete=False) == []
    graph.end(*roots)
    assert set(graph.ready((), complete=False)) == {child for root in roots for child in graph.children(root)}


@given(lineages(), st.data())
def test_a_forgotten_shard_leaves_its_children_as_roots(shards: list[Shard], data: st.DataObject) -> None:
    """I11"""
    now = 0.0
    graph = ShardGraph(lambda: now)
    graph.add(shards)
    ended = set(data.draw(st.lists(st.sampled_from([shard.id for shard in shards]), unique=True)))
    graph.end(*ended)
    now = 48 * 3600
    listed = [shard for shard in shards if shard.id not in ended]
    assert set(graph.forget_expired(listed)) == ended
    assert graph.shards.keys() == {shard.id for shard in listed}
    assert set(graph.roots) == {shard.id for shard in listed if not shard.parents or shard.parents[0] in ended}
    assert sorted(graph.parents_first()) == sorted(graph.shards)


def test_a_token_leaves_out_a_shard_that_waits_for_a_complete_listing() -> None:
    """I1: a token that names it would say that it is finished."""
    graph = ShardGraph(lambda: 0.0)
    graph.add([Shard("started"), Shard("waits", ("of a parent that was not listed",))])
    assert graph.needed_by_token({"started"}) == ["started"]

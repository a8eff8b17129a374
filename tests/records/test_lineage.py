"""The lineage graph: which shard may be read when, what is lost, and the records written about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.records import PRUNE_AFTER, Gap, Lineage, PendingGap, Plan, Shard, ShardCheckpoint, ShardState
from relay.token import EventToken
from tests.records.graphs import finished, lineage_of


def given_that(graph: Lineage, checkpoints: dict[str, ShardCheckpoint]) -> Lineage:
    """Return ``graph`` once the checkpoints are committed."""
    graph.committed.checkpoints = checkpoints
    return graph


def ids(graph: Lineage, checkpoints: dict[str, ShardCheckpoint]) -> set[str]:
    return {shard.id for shard in given_that(graph, checkpoints).ready()}


def test_a_child_waits_until_its_parent_is_finished() -> None:
    """I2"""
    graph = lineage_of(Shard("p"), Shard("c", ("p",)))
    assert ids(graph, {}) == {"p"}
    assert ids(graph, {"p": ShardCheckpoint(ShardState.READING)}) == {"p"}
    assert ids(graph, {"p": finished()}) == {"c"}


def test_a_merged_child_waits_for_all_its_parents() -> None:
    graph = lineage_of(Shard("a"), Shard("b"), Shard("c", ("a", "b")))
    assert ids(graph, {"a": finished()}) == {"b"}
    assert ids(graph, {"a": finished(), "b": finished()}) == {"c"}


def test_a_gone_parent_lets_its_children_go_on() -> None:
    graph = lineage_of(Shard("c", ("p",)))
    assert ids(graph, {"p": ShardCheckpoint(ShardState.GONE)}) == {"c"}


def test_a_parent_trimmed_before_the_plan_is_waited_for_until_two_listings_lack_it() -> None:
    graph = lineage_of(Shard("c", ("before",)))
    assert ids(graph, {}) == set()
    graph.update([Shard("c", ("before",))])
    assert ids(graph, {}) == {"c"}
    assert given_that(graph, {}).lost() == []


@pytest.mark.parametrize("checkpoints", [{}, {"late": ShardCheckpoint(ShardState.PLANNED)}])
def test_an_ancestor_born_and_trimmed_while_no_relay_ran_is_lost_before_its_child_is_read(
    checkpoints: dict[str, ShardCheckpoint],
) -> None:
    """I9: neither it nor its child is in the plan, and it has no checkpoint."""
    graph = lineage_of(Shard("late", ("unseen",)))
    assert given_that(graph, checkpoints).lost() == []
    graph.update([Shard("late", ("unseen",))])
    assert given_that(graph, checkpoints).lost() == ["unseen"]
    assert ids(graph, checkpoints) == set()
    checkpoints = {**checkpoints, "unseen": ShardCheckpoint(ShardState.GONE)}
    assert given_that(graph, checkpoints).lost() == []
    assert ids(graph, checkpoints) == {"late"}


def test_a_lost_shard_whose_gap_waits_is_lost_also_once_nothing_names_it() -> None:
    """I9: its child is trimmed, too, before a person decides, and the gap would never be published."""
    planned = {"late": ShardCheckpoint(ShardState.PLANNED, parents=("unseen",))}
    graph = given_that(lineage_of(Shard("late", ("unseen",)), listings=2), planned)
    assert graph.lost() == ["unseen"]
    gap = Gap(graph.stream.source, graph.stream.label, "unseen", "shard lost", None, None, 0.0)
    graph.committed.pending_gaps[gap.id] = PendingGap(gap)
    for _ in range(2):
        graph.update([], planned)
    assert graph.lost() == ["late", "unseen"]
    child_is_gone = {"late": ShardCheckpoint(ShardState.GONE, parents=("unseen",))}
    assert given_that(graph, child_is_gone).lost() == ["unseen"]
    both_are_gone = {**child_is_gone, "unseen": ShardCheckpoint(ShardState.GONE)}
    assert given_that(graph, both_are_gone).lost() == []


def test_a_shard_of_the_plan_that_is_trimmed_before_it_has_a_checkpoint_is_lost() -> None:
    graph = lineage_of(Shard("c", ("p",)), listings=2)
    assert given_that(graph, {}).lost() == ["p"]
    assert ids(graph, {}) == set()


def test_a_parent_that_was_read_and_pruned_is_not_lost() -> None:
    graph = lineage_of(Shard("late", ("pruned",)), listings=2)
    checkpoints = {"late": ShardCheckpoint(ShardState.READING)}
    assert given_that(graph, checkpoints).lost() == []
    assert ids(graph, checkpoints) == {"late"}


def test_a_parent_that_comes_back_in_the_next_listing_is_not_gone() -> None:
    graph = lineage_of(Shard("c", ("p",)))
    graph.update([Shard("p"), Shard("c", ("p",))])
    graph.update([Shard("c", ("p",))])
    assert ids(graph, {}) == set()


def test_a_shard_that_vanished_before_its_end_is_lost_only_after_two_listings() -> None:
    """I9"""
    checkpoints = {"s": ShardCheckpoint(ShardState.READING)}
    graph = given_that(lineage_of(listings=0), checkpoints)
    graph.update([], checkpoints)
    assert given_that(graph, checkpoints).lost() == []
    graph.update([], checkpoints)
    assert given_that(graph, checkpoints).lost() == ["s"]


def test_a_shard_is_read_also_while_listings_lack_it() -> None:
    """I1, I2: they may lack it although it can be read. It waits for its parents, unless it was begun."""
    checkpoints = {
        "p": finished(),
        "begun": ShardCheckpoint(ShardState.READING, parents=("pruned",)),
        "next": ShardCheckpoint(ShardState.PLANNED, parents=("p",)),
        "waiting": ShardCheckpoint(ShardState.PLANNED, parents=("begun",)),
        "orphan": ShardCheckpoint(ShardState.PLANNED, parents=("unseen",)),
    }
    graph = given_that(lineage_of(listings=0), checkpoints)
    graph.update([Shard("a")], checkpoints)
    assert {shard.id: shard.parents for shard in graph.ready()} == {"a": (), "begun": ("pruned",), "next": ("p",)}
    asked_for = {shard for shard in (*checkpoints, "a", "unseen") if graph.is_asked_for(shard)}
    assert asked_for == {"begun", "next", "waiting"}


def test_a_planned_shard_whose_parent_was_trimmed_before_the_plan_is_read_although_listings_lack_it() -> None:
    """I1: it would be lost without a read. I2: a single listing may lack its parent, too."""
    checkpoints = {"c": ShardCheckpoint(ShardState.PLANNED, parents=("before",))}
    graph = given_that(lineage_of(listings=0), checkpoints)
    graph.update([], checkpoints)
    assert ids(graph, checkpoints) == set()
    graph.update([], checkpoints)
    assert graph.is_asked_for("c")
    assert ids(graph, checkpoints) == {"c"}
    graph.update([Shard("before")], checkpoints)
    assert ids(graph, checkpoints) == {"before"}


def test_a_shard_is_late_if_a_descendant_was_begun() -> None:
    """I2: no listing had it then."""
    graph = lineage_of(Shard("g"), Shard("p", ("g",)), Shard("c", ("p",)), Shard("d", ("p",)))
    given_that(graph, {"p": ShardCheckpoint(ShardState.PLANNED), "c": ShardCheckpoint(ShardState.READING)})
    assert graph.late("g") == graph.late("p") == ["c"]
    assert graph.late("c") == graph.late("d") == []


def test_a_shard_is_pruned_only_when_unlisted_old_and_its_children_have_records() -> None:
    parent = finished(updated_at=1000.0, children=("c",))
    late = 1000.0 + PRUNE_AFTER
    gone = lineage_of(listings=0)
    for _ in range(2):
        gone.update([Shard("c", ("p",))])
    assert list(given_that(gone, {"p": parent, "c": finished(updated_at=late)}).prunable(late)) == ["p"]
    assert list(given_that(gone, {"p": parent}).prunable(late)) == []
    assert list(given_that(gone, {"p": parent, "c": finished(updated_at=late)}).prunable(late - 1)) == []
    listed = lineage_of(Shard("p"), Shard("c", ("p",)), listings=2)
    assert list(given_that(listed, {"p": parent, "c": finished(updated_at=late)}).prunable(late)) == []


def test_the_floor_of_a_shard_is_inherited_through_ancestors_that_held_nothing() -> None:
    token = EventToken(500, "orders/l/p", "DynamoDB/1")
    checkpoints = {"p": finished(token=token), "c": finished(parents=("p",))}
    graph = lineage_of(Shard("p"), Shard("c", ("p",)), Shard("g", ("c",)))
    assert given_that(graph, checkpoints).floor(Shard("g", ("c",))) == 500


def test_the_same_loss_has_the_same_id_whenever_it_is_found() -> None:
    """I9"""
    one = Gap("orders", "l", "s", "trimmed", {"sequence": "5"}, None, 1.0)
    again = Gap("orders", "l", "s", "trimmed", {"sequence": "5"}, None, 2.0)
    other = Gap("orders", "l", "s", "trimmed", {"sequence": "6"}, None, 1.0)
    assert one.id == again.id != other.id


@given(st.data())
def test_reading_ready_shards_one_by_one_reads_every_shard_after_its_parents(data: st.DataObject) -> None:
    """I1, I2: on any graph, in any order of finishing, each shard once."""
    shards: list[Shard] = []
    for n in range(data.draw(st.integers(1, 12))):
        parents = data.draw(st.sets(st.sampled_from([s.id for s in shards]), max_size=2)) if shards else set()
        shards.append(Shard(f"s{n}", tuple(sorted(parents))))
    graph = lineage_of(*data.draw(st.permutations(shards)))
    checkpoints: dict[str, ShardCheckpoint] = {}
    order: list[str] = []
    while ready := sorted(ids(graph, checkpoints)):
        shard = data.draw(st.sampled_from(ready))
        checkpoints[shard] = finished()
        order.append(shard)
    assert sorted(order) == sorted(s.id for s in shards)
    assert all(order.index(p) < order.index(s.id) for s in shards for p in s.parents)


def test_the_floor_of_a_shard_that_was_read_is_its_own_last_timestamp() -> None:
    """I5: after a restart, a clock that went back must not make newer changes look older."""
    token = EventToken(1500, "orders/label/c", "DynamoDB/1")
    read = {"c": ShardCheckpoint(ShardState.READING, token=token), "p": ShardCheckpoint(ShardState.FINISHED)}
    assert given_that(lineage_of(), read).floor(Shard("c", ("p",))) == 1500


def test_the_floor_of_the_plan_may_be_later_than_the_last_timestamp_of_a_shard() -> None:
    """I7: once a topic has more partitions, every token is later than the ones in the former partitions."""
    token = EventToken(1500, "orders/label/c", "DynamoDB/1")
    graph = given_that(lineage_of(), {"c": ShardCheckpoint(ShardState.READING, token=token)})
    graph.committed.plan = Plan("latest", 0.0, {}, {}, floor=1501)
    assert graph.floor(Shard("c")) == 1501

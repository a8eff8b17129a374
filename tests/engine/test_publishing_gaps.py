"""Gaps are published once, after what came before them, whatever happens to the transactions in between."""

from __future__ import annotations

import pytest

from relay.kafka.publisher import Aborted
from relay.records import ShardCheckpoint, ShardState, StreamId
from tests.engine.publishing_bench import STREAM, Bench, gap, page, positions


def test_what_came_before_a_gap_is_committed_first_and_the_gap_with_the_page_that_passes_it() -> None:
    """I4, I9"""
    bench = Bench()
    shard = bench.shard()
    bench.owner.before_gap = ShardCheckpoint(ShardState.READING, {"sequence": 3})  # pages without changes were read
    bench.publishing.page(shard, page(1))
    bench.publishing.page(shard, page(5, gap=gap()))
    assert bench.broker.on("shop.orders") == [b"change-1"]
    assert bench.broker.on("shop.gaps") == []
    bench.publishing.commit()
    assert bench.broker.on("shop.orders") == [b"change-1", b"change-5"]
    assert bench.broker.on("shop.gaps") == [gap().to_json()]
    assert positions(bench) == [{"sequence": 3}, {"sequence": 5}]


def test_a_page_with_a_gap_is_published_again_although_the_commit_before_it_was_aborted() -> None:
    """I1"""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, page(1))
    bench.broker.fails.append(Aborted("a rebalance"))
    with pytest.raises(Aborted):
        bench.publishing.page(shard, page(5, gap=gap()))
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    assert bench.broker.on("shop.orders") == [b"change-1", b"change-5"]
    assert len(bench.broker.on("shop.gaps")) == 1


@pytest.mark.parametrize("has_changes", [True, False])
def test_what_came_before_a_gap_is_committed_before_a_person_is_asked_also_after_aborts(
    has_changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, I9: where a gap begins is part of its id, so a restart finds the gap that was accepted."""
    bench = Bench(on_gap="fail")
    monkeypatch.setattr("relay.stream.gap_decisions.write", lambda settings, written, check: None)
    shard = bench.shard()
    if has_changes:
        bench.publishing.page(shard, page(1))
    bench.owner.before_gap = ShardCheckpoint(ShardState.READING, {"sequence": 3})
    bench.broker.fails += [Aborted("a rebalance"), Aborted("another one")]
    with pytest.raises(Aborted):
        bench.publishing.page(shard, page(5, gap=gap()))
    bench.owner.before_gap = None  # as its newest checkpoint is already that
    bench.publishing.again(Aborted("a rebalance"))
    assert [f"relay gaps accept CONFIG {gap().id}" in each for each in bench.owner.aside] == [True]
    assert bench.broker.on("shop.orders") == ([b"change-1"] if has_changes else [])
    assert bench.broker.on("shop.gaps") == []
    assert positions(bench) == [{"sequence": 3}]


def test_a_gap_that_is_met_again_before_anything_was_read_after_it_is_reported_once() -> None:
    """I9, I10: under `fail` nobody could accept it a second time, and the relay would never start again."""
    bench = Bench(on_gap="fail")
    bench.view.of(STREAM).checkpoints = {"s": ShardCheckpoint(ShardState.READING, gap=gap().id)}
    bench.publishing.page(bench.shard(), page(5, gap=gap(found_at=9.0)))
    bench.publishing.commit()
    assert bench.broker.on("shop.gaps") == []


@pytest.mark.parametrize(
    ("committed", "other"),
    [
        ({STREAM: {"s": ShardCheckpoint(ShardState.READING, gap=gap(seconds=2).id)}}, "another gap of the shard"),
        ({StreamId("orders", "other"): {"s": ShardCheckpoint(ShardState.READING, gap=gap().id)}}, "another stream"),
        ({STREAM: {"t": ShardCheckpoint(ShardState.READING, gap=gap().id)}}, "another shard"),
    ],
)
def test_a_gap_is_reported_although(
    committed: dict[StreamId, dict[str, ShardCheckpoint]], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: ... the last gap of ``other`` is committed. Under `fail` it stops the shard, and is not passed."""
    bench = Bench(on_gap="fail")
    for stream, checkpoints in committed.items():
        bench.view.of(stream).checkpoints = checkpoints
    pending: list[str] = []
    monkeypatch.setattr("relay.stream.gap_decisions.write", lambda settings, written, check: pending.append(written.id))
    bench.publishing.page(bench.shard(), page(5, gap=gap()))
    assert [f"relay gaps accept CONFIG {gap().id}" in each for each in bench.owner.aside] == [True]
    assert pending == [gap().id]
    assert bench.broker.transactions == []

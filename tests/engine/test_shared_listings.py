"""Listings of a stream that one worker makes for several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Aborted
from relay.records import Shard, ShardCheckpoint, ShardState
from relay.stream import discovery
from tests.engine.maintained import Maintained
from tests.scripted_source import ScriptedSource


@pytest.fixture(autouse=True)
def lists_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_RELIST_SOON", 0.02)


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource("orders", shards=2)


def two_workers(source: ScriptedSource, *, until_caught_up: bool = False) -> tuple[Maintained, Maintained]:
    """Return the worker that lists ``source``, and one that owns all of its shards."""
    lists = Maintained(source, until_caught_up=until_caught_up)
    reads = Maintained(ScriptedSource("orders", shards=2), lists.committed, until_caught_up=until_caught_up)
    lists.owned.clear()
    lists.owned |= {partition_of(key) for key in (lists.stream.listing_key, lists.stream.plan_key)}
    reads.owned -= lists.owned
    names = {partition_of(lists.stream.shard_key(name)) for name in ("shard-00000", "shard-00001", "child")}
    assert not names & lists.owned
    return lists, reads


def other_source(worker: Maintained) -> ScriptedSource:
    return cast(ScriptedSource, worker.state.source)


def serve_both(lists: Maintained, reads: Maintained, reached: Callable[[], object]) -> None:
    def both() -> object:
        lists.now = reads.now = reads.now + 0.04
        lists.serve()
        return reached()

    reads.serve_until(both)


def test_the_children_of_a_shard_are_opened_within_seconds_by_a_worker_that_does_not_list_them(
    source: ScriptedSource,
) -> None:
    """I10: whoever owns the listing sees the end of the shard, too."""
    lists, reads = two_workers(source)
    serve_both(lists, reads, lambda: len(reads.state.shards.open) == 2)
    assert other_source(reads).listings == 0
    parent, other = source.shards()
    source.lists([replace(parent, closed=True), other, Shard("child", (parent.id,))])
    reads.write(parent.id, ShardCheckpoint(ShardState.FINISHED, updated_at=reads.now))
    begun = reads.now
    serve_both(lists, reads, lambda: "child" in reads.state.shards.open)
    assert reads.now - begun < 10.0
    assert (other_source(reads).listings, list(lists.state.shards.open)) == (0, [])


def test_a_reader_knows_that_its_shard_is_closed_whichever_worker_has_listed_it(source: ScriptedSource) -> None:
    """I1, I9: or its watermark would pass the records after empty pages."""
    lists, reads = two_workers(source)
    serve_both(lists, reads, lambda: len(reads.state.shards.open) == 2)
    opened = other_source(reads).openings
    source.lists([replace(shard, closed=shard.id == "shard-00000") for shard in source.shards()])
    lists.state.list_soon()
    serve_both(lists, reads, lambda: reads.state.lineage.listings == 2)
    assert {name: opening.is_closed() for name, opening in opened.items()} == {
        "shard-00000": True,
        "shard-00001": False,
    }


def test_a_listing_whose_transaction_was_aborted_is_made_again(source: ScriptedSource) -> None:
    """I10: the others do not know about it."""
    lists, reads = two_workers(source)
    serve_both(lists, reads, lambda: lists.state.plan)
    lists.committed.fails = [None, Aborted("of the listing")]
    serve_both(lists, reads, lambda: not lists.committed.fails)
    assert lists.view.of(lists.stream).listing is None
    serve_both(lists, reads, lambda: len(reads.state.shards.open) == 2)
    assert other_source(reads).listings == 0


def test_two_workers_are_caught_up_only_once_the_children_of_each_ended_shard_are(source: ScriptedSource) -> None:
    """I1: ``--until-caught-up`` would end before they are read."""
    lists, reads = two_workers(source, until_caught_up=True)
    serve_both(lists, reads, lambda: len(reads.state.shards.open) == 2)
    parent, other = source.shards()
    reads.write(other.id, ShardCheckpoint(ShardState.READING, {"type": "scripted"}, progress=reads.now + 1000.0))
    reads.write(parent.id, ShardCheckpoint(ShardState.FINISHED, updated_at=reads.now))
    seen = reads.state.lineage.listings
    serve_both(lists, reads, lambda: reads.state.lineage.listings > seen)
    for each in (source, other_source(reads)):
        each.lists([replace(parent, closed=True), other, Shard("child", (parent.id,))])
    assert not reads.state.is_caught_up()
    serve_both(lists, reads, lambda: "child" in reads.checkpoints)
    for worker in (lists, reads):
        assert not worker.state.is_caught_up()
    reads.write("child", ShardCheckpoint(ShardState.READING, {"type": "scripted"}, progress=reads.now + 1000.0))
    serve_both(lists, reads, lambda: lists.state.is_caught_up() and reads.state.is_caught_up())

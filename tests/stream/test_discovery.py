"""When the shards of a stream are listed again, and by which worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from relay.records import CommittedRecords, Lineage, Shard, ShardCheckpoint, ShardListing, ShardState
from relay.stream.discovery import ListedShards
from tests.clock import Clock
from tests.scripted_source import LABEL, ScriptedSource
from tests.waiting import wait_until

ENDED = ShardCheckpoint(ShardState.FINISHED, updated_at=1.0)
PARENT, CHILD = Shard("parent", closed=True), Shard("child", ("parent",))


class Cluster:
    """Workers that read one stream. What one of them commits, the view of all of them shows."""

    def __init__(self) -> None:
        self.view = CommittedRecords()
        self.clock = Clock()

    def worker(self, *, is_owner: bool = False, since: float = 0.0) -> OneWorker:
        return OneWorker(self, is_owner=is_owner, since=since)

    def tell(self, begun: float, *shards: Shard, took: float = 0.0, successor: str | None = None) -> None:
        """Commit a listing that began ``begun`` seconds from now."""
        listing = ShardListing(self.clock.now + begun, took, shards, successor)
        self.view.apply(ScriptedSource("orders").stream.listing_key, listing.to_json())


class OneWorker:
    def __init__(self, cluster: Cluster, *, is_owner: bool, since: float) -> None:
        self.source = ScriptedSource("orders")
        self.source.clock = cluster.clock
        self.stream = self.source.connect()
        self.view = cluster.view
        self.lineage = Lineage(self.view.of(self.stream))
        self.checkpoints = self.lineage.committed.checkpoints
        self.discovery = ListedShards(cast(Any, self.source), self.lineage, since=since, monotonic=cluster.clock)
        self.discovery.is_owner = is_owner

    def serve(self) -> bool:
        """Do what is due, as the worker does. Return whether a listing has arrived, or is wanted once more."""
        arrived, deadline = self.poll(), time.monotonic() + 600
        while self.discovery.is_listing:
            assert time.monotonic() < deadline
            time.sleep(0.001)
            arrived |= self.poll()
        return arrived

    def poll(self) -> bool:
        arrived = self.discovery.poll()
        if arrived and (listing := self.discovery.untold) is not None:
            self.view.apply(self.stream.listing_key, listing.to_json())
        return arrived

    def wait(self, clock: Clock, until: Callable[[], bool], *others: OneWorker) -> float:
        """Let the clock pass, while ``others`` are served too. Return after how many seconds ``until`` holds."""
        begun = clock.now
        while not until():
            assert clock.now - begun < 600
            for worker in (*others, self):
                worker.serve()
            clock.now += 0.5
        return clock.now - begun


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_both_listings_after_the_end_of_a_shard_come_soon_however_long_another_has_had_no_children(
    cluster: Cluster,
) -> None:
    """I10: the change to the next stream, and ``--until-caught-up``, wait for both."""
    worker, clock = cluster.worker(is_owner=True), cluster.clock
    worker.checkpoints["shard-00000"] = ENDED
    for _ in range(10):
        worker.serve()
        clock.now = worker.discovery.next_at
    worker.serve()
    assert worker.discovery.next_at - clock.now == 60.0, "its stream may be disabled for long"
    worker.discovery.soon()
    begun = clock.now
    for _ in range(2):
        clock.now = worker.discovery.next_at
        assert worker.serve()
    assert clock.now - begun <= 5.0


def test_one_worker_lists_for_all(cluster: Cluster) -> None:
    owner, others = cluster.worker(is_owner=True), [cluster.worker() for _ in range(3)]
    for _ in range(3600):
        for worker in (*others, owner):
            worker.serve()
        cluster.clock.now += 0.5
    assert owner.source.listings == 30
    assert [worker.source.listings for worker in others] == [0, 0, 0]
    assert {worker.lineage.listings for worker in (*others, owner)} == {30}, "each listing counts once"
    assert all(worker.lineage.listed == owner.lineage.listed for worker in others)


def test_the_children_of_a_shard_are_known_to_all_as_soon_as_one_has_listed_them(cluster: Cluster) -> None:
    """I10"""
    owner, other = cluster.worker(is_owner=True), cluster.worker()
    other.wait(cluster.clock, lambda: other.lineage.listings == 2, owner)
    owner.source.lists([PARENT, CHILD])
    owner.checkpoints["parent"] = ENDED
    for worker in (owner, other):
        worker.discovery.soon()
    assert other.wait(cluster.clock, lambda: bool(other.lineage.children("parent")), owner) <= 2.0
    assert (other.source.listings, other.lineage.is_closed("parent"), other.lineage.is_closed("child")) == (
        0,
        True,
        False,
    )


def test_a_worker_that_is_told_nothing_lists_by_itself(cluster: Cluster) -> None:
    """I10, I12: the owner may be unable to."""
    owner, other = cluster.worker(is_owner=True), cluster.worker()
    assert other.wait(cluster.clock, lambda: other.lineage.listings == 1) <= 11.0
    other.wait(cluster.clock, lambda: other.lineage.listings == 2, owner)
    assert other.source.listings == 1
    assert other.wait(cluster.clock, lambda: other.source.listings == 2) <= 92.0
    other.wait(cluster.clock, lambda: other.lineage.listings == 5, owner)
    assert other.source.listings == 2, "it listens again"


def test_the_new_owner_lists_as_soon_as_the_former_one_would_have(cluster: Cluster) -> None:
    """I10"""
    owner, other = cluster.worker(is_owner=True), cluster.worker()
    other.wait(cluster.clock, lambda: other.lineage.listings == 2, owner)
    other.discovery.is_owner = True
    assert 55.0 < other.wait(cluster.clock, lambda: other.source.listings == 1) <= 61.0


def test_a_listing_of_another_worker_counts_as_begun_a_little_earlier(cluster: Cluster) -> None:
    """I1: the clocks of two workers differ. What came at the beginning of a listing may be missing in it."""
    worker = cluster.worker()
    for begun in (-10.0, -5.0):
        cluster.tell(begun)
        assert worker.discovery.is_listing, "the stream is not drained yet"
        assert worker.discovery.is_due, "nor are its shards caught up"
        assert worker.serve()
    assert worker.discovery.listed_at == cluster.clock.now - 7.0
    assert worker.discovery.listed_before == cluster.clock.now - 12.0
    cluster.tell(-5.0)
    assert not worker.serve(), "it is the same listing"


def test_a_shard_is_gone_after_two_listings_of_another_worker_without_it(cluster: Cluster) -> None:
    """I1: a single one may be inconsistent, however often it is looked at."""
    worker = cluster.worker()
    worker.checkpoints["missing"] = ShardCheckpoint(ShardState.READING)
    cluster.tell(-10.0)
    for _ in range(5):
        worker.serve()
        worker.discovery.soon()
    assert (worker.lineage.absent, worker.lineage.is_gone("missing")) == ({"missing": 1}, False)
    cluster.tell(-1.0)
    worker.serve()
    assert worker.lineage.is_gone("missing")


@pytest.mark.parametrize("begun", [-24 * 3600.0, -130.0, 3600.0])
def test_a_listing_of_yesterday_is_not_taken_for_one_of_today(cluster: Cluster, begun: float) -> None:
    """I1: nor one of a worker whose clock is wrong. A shard without which only it and the next one are is not gone."""
    cluster.tell(begun, PARENT)
    worker = cluster.worker()
    assert not worker.serve()
    assert worker.wait(cluster.clock, lambda: worker.discovery.listed_at > 0) <= 11.0
    assert (worker.source.listings, worker.lineage.listings, [*worker.lineage.listed]) == (1, 1, ["shard-00000"])


def test_a_listing_that_took_long_is_not_old(cluster: Cluster) -> None:
    """I10: or all workers would list beside one whose listings are throttled."""
    cluster.tell(-200.0, took=190.0)
    worker = cluster.worker()
    assert worker.serve()
    assert worker.discovery.took == 190.0


def test_a_worker_that_is_to_end_once_caught_up_lists_after_its_start(cluster: Cluster) -> None:
    """I1: an earlier listing does not show what it has to read. A later one of another worker will do."""
    cluster.tell(-10.0, PARENT)
    worker = cluster.worker(since=cluster.clock.now)
    assert worker.serve()
    assert (worker.source.listings, [*worker.lineage.listed]) == (1, ["shard-00000"])
    cluster.clock.now += 5.0
    cluster.tell(0.0, PARENT)
    worker.serve()
    assert (worker.source.listings, [*worker.lineage.listed]) == (1, ["parent"])


def test_what_was_written_for_a_listing_of_another_worker_is_written_again_after_an_abort(cluster: Cluster) -> None:
    """I1: the resume timestamp does not count a shard without a checkpoint."""
    worker = cluster.worker()
    cluster.tell(-10.0)
    assert worker.serve()
    assert not worker.serve()
    worker.discovery.soon()
    assert worker.discovery.is_due
    assert worker.serve()
    assert not worker.serve()
    assert worker.source.listings == 0


def test_a_stream_that_another_one_follows_is_listed_by_each_worker(cluster: Cluster) -> None:
    """I10: whoever has listed it for the others reads the next one by now."""
    following = LABEL.replace("01", "02")
    cluster.tell(-1.0, PARENT, successor=following)
    worker = cluster.worker()
    worker.source.label = following
    worker.checkpoints["parent"] = ENDED
    assert worker.serve()
    assert worker.discovery.successor == following
    worker.source.lists([PARENT])
    assert worker.wait(cluster.clock, lambda: worker.source.listings == 2) <= 5.0


def test_a_listing_of_another_worker_is_taken_while_an_own_one_is_slow(cluster: Cluster) -> None:
    """I10: and the stream is not left for the next one, nor is ``--until-caught-up`` over, before both are applied."""
    worker = cluster.worker(since=cluster.clock.now)
    let_go = worker.source.hold("shards")
    worker.poll()
    worker.source.wait_for("shards")
    cluster.clock.now += 60.0
    cluster.tell(-10.0, PARENT, CHILD)
    assert worker.discovery.is_due
    assert worker.poll()
    assert [*worker.lineage.listed] == ["parent", "child"]
    assert worker.discovery.is_listing
    cluster.clock.now += 130.0  # the one of the other worker is old by now
    let_go()
    wait_until(lambda: worker.discovery.is_due, 60)
    assert not worker.poll()
    assert [*worker.lineage.listed] == ["parent", "child"], "the newer one"
    assert (worker.lineage.listings, worker.discovery.listed_before) == (1, 0.0), "I1: it is not a second one"


def test_a_worker_that_does_not_list_is_told_within_seconds_of_a_listing_that_began_after_the_end_of_a_shard(
    cluster: Cluster,
) -> None:
    """I10: with ``--until-caught-up`` it waits for one, and takes each as begun earlier."""
    owner, other = cluster.worker(is_owner=True), cluster.worker()
    other.wait(cluster.clock, lambda: other.lineage.listings == 1, owner)
    cluster.clock.now += 20.0
    ended_at = cluster.clock.now
    other.checkpoints["parent"] = ShardCheckpoint(ShardState.FINISHED, updated_at=ended_at)
    owner.source.lists([PARENT, CHILD])
    for worker in (owner, other):
        worker.discovery.soon()
    took = other.wait(cluster.clock, lambda: other.discovery.listed_at > ended_at, owner)
    assert took <= 10.0
    assert other.source.listings == 0
    listings = owner.source.listings
    owner.wait(cluster.clock, lambda: cluster.clock.now > ended_at + 60.0)
    assert owner.source.listings <= listings + 1, "and then it lists as rarely as before"


def test_a_clock_that_is_set_back_keeps_no_worker_from_listing(cluster: Cluster) -> None:
    """I10: the source's clock may have been wrong before."""
    worker = cluster.worker(is_owner=True)
    worker.serve()
    worker.source.clock = lambda: cluster.clock.now - 3600.0
    worker.discovery.clock = worker.source.clock
    worker.wait(cluster.clock, lambda: worker.lineage.listings == 3)
    assert worker.source.listings == 3

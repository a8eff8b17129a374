"""Pages of snapshots wait for those of streams, and for one another (I10), and are bounded with them (I11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relay.reading.reader_pool import LARGEST_PAGE, LONGEST_STAY, LONGEST_YIELD, OpenShard, ReaderPool
from tests.clock import Clock
from tests.reading.scripted_reads import PAGE, SOURCE, Reads
from tests.waiting import wait_until


@pytest.fixture
def arrived(pump: ReaderPool) -> Callable[[int], None]:
    """Return what waits until so many results have come, without taking one."""

    def wait(count: int) -> None:
        assert wait_until(lambda: pump._done.qsize() >= count, 30)

    return wait


def test_a_page_of_a_snapshot_lets_those_of_streams_pass_but_not_for_ever(
    pump: ReaderPool, clock: Clock, arrived: Callable[[int], None]
) -> None:
    segments = [pump.open(Reads(PAGE, PAGE), b"", SOURCE, most_at_once=2) for _ in range(2)]
    pump._start()
    arrived(2)
    shard = pump.open(Reads(*[PAGE] * 10), b"", SOURCE)
    pump._start()
    arrived(3)

    def taken() -> list[OpenShard]:
        return [each for each, _ in pump.take(0.0)]

    assert taken() == [shard]
    first = taken()
    assert first in ([segments[0]], [segments[1]]), "one at a time"
    pump.again(shard, 0.0)
    arrived(1)
    clock.now += LONGEST_YIELD / 2
    assert taken() == [shard]
    pump.again(shard, 0.0)
    arrived(1)
    clock.now += LONGEST_YIELD
    assert taken() == [shard, *(each for each in segments if each not in first)]


def test_no_page_of_a_snapshot_is_taken_while_none_may_delay_others(
    pump: ReaderPool, clock: Clock, arrived: Callable[[int], None]
) -> None:
    segment = pump.open(Reads(PAGE), b"", SOURCE, most_at_once=1)
    pump._start()
    arrived(1)
    clock.now += LONGEST_STAY
    assert pump.take(0.0, snapshots=False) == []
    assert segment.running
    assert pump.take(0.0) == [(segment, PAGE)]


def test_a_snapshot_goes_on_while_every_transaction_has_changes(
    pump: ReaderPool, clock: Clock, arrived: Callable[[int], None]
) -> None:
    """I10: many shards with a backlog always have pages for the next transaction when one is committed."""
    segment = pump.open(Reads(PAGE), b"", SOURCE, most_at_once=1)
    shard = pump.open(Reads(*[PAGE] * 10), b"", SOURCE)
    pump._start()
    arrived(2)
    assert pump.take(0.0, snapshots=False) == [(shard, PAGE)]
    clock.now += 2 * LONGEST_STAY
    pump.again(shard, 0.0)
    arrived(1)
    assert pump.take(0.0, snapshots=False) == [(shard, PAGE), (segment, PAGE)]


def test_segments_wait_for_one_another_but_no_shard_waits_for_them(pump: ReaderPool, clock: Clock) -> None:
    every = [Reads(PAGE) for _ in range(4)]
    for reads in every:
        reads.may_end.clear()
    segments = [pump.open(reads, b"", SOURCE, most_at_once=2) for reads in every]
    shard = pump.open(Reads(PAGE), b"", SOURCE)
    assert wait_until(lambda: [each for each, _ in pump.take(0.0)] == [shard], 30)
    assert sum(each.running for each in segments) == 2
    for reads in every:
        reads.may_end.set()
    taken: list[OpenShard] = []
    while len(taken) < 4:
        assert sum(each.running for each in segments) <= 2
        taken += [each for each, _ in pump.take(0.0)]
    assert set(map(id, taken)) == set(map(id, segments))


def test_a_segment_that_is_given_up_while_its_page_waits_makes_room_for_another(
    pump: ReaderPool, arrived: Callable[[int], None]
) -> None:
    given_up, other = Reads(PAGE), Reads(PAGE)
    first = pump.open(given_up, b"", SOURCE, most_at_once=1)
    second = pump.open(other, b"", SOURCE, most_at_once=1)
    pump._start()
    arrived(1)
    assert pump.take(0.0, snapshots=False) == []
    pump.shut(first)
    assert wait_until(lambda: pump.take(0.0) == [(second, PAGE)], 30)
    assert given_up.closed == 1


def test_pages_of_snapshots_that_wait_count_as_read_ahead(pump: ReaderPool, arrived: Callable[[int], None]) -> None:
    """I11"""
    for _ in range(100):
        pump.open(Reads(PAGE), b"", SOURCE, most_at_once=100)
    pump._start()
    arrived(64)
    for _ in range(3):
        assert pump.take(0.0, snapshots=False) == []
    assert sum(shard.running for shard in pump._open.values()) * LARGEST_PAGE == 64 << 20

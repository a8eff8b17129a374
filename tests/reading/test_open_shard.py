"""When an open shard is read again, and when its connection counts as one that is ended all the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.reading.reader_pool import OpenShard
from relay.source import PageCounts, Unreadable
from tests.reading.scripted_reads import PAGE, SHARD, SOURCE, Idle, Reads

READ = replace(PAGE, counts=PageCounts(records=1))
LOST = Unreadable(SHARD, 0.0, "the server closed the connection")


def test_a_shard_that_is_idle_for_days_is_read_as_often_as_one_that_is_idle_for_minutes() -> None:
    """I10: also after the half hour in which 1.5 to the power of its empty pages has become too large for a float."""
    shard = OpenShard(Idle(), b"", SOURCE)
    for number in range(200_000):
        shard.note(PAGE, float(number))
        assert number < 15 or shard.wait_after(PAGE, 80.0) == 80.0
    assert shard.failures == 0


def named_after(shard: OpenShard, cuts: int, every: float, fails: int = 1) -> list[int]:
    """Return after which cuts, one ``every`` so many seconds, the connection is named. ``fails``: reads at each."""
    found = []
    for number in range(cuts):
        shard.note(READ, number * every)
        for _ in range(fails):
            shard.note(LOST, number * every + 0.1)
            if shard.lost_often:
                found.append(number + 1)
    return found


def test_a_connection_that_is_ended_every_two_seconds_is_named_once() -> None:
    """I10: its failures are never three in a row."""
    assert named_after(OpenShard(Reads(streams=True), b"", SOURCE), 1000, 2.0) == [10]


@pytest.mark.parametrize(("streams", "every"), [(True, 30.0), (False, 2.0)])
def test_a_connection_that_is_lost_now_and_then_and_a_shard_that_is_throttled_are_not_named(
    streams: bool, every: float
) -> None:
    assert named_after(OpenShard(Reads(streams=streams), b"", SOURCE), 1000, every) == []


def test_an_outage_counts_once_however_many_reads_fail() -> None:
    assert named_after(OpenShard(Reads(streams=True), b"", SOURCE), 9, 2.0, fails=5) == []

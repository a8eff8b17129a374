"""When a shard counts as polled (I10), what is let go of when, and how many shards are waited for at once."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from relay.engine.status import polls
from relay.errors import ConfigError, RelayError
from relay.observe.health import STALLED_AFTER, find_stalls
from relay.reading.reader_pool import LARGEST_PAGE, LONGEST_WAIT, OpenShard, ReaderPool
from relay.source import Page, PageCounts, UnknownShard, Unreadable
from tests import interrupted
from tests.clock import Clock
from tests.observe.known import WALL, source, status
from tests.reading.scripted_reads import PAGE, SHARD, SOURCE, Idle, Reads
from tests.waiting import PATIENCE


def take(pump: ReaderPool, reading: OpenShard) -> None:
    while True:
        for read, _ in pump.take(0.0):
            assert read is reading
            pump.again(reading, 0.0)
            return


def test_only_a_read_that_succeeds_makes_a_shard_polled(pump: ReaderPool, clock: Clock) -> None:
    failed, gone = Unreadable(SHARD, 0.0, "throttled"), UnknownShard(SHARD, 0.0)
    reading = pump.open(Reads(failed, gone, PAGE, failed), b"", SOURCE)
    for now, polled, error in (
        (101.0, 100.0, "throttled"),
        (102.0, 100.0, "the source does not know it"),
        (103.0, 103.0, None),
        (104.0, 103.0, "throttled"),
    ):
        clock.now = now
        take(pump, reading)
        assert (reading.polled, reading.error) == (polled, error)


def test_what_a_reader_refuses_is_the_result_of_its_shard(pump: ReaderPool) -> None:
    """I12: another shard is read on."""
    error = RelayError("a statement that is refused")
    refused = pump.open(Reads(error), b"", SOURCE)
    read = pump.open(Reads(PAGE), b"", SOURCE)
    taken: list[tuple[OpenShard, object]] = []
    while len(taken) < 2:
        taken += pump.take(PATIENCE)
    assert dict(taken) == {refused: error, read: PAGE}


@pytest.mark.parametrize("error", [ConfigError("the key has changed"), ValueError("a bug")])
def test_a_wrong_config_and_a_bug_end_the_relay(pump: ReaderPool, error: Exception) -> None:
    pump.open(Reads(error), b"", SOURCE)
    with pytest.raises(type(error), match=str(error)):
        pump.take(PATIENCE)


def test_what_a_page_warns_of_is_shown_as_long_as_pages_do(pump: ReaderPool) -> None:
    """I10"""
    reading = pump.open(Reads(replace(PAGE, warning="db2 does not answer"), PAGE), b"", SOURCE)
    take(pump, reading)
    assert (reading.failures, reading.error) == (0, "db2 does not answer")
    take(pump, reading)
    assert reading.error is None


def test_of_20_000_idle_shards_none_is_stalled_before_it_is_late(pump: ReaderPool, clock: Clock) -> None:
    """I10: a worker reads its idle shards 250 times a second, so each has to wait for 80 s."""
    every = {str(number): pump.open(Idle(), b"", SOURCE) for number in range(20_000)}
    for shard in every.values():
        shard.empty = 100
    arrived, deadline = 0, time.monotonic() + 600
    while arrived < len(every):
        assert time.monotonic() < deadline
        for shard, result in pump.take(0.0):
            assert isinstance(result, Page)
            arrived += 1
            pump.again(shard, shard.wait_after(result, pump.longest_wait))
        time.sleep(0)  # a thread that only asks takes the interpreter from those that read

    def stalls() -> int:
        known = status(source(open=polls(every)), read_delay=pump.delay)
        return len(find_stalls(known, clock.now, clock.now, WALL))

    begun = clock.now
    clock.now = begun + 80
    assert stalls() == 0
    clock.now = begun + 80 + STALLED_AFTER + 1
    assert stalls() == 20_000


def test_a_reader_is_let_go_of_at_once_and_once_where_no_read_is_under_way(pump: ReaderPool) -> None:
    reads = Reads(PAGE)
    reading = pump.open(reads, b"", SOURCE)
    pump.shut(reading)
    assert reads.closed == 1
    pump.close()
    assert reads.closed == 1


def test_a_reader_is_not_let_go_of_while_it_is_read(pump: ReaderPool, clock: Clock) -> None:
    reads = Reads(PAGE)
    reads.may_end.clear()
    reading = pump.open(reads, b"", SOURCE)
    assert not pump.take(0.0)
    assert reads.begun.wait(120)
    pump.shut(reading)
    closed_early = reads.closed
    reads.may_end.set()
    while reads.closed == 0:
        assert not pump.take(0.0), "the page of a shard that was given up"
    assert (closed_early, reads.closed) == (0, 1)


def test_a_pump_that_is_closed_lets_go_of_every_reader(pump: ReaderPool) -> None:
    every = [Reads(PAGE) for _ in range(3)]
    for reads in every:
        pump.open(reads, b"", SOURCE)
    pump.take(0.0)
    pump.close()
    assert [reads.closed for reads in every] == [1, 1, 1]


def test_shards_that_stream_are_all_waited_for_at_once() -> None:
    """However many they are: the change that comes may be of any."""
    pump = ReaderPool()
    every = [Reads(PAGE, streams=True) for _ in range(100)]
    for reads in every:
        reads.may_end.clear()
        pump.open(reads, b"", SOURCE)
    deadline = time.monotonic() + 600
    while not all(reads.begun.is_set() for reads in every):
        assert time.monotonic() < deadline, sum(reads.begun.is_set() for reads in every)
        assert not pump.take(0.01)
    for reads in every:
        reads.may_end.set()
    pump.close()


def test_a_shard_that_streams_is_read_again_at_once_unless_it_failed(pump: ReaderPool) -> None:
    reading = pump.open(Reads(streams=True), b"", SOURCE)
    assert reading.wait_after(PAGE) == 0.0
    assert reading.wait_after(Unreadable(SHARD, 0.0, "connection reset")) > 0.0


def test_a_shard_whose_changes_come_thick_and_fast_is_left_to_gather_some(pump: ReaderPool) -> None:
    reading = pump.open(Reads(streams=True), b"", SOURCE)
    assert reading.wait_after(replace(PAGE, counts=PageCounts(1))) == 0.0
    assert 0.0 < reading.wait_after(replace(PAGE, counts=PageCounts(500))) < 0.01
    assert reading.wait_after(replace(PAGE, counts=PageCounts(500), pause=0.0)) == 0.0


def test_one_of_many_idle_shards_soon_waits_as_long_as_the_others(pump: ReaderPool) -> None:
    """Until then it is read more often than its share, and a worker may open thousands at once."""
    reading, waits = pump.open(Idle(), b"", SOURCE), []
    for reading.empty in range(1, 12):
        waits.append(reading.wait_after(PAGE, 80.0))
    assert all(wait <= LONGEST_WAIT for wait in waits[:7])
    assert waits[9:] == [80.0, 80.0]


@pytest.mark.parametrize("streams", [False, True])
def test_a_shard_whose_pace_is_limited_rests_as_long_as_its_page_says(pump: ReaderPool, streams: bool) -> None:
    reading = pump.open(Reads(streams=streams), b"", SOURCE)
    assert reading.wait_after(replace(PAGE, counts=PageCounts(500), pause=2.5)) == 2.5


def test_there_is_a_backlog_while_a_shard_is_read_that_has_one(pump: ReaderPool) -> None:
    def has_backlog() -> bool:
        return pump.has_backlog

    reading = pump.open(Reads(PAGE, PAGE), b"", SOURCE)
    assert not has_backlog(), "nothing is known of a shard that has not been read"
    assert pump.take(120.0)
    pump.again(reading, 0.0, has_backlog=True)
    assert has_backlog()
    assert pump.take(120.0)
    assert not has_backlog(), "it may have been its last page"
    pump.again(reading, 0.2)
    assert not has_backlog()


@pytest.mark.parametrize(
    ("streams", "page", "expected"),
    [
        (False, replace(PAGE, counts=PageCounts(1000), pause=0.0), True),
        (False, replace(PAGE, counts=PageCounts(1000)), False),
        (True, replace(PAGE, counts=PageCounts(1000), pause=0.0), True),
        (True, replace(PAGE, counts=PageCounts(3)), True),
        (True, PAGE, False),
        (True, replace(PAGE, counts=PageCounts(1000), pause=2.5), False),
    ],
)
def test_a_stream_that_brings_changes_has_a_backlog_and_an_idle_one_has_none(
    pump: ReaderPool, streams: bool, page: Page, expected: bool
) -> None:
    """It is read again at once if it is idle, and after a pause while many come."""
    reading = pump.open(Reads(streams=streams), b"", SOURCE)
    assert reading.has_backlog_after(page) == expected


def test_a_shard_that_is_given_up_has_no_backlog(pump: ReaderPool) -> None:
    reads = Reads(PAGE, PAGE)
    reading = pump.open(reads, b"", SOURCE)
    assert pump.take(120.0)
    reads.may_end.clear()
    pump.again(reading, 0.0, has_backlog=True)
    before = pump.has_backlog
    pump.shut(reading)
    assert (before, pump.has_backlog) == (True, False)
    reads.may_end.set()


def test_the_next_page_is_read_while_the_one_before_is_worked_on() -> None:
    pump = ReaderPool()
    reads = Reads(PAGE, PAGE)
    reading = pump.open(reads, b"", SOURCE)
    assert pump.take(120.0)
    reads.begun.clear()
    pump.again(reading, 0.0)
    assert reads.begun.wait(120)  # without another call of the pump
    pump.close()


def test_waiting_for_pages_ends_although_a_signal_handler_outlasts_it() -> None:
    """I10"""
    pump = ReaderPool()
    with interrupted.by_a_slow_handler() as handled:
        assert not pump.take(0.1)
    assert handled
    pump.close()


def test_pages_that_are_read_ahead_are_bounded_in_bytes() -> None:
    """I11: however many shards have a backlog."""
    pump = ReaderPool()
    every = [Reads(PAGE) for _ in range(200)]
    for reads in every:
        reads.may_end.clear()
        pump.open(reads, b"", SOURCE)
    assert not pump.take(0.0)
    ahead = [shard for shard in pump._open.values() if shard.running]
    assert 1 < len(ahead) * LARGEST_PAGE <= 64 << 20
    for reads in every:
        reads.may_end.set()
    pump.close()


def test_empty_pages_of_a_stream_prove_nothing_unless_they_move(pump: ReaderPool, clock: Clock) -> None:
    """I10: a stream that is cut off is as silent as a shard without changes."""
    moved = replace(PAGE, position={"gtid": "0-1-1"})
    reading = pump.open(Reads(PAGE, moved, moved, streams=True), b"", SOURCE)
    for now, polled in ((101.0, 100.0), (102.0, 102.0), (103.0, 102.0)):
        clock.now = now
        take(pump, reading)
        assert reading.polled == polled

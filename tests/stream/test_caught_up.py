"""What ends ``--until-caught-up``: what was there at the start has been read, and nothing less."""

from __future__ import annotations

from dataclasses import replace

from relay.reading.reader_pool import ReaderPool
from relay.records import CommittedRecords, Shard, ShardCheckpoint, ShardState
from relay.source import LastPage, Page, PageCounts
from relay.stream.caught_up import CaughtUp
from relay.stream.source_state import SourceState
from relay.stream.watermark_records import MARGIN
from tests.scripted_source import CLAIMS, ScriptedSource

STARTED = 1000.0
PARENT, CHILD = Shard("p"), Shard("c", ("p",))
PAGE = Page(PARENT, [], None, None, None, begun=STARTED + 1)
READING = ShardCheckpoint(ShardState.READING)


def noted(*pages: Page, has_heads: bool) -> CaughtUp:
    caught_up = CaughtUp(STARTED, has_heads=has_heads)
    for page in pages:
        caught_up.note(page)
    return caught_up


def test_a_shard_read_to_its_head_after_the_start_is_caught_up_while_it_is_open() -> None:
    """I1: what looks like the head of a closed shard may be a gap between its records."""
    at_head = replace(PAGE, at_head=True)
    caught_up = noted(at_head, has_heads=False)
    assert caught_up.has(PARENT, READING, STARTED)
    assert not caught_up.has(replace(PARENT, closed=True), READING, STARTED)
    assert not caught_up.has(PARENT, READING, STARTED - 1)  # it may have been closed since
    assert not noted(replace(at_head, begun=STARTED - 1), has_heads=False).has(PARENT, READING, STARTED)
    assert not noted(at_head, PAGE, has_heads=False).has(PARENT, READING, STARTED)


def test_a_record_from_after_the_start_shows_that_all_before_it_is_read() -> None:
    """I1: times of records may go back a little. What a record shows does not depend on whether it is published."""
    for created, records, shows in ((1.0, 1, False), (6.0, 1, True), (6.0, 0, False)):
        page = replace(PAGE, progress=STARTED + created, counts=PageCounts(records))
        assert noted(page, has_heads=False).has(PARENT, READING, STARTED) == shows
        elsewhere = replace(READING, progress=STARTED + created)
        assert noted(has_heads=False).has(PARENT, elsewhere, STARTED) == (created > MARGIN)


def test_shards_that_are_no_longer_listed_are_forgotten() -> None:
    """I11"""
    ended = replace(PAGE, reached=STARTED + 1, progress=STARTED + 1, end=LastPage())
    caught_up = noted(ended, has_heads=False)
    caught_up.keep([CHILD])
    assert caught_up.has(CHILD, READING, STARTED)
    caught_up.keep([replace(CHILD, parents=())])
    assert not caught_up.has(CHILD, READING, STARTED)


def test_a_head_that_was_reached_counts_from_the_start_on_wherever_it_was_reached() -> None:
    before, after = replace(PAGE, reached=STARTED - 1), replace(PAGE, reached=STARTED + 1)
    assert not noted(before, has_heads=True).has(PARENT, READING, STARTED)
    assert noted(after, has_heads=True).has(PARENT, READING, STARTED)
    elsewhere = ShardCheckpoint(ShardState.READING, reached=STARTED + 1)
    assert noted(has_heads=True).has(PARENT, elsewhere, STARTED)


def test_a_shard_that_followed_another_before_the_start_has_to_reach_its_own_head() -> None:
    """I1 for whoever waits for the command: a reshard while the relay was down leaves all of the target to read."""
    ended = replace(PAGE, reached=STARTED + 1, end=LastPage())
    assert not noted(ended, has_heads=True).has(CHILD, READING, STARTED)
    assert noted(ended, has_heads=False).has(CHILD, READING, STARTED)


def test_a_relay_that_runs_for_ever_keeps_nothing_for_it() -> None:
    """I11"""
    source = ScriptedSource("orders")
    for until_caught_up in (True, False):
        state = SourceState(
            source, source.connect(), CommittedRecords(), ReaderPool(), CLAIMS, until_caught_up=until_caught_up
        )
        assert isinstance(state.caught_up, CaughtUp) == until_caught_up

"""How far a shard is from its head, as its pages tell: how soon it is read again, and what counts as progress."""

from __future__ import annotations

import random
import time

import pytest

from relay.dynamodb import head
from relay.dynamodb.head import LATENESS, QUIET_PAGES, HeadSearch
from relay.dynamodb.source import DynamoDBSource
from relay.records import CommittedStream, Lineage
from tests.clock import Clock
from tests.dynamodb.endpoint import ScriptedStream, full
from tests.dynamodb.opened_source import reader, versions
from tests.reads import read_page


def test_an_open_shard_is_at_its_head_after_many_empty_pages_with_one_iterator(
    source: DynamoDBSource, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new iterator reads empty pages again."""
    monkeypatch.setattr(head, "QUIET_SECONDS", 0.0)
    stream.shard("s")
    reading = reader(source)
    quiet = [False] * (QUIET_PAGES - 1) + [True]
    assert [read_page(reading).at_head for _ in range(QUIET_PAGES)] == quiet
    stream.expire_iterators()
    assert [read_page(reading).at_head for _ in range(QUIET_PAGES)] == quiet
    stream.put("s", "k", 1)
    assert [read_page(reading).at_head for _ in range(QUIET_PAGES + 1)] == [False, *quiet]


def test_only_pages_and_seconds_together_are_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: a slow service gives few pages in ten seconds, a fast one many in no time."""
    monkeypatch.setattr(head, "QUIET_SECONDS", 10.0)
    for seconds, least in ((0.0, None), (0.125, 81), (0.25, QUIET_PAGES), (5.0, QUIET_PAGES)):
        clock = Clock()
        searching, found = HeadSearch(clock=clock), []
        for _ in range(200):
            searching.empty()
            found.append(searching.reached)
            clock.now += seconds
        assert (found.index(True) + 1 if any(found) else None) == least
        searching.records(1, 100, clock.now, clock.now)
        searching.empty()
        assert not searching.reached


@pytest.mark.parametrize("seed", range(10))
def test_a_shard_is_at_its_head_only_once_all_of_it_is_read_however_many_pages_are_empty(
    source: DynamoDBSource, stream: ScriptedStream, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: for any number below `QUIET_PAGES`, however fast the service is."""
    monkeypatch.setattr(head, "QUIET_SECONDS", 0.0)
    draw = random.Random(seed)
    most = draw.choice((5, 20, QUIET_PAGES - 1))
    stream.draw_empties = lambda: draw.randint(0, most)
    stream.shard("s")
    for version in range(draw.randint(1, 20)):
        stream.put("s", "k", version, created=int(time.time()) - draw.choice((0, 3600)))
    reading = reader(source, is_awaited=True)
    pages = [read_page(reading)]
    while not pages[-1].at_head:
        pages.append(read_page(reading))
    assert versions(*pages) == list(range(len(stream.shards[full("s")].records)))


def test_whoever_waits_for_the_head_has_empty_pages_read_at_once(
    source: DynamoDBSource, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pause a fast service gives thousands in ten seconds, which is more than are between two records."""
    monkeypatch.setattr(head, "QUIET_SECONDS", 0.0)
    stream.shard("s")
    reading = reader(source, is_awaited=True)
    assert [read_page(reading).pause == 0.0 for _ in range(QUIET_PAGES + 1)] == [True] * (QUIET_PAGES - 1) + [False] * 2


def test_in_a_backlog_the_next_page_is_read_at_once_whatever_the_size_of_the_last(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """DynamoDB ends a page at 1 MB: of large items it has few records."""
    stream.shard("s")
    stream.put("s", "k", 1, created=int(time.time()) - 3600)
    reading = reader(source)
    pages = [read_page(reading) for _ in range(6)]
    assert [page.counts.records for page in pages] == [1, 0, 0, 0, 0, 0]
    # More records may follow until there is reason to take the position for the head.
    assert [page.pause == 0.0 for page in pages] == [True] * 5 + [False]


def test_at_its_head_a_shard_is_left_to_gather_records(source: DynamoDBSource, stream: ScriptedStream) -> None:
    """Every call costs money, and a shard answers five a second to all its readers together."""
    stream.shard("s")
    reading = reader(source)
    assert [read_page(reading).pause == 0.0 for _ in range(5)] == [True] * 4 + [False]
    stream.put("s", "k", 1, created=int(time.time()) + 30)
    assert [read_page(reading).pause == 0.0 for _ in range(3)] == [False] * 3


def test_a_page_that_was_ended_by_its_size_has_more_behind_it(source: DynamoDBSource, stream: ScriptedStream) -> None:
    """Whatever the clock of this host says."""
    stream.shard("s")
    stream.put("s", "k", 1, created=int(time.time()) + 30)
    stream.shards[full("s")].records[0]["dynamodb"]["SizeBytes"] = 700_000
    assert read_page(reader(source)).pause == 0.0


def test_a_closed_shard_is_read_to_its_end_at_once(source: DynamoDBSource, stream: ScriptedStream) -> None:
    """Its children wait for it."""
    stream.shard("s")
    stream.put("s", "k", 1, created=int(time.time()) + 30)
    stream.pages("s", *[0] * 20)
    lineage = Lineage(CommittedStream(source.stream))
    reading = reader(source, is_closed=lambda: lineage.is_closed(full("s")))
    assert read_page(reading).pause is None
    stream.close("s")
    lineage.update(source.shards())
    assert [read_page(reading).pause == 0.0 for _ in range(19)] == [True] * 19
    assert read_page(reading).finished


def test_a_closed_shard_without_an_end_is_not_read_without_pause_for_ever(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """Its children may be listed before it is closed."""
    stream.shard("s")
    stream.shard("child", "s")
    lineage = Lineage(CommittedStream(source.stream))
    lineage.update(source.shards())
    reading = reader(source, is_closed=lambda: lineage.is_closed(full("s")))
    assert [read_page(reading).pause == 0.0 for _ in range(101)][98:] == [True, False, False]


@pytest.mark.parametrize("shows_end", [True, False])
def test_a_closed_shard_has_no_head(
    source: DynamoDBSource, stream: ScriptedStream, shows_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I9: however many empty pages it has, a watermark must not pass the records after them."""
    monkeypatch.setattr(head, "LATENESS", 0.0)
    monkeypatch.setattr(head, "QUIET_SECONDS", 0.0)
    stream.shard("s").shows_end = shows_end
    stream.pages("s", 1, *[0] * (QUIET_PAGES + 10), 1)
    lineage = Lineage(CommittedStream(source.stream))
    reading = reader(source, is_closed=lambda: lineage.is_closed(full("s")))
    stream.split("s", "child")
    lineage.update(source.shards())
    pages = [read_page(reading)]
    while not pages[-1].finished:
        pages.append(read_page(reading))
    assert len(pages) == QUIET_PAGES + 12
    assert not any(page.at_head for page in pages)
    assert all(page.progress is None for page in pages if not page.counts.records)


def test_an_idle_shard_progresses_with_the_clock_minus_the_lateness(
    source: DynamoDBSource, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LATENESS", 0.0)
    stream.shard("s")
    idle = reader(source)
    pages = [read_page(idle) for _ in range(6)]
    assert [page.progress for page in pages[:4]] == [None] * 4
    assert [page.progress for page in pages[4:]] == [page.begun - LATENESS for page in pages[4:]]


def test_an_open_shard_progresses_only_after_it_was_quiet_for_as_long_as_its_progress_lags() -> None:
    """I1, I9: a watermark must not pass the records after empty pages."""
    clock = Clock()
    searching = HeadSearch(clock=clock)
    for _ in range(LATENESS):
        searching.empty()
        assert not searching.is_idle
        clock.now += 1.0
    searching.empty()
    assert searching.is_idle
    searching.records(1, 100, clock.now, clock.now)
    clock.now += LATENESS
    searching.empty()
    assert not searching.is_idle


@pytest.mark.parametrize("has_new_iterator", [False, True])
def test_after_a_pause_a_shard_has_to_be_quiet_again(has_new_iterator: bool) -> None:
    """I1, I9: records that came while the service did not answer may be behind some empty pages."""
    clock = Clock()
    searching = HeadSearch(clock=clock)
    for _ in range(2 * LATENESS):
        searching.empty()
        clock.now += 1.0
    assert searching.is_idle
    assert searching.reached
    clock.now += 600.0
    if has_new_iterator:
        searching.new_iterator()
    for page in range(LATENESS):
        searching.empty()
        assert [searching.is_idle] == [False]
        assert searching.reached == (page + 1 >= QUIET_PAGES)
        clock.now += 1.0
    searching.empty()
    assert searching.is_idle


def test_an_empty_page_in_a_backlog_or_at_the_end_of_a_shard_is_not_progress(
    source: DynamoDBSource, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I9: otherwise a watermark would pass unread records."""
    monkeypatch.setattr(head, "LATENESS", 0.0)
    stream.shard("s")
    stream.pages("s", 1, 0, 1, 0)
    stream.close("s")
    backlog = reader(source)
    pages = [read_page(backlog)]
    while not pages[-1].finished:
        pages.append(read_page(backlog))
    assert len(pages) > 2
    for page in pages:
        assert page.progress == (page.changes[-1].committed_at / 1_000_000 if page.changes else None)

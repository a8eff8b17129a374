"""A shard whose position is no longer valid: expired iterators, trimmed records, a throttled or unknown shard."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from relay.dynamodb import IteratorExpired
from relay.dynamodb.cursor import ShardCursor
from relay.dynamodb.stream_calls import ShardNotFound, StreamSession
from relay.errors import Unavailable
from relay.records import Gap
from relay.stream_token import IteratorType, Position
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream, full
from tests.dynamodb.reading import NOON, jump_to, opened_shard, sequences, stream_shard, versions


def iterators(scripted: ScriptedStream) -> list[tuple[str, str | None]]:
    return [
        (request["ShardIteratorType"], request.get("SequenceNumber"))
        for request in scripted.requests
        if "ShardIteratorType" in request
    ]


@pytest.mark.parametrize("kind", ["trim_horizon", "latest"])
def test_an_expired_iterator_without_a_sequence_number_is_an_error(
    session: StreamSession, scripted: ScriptedStream, kind: IteratorType
) -> None:
    """A new one might skip records that were trimmed in the meantime."""
    scripted.shard("s")
    reading = opened_shard(session, kind)
    scripted.expire_iterators()
    scripted.calls.clear()
    with pytest.raises(IteratorExpired, match=f"{full('s')}.*{kind}.*heartbeat"):
        reading.get_records()
    assert scripted.calls == ["GetRecords"]


def test_with_a_gap_callback_reading_continues_at_the_horizon_instead(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """I9"""
    gaps: list[Gap] = []
    scripted.shard("s")
    reading = opened_shard(session, on_gap=gaps.append)
    scripted.expire_iterators()
    scripted.put("s", "k", 1)
    assert versions(reading.get_records()) == [1]
    assert [(gap.reason, gap.begin, gap.end) for gap in gaps] == [
        ("expired", {"type": "trim_horizon"}, {"type": "at_sequence", "sequence": sequences(scripted)[0]})
    ]


def test_a_search_for_a_time_restarts_when_its_iterator_expires(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """The caller cannot call heartbeat() while other shards are searched."""
    scripted.shard("s")
    reading = stream_shard(session)
    assert reading.seek_to(datetime.fromtimestamp(NOON, UTC)) == []
    scripted.expire_iterators()
    scripted.put("s", "k", 1, created=NOON - 3600)
    scripted.put("s", "k", 2, created=NOON)
    assert versions(reading.get_records()) == [2]


def test_an_expired_iterator_at_the_head_does_not_bring_back_older_records(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """It does not restart at the new head, which would skip records (I1)."""
    scripted.shard("s")
    scripted.put("s", "k", 1, created=NOON - 3600)
    reading = opened_shard(session, "latest", on_gap=lambda gap: None, clock=lambda: NOON + 90.0)
    scripted.expire_iterators()
    scripted.put("s", "k", 2, created=NOON + 90)
    assert versions(reading.get_records()) == [2]


@pytest.mark.parametrize("kind", ["at_sequence", "after_sequence"])
def test_an_expired_iterator_with_a_sequence_number_is_replaced_exactly(
    session: StreamSession, scripted: ScriptedStream, kind: IteratorType
) -> None:
    scripted.shard("s")
    first = scripted.put("s", "k", 0)
    scripted.pages("s", 4)
    reading = stream_shard(session)
    jump_to(reading, kind, first)
    scripted.expire_iterators()
    scripted.requests.clear()
    records = reading.get_records()
    assert versions(records) == ([0, 1, 2, 3, 4] if kind == "at_sequence" else [1, 2, 3, 4])
    assert len(iterators(scripted)) == 1
    assert iterators(scripted)[0][1] == first
    assert reading.delivered == Position(kind, first)


def test_an_iterator_that_expires_after_a_page_is_replaced_after_that_page(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """I2: although no record of the page was handed out."""
    scripted.shard("s")
    scripted.pages("s", 2, 2)
    reading = opened_shard(session)
    first = reading.get_records()
    scripted.expire_iterators()
    assert versions([*first, *reading.get_records()]) == [0, 1, 2, 3]


def test_a_trimmed_shard_jumps_to_the_horizon_and_reports_both_ends_of_the_gap(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """I9"""
    gaps: list[Gap] = []
    scripted.shard("s")
    scripted.pages("s", 2, 2, 2)
    reading = opened_shard(session, on_gap=gaps.append, clock=lambda: 5.0)
    for record in reading.get_records():
        reading.mark_delivered(record)
    scripted.trim("s", 5)
    assert versions(reading.get_records()) == [5]
    last, first = sequences(scripted)[1], sequences(scripted)[5]
    assert gaps == [
        Gap(
            "scripted",
            "2026-01-01T00:00:00.000",
            full("s"),
            "trimmed",
            {"type": "after_sequence", "sequence": last},
            {"type": "at_sequence", "sequence": first},
            5.0,
        )
    ]
    assert reading.delivered == Position("at_sequence", first)


def test_the_gap_of_a_shard_without_records_left_has_no_end(session: StreamSession, scripted: ScriptedStream) -> None:
    gaps: list[Gap] = []
    scripted.shard("s")
    scripted.pages("s", 1, 1)
    reading = opened_shard(session, on_gap=gaps.append)
    reading.get_records()
    scripted.trim("s", 2)
    assert reading.get_records() == []
    assert [gap.end for gap in gaps] == [None]


def test_a_gap_is_reported_when_no_iterator_is_left_after_it(
    session: StreamSession, scripted: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: all records of a closed shard were trimmed, and the service returns no iterator at its horizon."""
    gaps: list[Gap] = []
    scripted.shard("s")
    scripted.pages("s", 2)
    scripted.close("s")
    scripted.trim("s", 2)
    reading = stream_shard(session, on_gap=gaps.append)
    reading.move_to(Position("after_sequence", sequences(scripted)[0]))
    iterator = session.iterator

    def none_at_the_horizon(shard: str, position: Position) -> str | None:
        return iterator(shard, position) if position.exact else None

    monkeypatch.setattr(session, "iterator", none_at_the_horizon)
    reading.open()
    states = [reading.exhausted]
    assert reading.next_page() == []
    states.append(reading.exhausted)
    assert states == [False, True]
    assert [gap.reason for gap in gaps] == ["trimmed"]


def test_a_callback_that_raises_keeps_the_shard_before_the_gap(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """I9: no record after a gap is read before the gap is reported."""
    told: list[Gap] = []

    def refuse(gap: Gap) -> None:
        told.append(gap)
        raise RuntimeError("stop here")

    scripted.shard("s")
    scripted.pages("s", 1, 1, 1)
    reading = opened_shard(session, on_gap=refuse)
    reading.mark_delivered(reading.get_records()[0])
    scripted.trim("s", 2)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            reading.get_records()
        assert reading.delivered == Position("after_sequence", sequences(scripted)[0])
    assert told[0].id == told[1].id
    reading.on_gap = None
    assert versions(reading.get_records()) == [2]


def test_a_position_that_was_trimmed_becomes_the_horizon_of_the_same_shard(
    session: StreamSession, scripted: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scripted.shard("s")
    scripted.pages("s", 4)
    scripted.trim("s", 2)
    reading = stream_shard(session)
    first = sequences(scripted)[0]
    jump_to(reading, "at_sequence", first)
    assert iterators(scripted) == [("AT_SEQUENCE_NUMBER", first), ("TRIM_HORIZON", None)]
    assert "continuing at the trim horizon" in caplog.text
    assert versions(reading.get_records()) == [2, 3]


def test_an_unknown_shard_and_a_throttled_one_raise_different_exceptions(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    with pytest.raises(ShardNotFound):
        opened_shard(session)
    scripted.shard("s")
    scripted.before = _refuse("ThrottlingException")
    with pytest.raises(Unavailable, match=f"{full('s')}.*trim_horizon"):
        opened_shard(session)


def test_throttled_calls_are_retried(session: StreamSession, scripted: ScriptedStream) -> None:
    scripted.shard("s")
    scripted.put("s", "k", 1)
    waits: list[float] = []
    reading = opened_shard(session, sleep=waits.append)
    scripted.before = _refuse("ThrottlingException", times=3)
    assert versions(reading.get_records()) == [1]
    assert len(waits) == 3


def _refuse(kind: str, times: int = 1000) -> Callable[[str], None]:
    left = times

    def refuse(operation: str) -> None:
        nonlocal left
        if left:
            left -= 1
            raise Refused(kind)

    return refuse


def test_a_shard_that_is_gone_is_lost_from_the_gap_on_that_was_not_reported_yet() -> None:
    """I9"""
    session: Any = SimpleNamespace(clock=lambda: NOON)  # nothing is asked
    cursor = ShardCursor(session, "s", Position("after_sequence", "5"))
    cursor.abandon()
    assert cursor.gap is not None
    assert cursor.gap.begin == Position("after_sequence", "5")
    cursor.move_to(Position("after_sequence", "7"))
    cursor.skip_to_horizon("trimmed")
    cursor.abandon()
    assert (cursor.gap.reason, cursor.gap.begin) == ("gone", Position("after_sequence", "7"))

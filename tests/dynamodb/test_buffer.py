"""The order of records that were read: by creation time, then sequence number, and always as in their shard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from relay.dynamodb.buffer import RecordBuffer
from relay.dynamodb.session import StreamSession
from relay.dynamodb.shard import StreamShard
from relay.dynamodb.stream_record import Record

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def shard(name: str) -> StreamShard:
    return StreamShard(cast(StreamSession, None), name)


def record(sequence: int, hours: float = 0) -> Record:
    return {
        "key": {"id": {"S": str(sequence)}},
        "old": None,
        "new": None,
        "meta": {
            "created_at": NOW + timedelta(hours=hours),
            "event": {"id": "", "type": "insert", "version": "1.1"},
            "sequence_number": str(sequence),
            "shard_id": "s",
            "user_identity": None,
        },
    }


def popped(buffer: RecordBuffer) -> list[int]:
    return [int(buffer.pop()[0]["meta"]["sequence_number"]) for _ in range(len(buffer))]


def test_the_same_record_twice_has_two_places_in_the_order_of_arrival() -> None:
    """G40"""
    buffer, s, r = RecordBuffer(), shard("s"), record(1)
    first, second = buffer.order(r, s), buffer.order(r, s)
    assert first < second
    assert first[:2] == second[:2]


def test_only_the_clock_breaks_ties() -> None:
    """G41"""
    buffer, s, r = RecordBuffer(clock=lambda: 4), shard("s"), record(1)
    assert buffer.order(r, s) == buffer.order(r, s)


def test_an_empty_buffer_has_nothing_to_peek_at_or_to_pop() -> None:
    """G42"""
    with pytest.raises(IndexError):
        RecordBuffer().peek()
    with pytest.raises(IndexError):
        RecordBuffer().pop()


def test_what_is_pushed_can_be_peeked_at_and_popped_with_its_shard() -> None:
    """G43"""
    buffer, s, r = RecordBuffer(), shard("s"), record(1)
    buffer.push(r, s)
    assert buffer.peek() == (r, s)
    assert len(buffer) == 1
    assert buffer.pop() == (r, s)
    assert not buffer


def test_records_of_one_time_leave_by_sequence_number_whatever_the_order_they_came_in() -> None:
    """G44"""
    buffer, s = RecordBuffer(), shard("s")
    for sequence in range(14, -1, -1):
        buffer.push(record(sequence), s)
        assert buffer.peek()[0]["meta"]["sequence_number"] == str(sequence)
    assert popped(buffer) == list(range(15))


def test_many_records_at_once_keep_the_same_order() -> None:
    """G45"""
    buffer = RecordBuffer()
    buffer.push_all([record(sequence) for sequence in range(99, -1, -1)], shard("s"))
    assert popped(buffer) == list(range(100))


def test_sequence_numbers_are_numbers_not_text() -> None:
    """G46"""
    buffer = RecordBuffer()
    buffer.push(record(140), shard("a"))
    buffer.push(record(2), shard("b"))
    assert popped(buffer) == [2, 140]


def test_a_creation_time_that_goes_back_within_a_shard_does_not_turn_its_records_around() -> None:
    """I2: the times are approximate, the order within a shard is not."""
    buffer = RecordBuffer()
    buffer.push_all([record(1, 0), record(2, -3), record(5, 1)], shard("a"))
    buffer.push_all([record(3, -1), record(4, 2)], shard("b"))
    assert popped(buffer) == [3, 1, 2, 5, 4]


def test_a_shard_that_was_drained_is_not_held_to_its_old_times() -> None:
    buffer, a = RecordBuffer(), shard("a")
    buffer.push(record(1, 5), a)
    buffer.pop()
    buffer.push(record(2, 0), a)
    buffer.push(record(3, 1), shard("b"))
    assert popped(buffer) == [2, 3]

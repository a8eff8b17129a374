"""The order of buffered records: by creation time, then sequence number, and always that of their shard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from relay.dynamodb.coordinator import RecordBuffer
from relay.dynamodb.stream_calls import StreamSession
from relay.dynamodb.stream_record import Record
from relay.dynamodb.stream_shard import StreamShard

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


def test_what_has_one_time_and_one_sequence_number_leaves_in_the_order_of_arrival() -> None:
    buffer, shards = RecordBuffer(), [shard(name) for name in "bac"]
    for each in shards:
        buffer.push([record(1)], each)
    assert [buffer.pop()[1] for _ in shards] == shards


def test_an_empty_buffer_raises_on_peek_and_pop() -> None:
    with pytest.raises(IndexError):
        RecordBuffer().peek()
    with pytest.raises(IndexError):
        RecordBuffer().pop()


def test_a_pushed_record_can_be_peeked_at_and_popped_with_its_shard() -> None:
    buffer, s, r = RecordBuffer(), shard("s"), record(1)
    buffer.push([r], s)
    assert buffer.peek() == (r, s)
    assert len(buffer) == 1
    assert buffer.pop() == (r, s)
    assert not buffer


def test_records_of_one_time_leave_by_sequence_number_whatever_their_arrival() -> None:
    buffer, s = RecordBuffer(), shard("s")
    for sequence in range(14, -1, -1):
        buffer.push([record(sequence)], s)
        assert buffer.peek()[0]["meta"]["sequence_number"] == str(sequence)
    assert popped(buffer) == list(range(15))


def test_many_records_at_once_keep_the_same_order() -> None:
    buffer = RecordBuffer()
    buffer.push([record(sequence) for sequence in range(99, -1, -1)], shard("s"))
    assert popped(buffer) == list(range(100))


def test_sequence_numbers_are_compared_as_numbers() -> None:
    buffer = RecordBuffer()
    buffer.push([record(140)], shard("a"))
    buffer.push([record(2)], shard("b"))
    assert popped(buffer) == [2, 140]


def test_a_creation_time_that_goes_back_within_a_shard_does_not_reorder_its_records() -> None:
    """I2: the times are approximate, the order within a shard is not."""
    buffer = RecordBuffer()
    buffer.push([record(1, 0), record(2, -3), record(5, 1)], shard("a"))
    buffer.push([record(3, -1), record(4, 2)], shard("b"))
    assert popped(buffer) == [3, 1, 2, 5, 4]


def test_a_buffer_that_was_emptied_forgets_old_creation_times() -> None:
    buffer, a = RecordBuffer(), shard("a")
    buffer.push([record(1, 5)], a)
    buffer.pop()
    buffer.push([record(2, 0)], a)
    buffer.push([record(3, 1)], shard("b"))
    assert popped(buffer) == [2, 3]

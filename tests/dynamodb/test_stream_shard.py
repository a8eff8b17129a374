"""One shard: its position, empty pages, searching for a time. Expired and trimmed positions: test_shard_recovery."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay.dynamodb import InvalidPosition
from relay.dynamodb.stream_calls import StreamSession
from relay.dynamodb.stream_graph import ShardGraph
from relay.dynamodb.stream_shard import StreamShard
from relay.records import Shard
from relay.stream_token import TRIM_HORIZON, Position
from tests.dynamodb.endpoint import ScriptedStream
from tests.dynamodb.reading import NOON, jump_to, opened_shard, sequences, stream_shard, versions

# pages of a shard, and per get_records: records returned / calls made
CATCHING_UP = [
    ("0", "0/1"),
    ("0,0", "0/2"),
    ("0,0,0,0", "0/4"),
    ("1", "1/1"),
    ("1,1", "1/1 1/1"),
    ("1,1,1,1", "1/1 1/1 1/1 1/1"),
    ("1,1,1,1,1", "1/1 1/1 1/1 1/1 1/1"),
    ("1,0,0,0", "1/1 0/3"),
    ("0,0,0,1", "1/4"),
    ("0,0,1,0,0", "1/3 0/2"),
    ("0,0,0,0,1", "1/5"),
    ("0,1,0,0,0,0", "1/2 0/4"),
    ("0,0,0,1,0,0", "1/4 0/2"),
    ("0,0,0,0,0,1", "0/5 1/1"),
    ("3,0,1,0,0,0,1", "3/1 1/2 1/4"),
]


@pytest.mark.parametrize(("pages", "expected"), CATCHING_UP)
def test_empty_pages_are_skipped_until_the_head_must_be_reached(
    session: StreamSession, scripted: ScriptedStream, pages: str, expected: str
) -> None:
    """An exhausted shard makes no calls."""
    scripted.shard("s")
    scripted.pages("s", *map(int, pages.split(",")))
    scripted.close("s")
    reading, seen = opened_shard(session), []
    while not reading.exhausted:
        before = scripted.calls.count("GetRecords")
        records = reading.get_records()
        seen.append(f"{len(records)}/{scripted.calls.count('GetRecords') - before}")
    assert " ".join(seen) == expected
    scripted.calls.clear()
    assert reading.get_records() == []
    assert scripted.calls == []


def test_a_shard_at_its_head_gets_one_call(session: StreamSession, scripted: ScriptedStream) -> None:
    scripted.shard("s")
    scripted.pages("s", 0, 0, 0, 0, 0)
    reading = opened_shard(session)
    assert reading.get_records() == []
    assert reading.empty_responses == 5
    scripted.pages("s", 1, 1)
    scripted.calls.clear()
    assert len(reading.get_records()) == 1
    assert scripted.calls == ["GetRecords"]
    assert reading.delivered == Position("at_sequence", sequences(scripted)[0])


def test_the_number_of_empty_pages_before_the_head_is_configurable(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    scripted.shard("s")
    opened_shard(session, calls_to_reach_head=2).get_records()
    assert scripted.calls.count("GetRecords") == 2


def test_a_shard_is_exhausted_only_after_its_last_page(session: StreamSession, scripted: ScriptedStream) -> None:
    scripted.shard("s")
    scripted.close("s")
    reading = stream_shard(session)
    assert not reading.exhausted
    reading.get_records()
    assert reading.exhausted


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_page_does_not_move_a_position_that_has_a_sequence_number(
    session: StreamSession, scripted: ScriptedStream, count: int
) -> None:
    """Records that were fetched and not handed out come again after a crash."""
    scripted.shard("s")
    first = scripted.put("s", "k", 0)
    reading = stream_shard(session)
    jump_to(reading, "after_sequence", first)
    scripted.pages("s", count)
    assert len(reading.next_page()) == count
    assert reading.delivered == Position("after_sequence", first)
    assert reading.empty_responses == (0 if count else 1)


def test_a_position_without_a_sequence_number_gets_that_of_the_first_record(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    scripted.shard("s")
    scripted.pages("s", 2)
    reading = opened_shard(session)
    reading.get_records()
    assert reading.delivered == Position("at_sequence", sequences(scripted)[0])


def test_a_jump_resets_the_count_of_empty_pages(session: StreamSession, scripted: ScriptedStream) -> None:
    scripted.shard("s")
    sequence = scripted.put("s", "k", 1)
    scripted.pages("s", 0, 0)
    reading = opened_shard(session, calls_to_reach_head=3)
    reading.get_records()
    reading.get_records()
    assert reading.empty_responses == 3
    scripted.requests.clear()
    jump_to(reading, "at_sequence", sequence)
    assert reading.empty_responses == 0
    assert reading.delivered == Position("at_sequence", sequence)
    assert len(scripted.requests) == 1


@pytest.mark.parametrize(
    ("kind", "sequence"), [("sequence_at", "1"), ("latest", "1"), ("after_sequence", None), ("at_sequence", "")]
)
def test_invalid_positions_are_refused(session: StreamSession, kind: Any, sequence: str | None) -> None:
    with pytest.raises(InvalidPosition):
        jump_to(stream_shard(session), kind, sequence)


@pytest.mark.parametrize(("closed", "calls"), [(True, 1), (False, 5)])
def test_seeking_without_a_match_ends_with_the_shard_or_at_its_head(
    session: StreamSession, scripted: ScriptedStream, closed: bool, calls: int
) -> None:
    scripted.shard("s")
    if closed:
        scripted.close("s")
    reading = stream_shard(session)
    assert reading.seek_to(datetime.fromtimestamp(NOON, UTC)) == []
    assert reading.exhausted is closed
    assert scripted.calls.count("GetRecords") == calls


@pytest.mark.parametrize("index", [0, 5, 9])
@pytest.mark.parametrize("before", [0, 10, 0.5])
def test_seeking_finds_the_first_record_of_a_time_by_whole_seconds(
    session: StreamSession, scripted: ScriptedStream, index: int, before: float
) -> None:
    scripted.shard("s")
    for hour in range(10):
        scripted.put("s", "k", hour, created=NOON + 3600 * hour)
    target = datetime.fromtimestamp(NOON + 3600 * index, UTC)
    position = target + timedelta(seconds=before) if before == 0.5 else target - timedelta(seconds=before)
    reading = stream_shard(session)
    assert versions(reading.seek_to(position)) == list(range(index, 10))
    assert scripted.calls.count("GetRecords") == 1


def test_a_token_resumes_after_the_records_that_a_search_has_dropped(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    scripted.shard("s")
    scripted.put("s", "k", 1, created=NOON)
    reading = stream_shard(session)
    assert reading.seek_to(datetime.fromtimestamp(NOON + 7200, UTC)) == []
    assert reading.delivered == Position("after_sequence", sequences(scripted)[0])
    scripted.put("s", "k", 2, created=NOON + 60)
    scripted.put("s", "k", 3, created=NOON + 7200)
    scripted.put("s", "k", 4, created=NOON + 7199)  # times are approximate: after one wanted record, all are wanted
    assert versions(reading.get_records()) == [3, 4]


def test_a_time_rounded_down_to_the_minute_does_not_count_as_older(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """I1: DynamoDB Local does that."""
    scripted.shard("s")
    scripted.put("s", "k", 1, created=NOON - 60)
    scripted.put("s", "k", 2, created=NOON)
    assert versions(stream_shard(session).seek_to(datetime.fromtimestamp(NOON + 30, UTC))) == [2]


def test_the_token_has_the_parent_and_omits_missing_values(
    session: StreamSession, caplog: pytest.LogCaptureFixture
) -> None:
    parent = StreamShard(session, "p")
    child = StreamShard(session, "c")
    child.move_to(Position("after_sequence", "7"))
    assert parent.token().to_json() == {"shard_id": "p"}
    assert child.token("p").to_json() == {
        "shard_id": "c",
        "parent": "p",
        "iterator_type": "after_sequence",
        "sequence_number": "7",
    }
    assert caplog.text == ""
    parent.delivered = TRIM_HORIZON
    assert parent.token().to_json() == {"shard_id": "p", "iterator_type": "trim_horizon"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no sequence number" in caplog.text


def test_a_graph_lists_every_shard_once_and_parents_first() -> None:
    """0>1>{2>{4>9,5,6},3>{7,8}}"""
    parents = {1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2, 7: 3, 8: 3, 9: 4}
    graph = ShardGraph(lambda: 0.0)
    graph.add([Shard("0"), *(Shard(str(name), (str(parent),)) for name, parent in parents.items())])
    walked = [int(name) for name in graph.parents_first()]
    assert sorted(walked) == list(range(10))
    assert all(walked.index(parent) < walked.index(name) for name, parent in parents.items())

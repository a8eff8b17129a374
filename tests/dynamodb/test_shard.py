"""One shard: where it stands, how it crosses empty pages, and what it does when its place is not there any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay.dynamodb import InvalidPosition, IteratorExpired
from relay.dynamodb.session import IteratorType, ShardNotFound, StreamSession
from relay.dynamodb.shard import StreamShard
from relay.dynamodb.stream_record import Record
from relay.dynamodb.stream_token import TRIM_HORIZON, Position
from relay.errors import Unavailable
from relay.lineage import Gap
from tests.dynamodb.endpoint import Refused, ScriptedStream, full

NOON = 1_700_049_600  # a whole hour


def shard(session: StreamSession, **options: Any) -> StreamShard:
    return StreamShard(session, full("s"), **{"sleep": lambda seconds: None, **options})


def begun(session: StreamSession, kind: IteratorType = "trim_horizon", **options: Any) -> StreamShard:
    made = shard(session, **options)
    made.jump_to(kind)
    return made


def versions(records: Sequence[Record]) -> list[int]:
    return [int(record["new"]["version"]["N"]) for record in records]


def sequences(scripted: ScriptedStream, name: str = "s") -> list[str]:
    return [record["dynamodb"]["SequenceNumber"] for record in scripted.shards[full(name)].records]


def iterators(scripted: ScriptedStream) -> list[tuple[str, str | None]]:
    return [
        (request["ShardIteratorType"], request.get("SequenceNumber"))
        for request in scripted.requests
        if "ShardIteratorType" in request
    ]


# pages of a shard, and per get_records: records given / calls made
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
def test_empty_pages_are_crossed_until_the_head_must_be_reached(
    session: StreamSession, scripted: ScriptedStream, pages: str, expected: str
) -> None:
    """G34; G32: once exhausted it does not ask again."""
    scripted.shard("s")
    scripted.pages("s", *map(int, pages.split(",")))
    scripted.close("s")
    reading, seen = begun(session), []
    while not reading.exhausted:
        before = scripted.calls.count("GetRecords")
        records = reading.get_records()
        seen.append(f"{len(records)}/{scripted.calls.count('GetRecords') - before}")
    assert " ".join(seen) == expected
    scripted.calls.clear()
    assert reading.get_records() == []
    assert scripted.calls == []


def test_a_shard_at_its_head_is_asked_once(session: StreamSession, scripted: ScriptedStream) -> None:
    """G33"""
    scripted.shard("s")
    scripted.pages("s", 0, 0, 0, 0, 0)
    reading = begun(session)
    assert reading.get_records() == []
    assert reading.empty_responses == 5
    scripted.pages("s", 1, 1)
    scripted.calls.clear()
    assert len(reading.get_records()) == 1
    assert scripted.calls == ["GetRecords"]
    assert reading.position == Position("at_sequence", sequences(scripted)[0])


def test_how_many_empty_pages_make_the_head_can_be_set(session: StreamSession, scripted: ScriptedStream) -> None:
    scripted.shard("s")
    begun(session, calls_to_reach_head=2).get_records()
    assert scripted.calls.count("GetRecords") == 2


def test_it_is_exhausted_only_after_its_last_page(session: StreamSession, scripted: ScriptedStream) -> None:
    """G23"""
    scripted.shard("s")
    scripted.close("s")
    reading = shard(session)
    assert not reading.exhausted
    reading.get_records()
    assert reading.exhausted


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_page_does_not_move_a_position_that_has_a_sequence_number(
    session: StreamSession, scripted: ScriptedStream, count: int
) -> None:
    """G35: records that were fetched and not handed out come again after a crash."""
    scripted.shard("s")
    first = scripted.put("s", "k", 0)
    reading = shard(session)
    reading.jump_to("after_sequence", first)
    scripted.pages("s", count)
    assert len(reading.next_page()) == count
    assert reading.position == Position("after_sequence", first)
    assert reading.empty_responses == (0 if count else 1)


def test_without_a_sequence_number_the_first_record_of_a_page_gives_one(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """G35"""
    scripted.shard("s")
    scripted.pages("s", 2)
    reading = begun(session)
    reading.get_records()
    assert reading.position == Position("at_sequence", sequences(scripted)[0])


@pytest.mark.parametrize("kind", ["trim_horizon", "latest"])
def test_an_expired_iterator_without_a_sequence_number_is_an_error(
    session: StreamSession, scripted: ScriptedStream, kind: IteratorType
) -> None:
    """G21: a new one might leave out what came and went meanwhile."""
    scripted.shard("s")
    reading = begun(session, kind)
    scripted.expire_iterators()
    scripted.calls.clear()
    with pytest.raises(IteratorExpired, match=f"{full('s')}.*{kind}.*heartbeat"):
        reading.get_records()
    assert scripted.calls == ["GetRecords"]


def test_with_a_gap_callback_it_goes_on_at_the_horizon_instead(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """G21, I9"""
    gaps: list[Gap] = []
    scripted.shard("s")
    reading = begun(session, on_gap=gaps.append)
    scripted.expire_iterators()
    scripted.put("s", "k", 1)
    assert versions(reading.get_records()) == [1]
    assert [(gap.reason, gap.begin, gap.end) for gap in gaps] == [
        ("expired", {"type": "trim_horizon"}, {"type": "at_sequence", "sequence": sequences(scripted)[0]})
    ]


def test_a_search_for_a_time_that_outlives_its_iterator_begins_again(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """The caller cannot call heartbeat() while other shards are searched."""
    scripted.shard("s")
    reading = shard(session)
    assert reading.seek_to(datetime.fromtimestamp(NOON, UTC)) == []
    scripted.expire_iterators()
    scripted.put("s", "k", 1, created=NOON - 3600)
    scripted.put("s", "k", 2, created=NOON)
    assert versions(reading.get_records()) == [2]


def test_an_expired_iterator_at_the_head_does_not_bring_back_what_was_before_it(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """X14: not at the new head, for what came meanwhile would be lost (I1)."""
    scripted.shard("s")
    scripted.put("s", "k", 1, created=NOON - 3600)
    reading = begun(session, "latest", on_gap=lambda gap: None, clock=lambda: NOON + 90.0)
    scripted.expire_iterators()
    scripted.put("s", "k", 2, created=NOON + 90)
    assert versions(reading.get_records()) == [2]


@pytest.mark.parametrize("kind", ["at_sequence", "after_sequence"])
def test_an_expired_iterator_with_a_sequence_number_is_replaced_exactly(
    session: StreamSession, scripted: ScriptedStream, kind: IteratorType
) -> None:
    """G22"""
    scripted.shard("s")
    first = scripted.put("s", "k", 0)
    scripted.pages("s", 4)
    reading = shard(session)
    reading.jump_to(kind, first)
    scripted.expire_iterators()
    scripted.requests.clear()
    records = reading.get_records()
    assert versions(records) == ([0, 1, 2, 3, 4] if kind == "at_sequence" else [1, 2, 3, 4])
    assert len(iterators(scripted)) == 1
    assert iterators(scripted)[0][1] == first
    assert reading.position == Position(kind, first)


def test_an_iterator_that_expires_after_a_page_is_replaced_after_that_page(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """I2: although nothing of the page was handed out yet."""
    scripted.shard("s")
    scripted.pages("s", 2, 2)
    reading = begun(session)
    first = reading.get_records()
    scripted.expire_iterators()
    assert versions([*first, *reading.get_records()]) == [0, 1, 2, 3]


def test_trimmed_in_the_middle_it_jumps_to_the_horizon_and_tells_from_where_to_where(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """X6, I9"""
    gaps: list[Gap] = []
    scripted.shard("s")
    scripted.pages("s", 2, 2, 2)
    reading = begun(session, on_gap=gaps.append, clock=lambda: 5.0)
    for record in reading.get_records():
        reading.delivered(record)
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
    assert reading.position == Position("at_sequence", first)


def test_trimmed_with_nothing_left_the_gap_has_no_end(session: StreamSession, scripted: ScriptedStream) -> None:
    gaps: list[Gap] = []
    scripted.shard("s")
    scripted.pages("s", 1, 1)
    reading = begun(session, on_gap=gaps.append)
    reading.get_records()
    scripted.trim("s", 2)
    assert reading.get_records() == []
    assert [gap.end for gap in gaps] == [None]


def test_a_callback_that_raises_keeps_the_shard_before_the_gap(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """I9: nothing after a loss is read that nobody has heard of."""
    told: list[Gap] = []

    def refuse(gap: Gap) -> None:
        told.append(gap)
        raise RuntimeError("stop here")

    scripted.shard("s")
    scripted.pages("s", 1, 1, 1)
    reading = begun(session, on_gap=refuse)
    reading.delivered(reading.get_records()[0])
    scripted.trim("s", 2)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            reading.get_records()
        assert reading.position == Position("after_sequence", sequences(scripted)[0])
    assert told[0].id == told[1].id
    reading.on_gap = None
    assert versions(reading.get_records()) == [2]


def test_a_position_that_was_trimmed_becomes_the_horizon_of_the_same_shard(
    session: StreamSession, scripted: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    """G15, X7"""
    caplog.set_level(logging.INFO)
    scripted.shard("s")
    scripted.pages("s", 4)
    scripted.trim("s", 2)
    reading = shard(session)
    first = sequences(scripted)[0]
    reading.jump_to("at_sequence", first)
    assert iterators(scripted) == [("AT_SEQUENCE_NUMBER", first), ("TRIM_HORIZON", None)]
    assert "past the trim horizon" in caplog.text
    assert versions(reading.get_records()) == [2, 3]


def test_a_jump_forgets_the_empty_pages(session: StreamSession, scripted: ScriptedStream) -> None:
    """G26"""
    scripted.shard("s")
    sequence = scripted.put("s", "k", 1)
    scripted.pages("s", 0, 0)
    reading = begun(session, calls_to_reach_head=3)
    reading.get_records()
    reading.get_records()
    assert reading.empty_responses == 3
    scripted.requests.clear()
    reading.jump_to("at_sequence", sequence)
    assert reading.empty_responses == 0
    assert reading.position == Position("at_sequence", sequence)
    assert len(scripted.requests) == 1


@pytest.mark.parametrize(
    ("kind", "sequence"),
    [("sequence_at", "1"), ("latest", "1"), ("after_sequence", None), ("at_sequence", "x"), ("at_sequence", "")],
)
def test_positions_that_are_none_are_refused(session: StreamSession, kind: Any, sequence: str | None) -> None:
    """G51"""
    with pytest.raises(InvalidPosition):
        shard(session).jump_to(kind, sequence)


@pytest.mark.parametrize(("closed", "calls"), [(True, 1), (False, 5)])
def test_seeking_what_is_not_there_ends_with_the_shard_or_at_its_head(
    session: StreamSession, scripted: ScriptedStream, closed: bool, calls: int
) -> None:
    """G27, G28"""
    scripted.shard("s")
    if closed:
        scripted.close("s")
    reading = shard(session)
    assert reading.seek_to(datetime.fromtimestamp(NOON, UTC)) == []
    assert reading.exhausted is closed
    assert scripted.calls.count("GetRecords") == calls


@pytest.mark.parametrize("index", [0, 5, 9])
@pytest.mark.parametrize("before", [0, 10, 0.5])
def test_seeking_finds_the_first_record_of_a_time_by_whole_seconds(
    session: StreamSession, scripted: ScriptedStream, index: int, before: float
) -> None:
    """G29"""
    scripted.shard("s")
    for hour in range(10):
        scripted.put("s", "k", hour, created=NOON + 3600 * hour)
    target = datetime.fromtimestamp(NOON + 3600 * index, UTC)
    position = target + timedelta(seconds=before) if before == 0.5 else target - timedelta(seconds=before)
    reading = shard(session)
    assert versions(reading.seek_to(position)) == list(range(index, 10))
    assert scripted.calls.count("GetRecords") == 1


def test_what_was_passed_over_is_not_in_the_token_again(session: StreamSession, scripted: ScriptedStream) -> None:
    scripted.shard("s")
    scripted.put("s", "k", 1, created=NOON)
    reading = shard(session)
    assert reading.seek_to(datetime.fromtimestamp(NOON + 7200, UTC)) == []
    assert reading.position == Position("after_sequence", sequences(scripted)[0])
    scripted.put("s", "k", 2, created=NOON + 60)
    scripted.put("s", "k", 3, created=NOON + 7200)
    scripted.put("s", "k", 4, created=NOON + 7199)  # approximate: after one that counts, all count
    assert versions(reading.get_records()) == [3, 4]


def test_a_time_rounded_down_to_the_minute_is_not_taken_for_older(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    """I1: DynamoDB Local does that."""
    scripted.shard("s")
    scripted.put("s", "k", 1, created=NOON - 60)
    scripted.put("s", "k", 2, created=NOON)
    assert versions(shard(session).seek_to(datetime.fromtimestamp(NOON + 30, UTC))) == [2]


def test_the_token_names_the_parent_and_omits_what_there_is_not(
    session: StreamSession, caplog: pytest.LogCaptureFixture
) -> None:
    """G24, G48"""
    parent = StreamShard(session, "p")
    child = StreamShard(session, "c", parent=parent, position=Position("after_sequence", "7"))
    assert parent.token.to_json() == {"shard_id": "p"}
    assert child.token.to_json() == {
        "shard_id": "c",
        "parent": "p",
        "iterator_type": "after_sequence",
        "sequence_number": "7",
    }
    assert caplog.text == ""
    parent.position = TRIM_HORIZON
    assert parent.token.to_json() == {"shard_id": "p", "iterator_type": "trim_horizon"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "non-exact location" in caplog.text


def test_a_walk_meets_every_shard_once_parents_first(session: StreamSession) -> None:
    """G25: 0>1>{2>{4>9,5,6},3>{7,8}}"""
    parents = {1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2, 7: 3, 8: 3, 9: 4}
    shards = {0: StreamShard(session, "0")}
    for name, parent in parents.items():
        shards[name] = StreamShard(session, str(name), parent=shards[parent])
    walked = [int(each.id) for each in shards[0].walk()]
    assert sorted(walked) == list(range(10))
    assert all(walked.index(parent) < walked.index(name) for name, parent in parents.items())


def test_a_shard_that_is_not_there_is_told_from_one_that_is_busy(
    session: StreamSession, scripted: ScriptedStream
) -> None:
    with pytest.raises(ShardNotFound):
        begun(session)
    scripted.shard("s")
    scripted.before = _refuse("ThrottlingException")
    with pytest.raises(Unavailable, match=f"{full('s')}.*trim_horizon"):
        begun(session)


def test_throttling_is_waited_out(session: StreamSession, scripted: ScriptedStream) -> None:
    scripted.shard("s")
    scripted.put("s", "k", 1)
    waits: list[float] = []
    reading = begun(session, sleep=waits.append)
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

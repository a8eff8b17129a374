"""Resuming at a token when the shards have changed since."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from relay.dynamodb import InvalidStream
from relay.dynamodb.coordinator import DISCOVER_EVERY
from relay.records import Gap
from tests.clock import Clock
from tests.dynamodb.endpoint import ARN, ScriptedStream, full
from tests.dynamodb.reading import (
    active,
    calls,
    entries,
    iterators,
    lineage,
    opened,
    read,
    read_to_its_end,
    token,
    versions,
)

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient


def test_a_stream_resumes_where_its_token_was_taken(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    """Bloop, "Streams" (Pausing and Resuming)."""
    lineage(scripted, "s")
    scripted.pages("s", 4)
    stream = opened(client)
    read(stream, 2)
    resumed = opened(client, json.loads(json.dumps(stream.token)))
    assert resumed.token == stream.token
    assert versions(read(resumed)) == versions(read(stream)) == [2, 3]
    stream.move_to(stream.token)
    scripted.pages("s", 1)
    assert versions(read(stream)) == [4]


def test_a_parent_with_unread_records_is_read_before_its_child_and_no_record_twice(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """Bloop's token would have both active."""
    lineage(scripted, "p")
    first = scripted.put("p", "k", 1)
    scripted.pages("p", 1, 1)
    lineage(scripted, "p>c")
    scripted.put("c", "k", 11)
    scripted.put("c", "k", 12)
    taken = token(["c", "p"], ("p", None, "after_sequence", first), ("c", "p", "trim_horizon", None))
    stream = opened(client, taken)
    assert versions(read(stream)) == [1, 2, 11, 12]
    assert active(stream) == ["c"]


def test_a_child_that_was_ahead_of_its_parent_keeps_its_place(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """Records of the child that Bloop has returned are not read again."""
    lineage(scripted, "p>c")
    first = scripted.put("p", "k", 1)
    scripted.put("p", "k", 2)
    read_already = scripted.put("c", "k", 11)
    scripted.put("c", "k", 12)
    taken = token(["c", "p"], ("p", None, "after_sequence", first), ("c", "p", "after_sequence", read_already))
    stream = opened(client, taken)
    assert stream.token["active"] == [full("p")]
    again = opened(client, stream.token)
    assert versions(read(again)) == [2, 12]


def test_a_shard_between_two_active_ones_that_the_token_omits_is_read_between_them(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I1, I2"""
    lineage(scripted, "1>2", "2>3")
    for version, shard in enumerate("123"):
        scripted.put(shard, "k", version)
    assert versions(read(opened(client, token(["1", "3"])))) == [0, 1, 2]


def test_no_token_loses_records_of_a_closed_shard_or_its_children(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """With a token after each record."""
    lineage(scripted, "p")
    scripted.pages("p", 2, 1)
    lineage(scripted, "p>c,d")
    scripted.put("c", "k", 3)
    scripted.put("d", "k", 4)
    stream, seen = opened(client), []
    for _ in range(5):
        seen += versions(read(stream, 1))
        stream = opened(client, json.loads(json.dumps(stream.token)))
    assert seen == [0, 1, 2, 3, 4]
    assert next(stream) is None


def test_a_lineage_that_the_token_omits_is_read_and_a_lost_one_is_a_gap(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    gaps: list[Gap] = []
    lineage(scripted, "b")
    seventh = scripted.put("b", "k", 7)
    scripted.put("b", "k", 8)
    scripted.shard("x", "p2")
    scripted.put("x", "k", 20)
    taken = token(["a", "b"], ("a", None, "after_sequence", "5"), ("b", None, "after_sequence", seventh))
    stream = opened(client, taken, on_gap=gaps.append)
    assert sorted(active(stream)) == ["b", "x"]
    assert ("x", "TRIM_HORIZON") in iterators(scripted)
    assert [(gap.shard, gap.reason, gap.begin) for gap in gaps] == [
        (full("a"), "gone", {"type": "after_sequence", "sequence": "5"})
    ]
    assert versions(read(stream)) == [8, 20]
    assert "a" not in entries(stream)


def test_a_token_whose_shards_are_all_gone_is_refused(
    client: DynamoDBStreamsClient, scripted: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "relay")
    lineage(scripted, "unrelated")
    taken = token(["s"], ("p", None, None, None), ("s", "p", "trim_horizon", None))
    with pytest.raises(InvalidStream, match=full("s")):
        opened(client, taken)
    assert [record.message for record in caplog.records if record.levelname == "INFO"] == [
        f"stream {ARN} no longer lists shard {full(name)}: dropping it from the token" for name in "ps"
    ]


def test_the_children_of_an_expired_shard_start_at_their_horizons(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """Bloop, "Streams" (Pausing and Resuming)."""
    gaps: list[Gap] = []
    lineage(scripted, "p>c,d")
    scripted.put("c", "k", 1)
    scripted.put("d", "k", 2)
    taken = token(["p"], ("p", None, "after_sequence", "5"), ("c", "p", None, None), ("d", "p", None, None))
    scripted.forget("p")
    stream = opened(client, taken, on_gap=gaps.append)
    assert active(stream) == ["c", "d"]
    assert [gap.shard for gap in gaps] == [full("p")]
    assert versions(read(stream)) == [1, 2]
    assert sorted(entries(stream)) == ["c", "d"]


def test_a_finished_shard_that_expired_is_not_a_gap(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    gaps: list[Gap] = []
    lineage(scripted, "p>c")
    stream = opened(client, "latest")
    taken = stream.token
    scripted.shards[full("p")].listed = False
    resumed = opened(client, taken, on_gap=gaps.append)
    assert (gaps, sorted(entries(resumed))) == ([], ["c"])
    scripted.shards[full("p")].listed = True
    scripted.put("p", "k", 1)
    assert read(resumed) == []


def test_a_shard_that_expired_before_it_started_is_a_gap(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I9: its records were not read."""
    gaps: list[Gap] = []
    lineage(scripted, "p>c", "c>d")
    taken = token(["p"], ("p", None, "after_sequence", "5"), ("c", "p", None, None), ("d", "c", None, None))
    for name in "pc":
        scripted.forget(name)
    assert active(opened(client, taken, on_gap=gaps.append)) == ["d"]
    assert [(gap.shard, gap.begin) for gap in gaps] == [
        (full("p"), {"type": "after_sequence", "sequence": "5"}),
        (full("c"), {"type": "trim_horizon"}),
    ]


def test_a_shard_that_one_listing_left_out_is_not_lost(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    gaps: list[Gap] = []
    lineage(scripted, "a", "b")
    taken = opened(client).token
    scripted.shards[full("a")].listed = False
    calls(scripted)

    def list_again(operation: str) -> None:
        scripted.shards[full("a")].listed = len(scripted.calls) > 1

    scripted.before = list_again
    assert active(opened(client, taken, on_gap=gaps.append)) == ["a", "b"]
    assert gaps == []


def test_a_shard_that_listings_lack_for_a_while_is_read_on_from_its_token(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I1, I2: and its child after it."""
    gaps: list[Gap] = []
    lineage(scripted, "p>c", "other")
    first = scripted.put("p", "k", 1)
    scripted.put("p", "k", 2)
    scripted.close("p")
    scripted.put("c", "k", 3)
    taken = token(["p", "other"], ("p", None, "after_sequence", first), ("other", None, "trim_horizon", None))
    scripted.shards[full("p")].listed = False
    stream = opened(client, taken, on_gap=gaps.append)
    assert versions(read(stream)) == [2, 3]
    assert gaps == []


def test_a_trimmed_position_in_a_token_becomes_the_horizon(
    client: DynamoDBStreamsClient, scripted: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the horizon of the same shard, and a gap."""
    caplog.set_level(logging.INFO)
    gaps: list[Gap] = []
    lineage(scripted, "s")
    beyond = scripted.put("s", "k", 1)
    scripted.pages("s", 3)
    scripted.trim("s", 2)
    stream = opened(client, token(["s"], ("s", None, "at_sequence", beyond)), on_gap=gaps.append)
    assert iterators(scripted) == [("s", "AT_SEQUENCE_NUMBER"), ("s", "TRIM_HORIZON")]
    assert "continuing at the trim horizon" in caplog.text
    assert active(stream) == ["s"]
    assert gaps == []
    # Until the gap is reported, a token is before it.
    assert entries(stream)["s"]["sequence_number"] == beyond
    assert versions(read(stream)) == [2, 3]
    assert [(gap.reason, gap.begin) for gap in gaps] == [("trimmed", {"type": "at_sequence", "sequence": beyond})]


def test_a_stream_does_not_move_when_the_gap_callback_raises(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I9"""

    def refuse(gap: Gap) -> None:
        raise RuntimeError

    lineage(scripted, "b")
    scripted.pages("b", 2)
    stream = opened(client, on_gap=refuse)
    read(stream, 1)
    with pytest.raises(RuntimeError):
        stream.move_to(token(["a", "b"]))
    assert versions(read(stream)) == [1]


def test_a_token_of_another_stream_is_refused(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    """Positions are not valid after a stream was disabled and enabled again."""
    lineage(scripted, "s")
    other = {**token(["s"]), "stream_arn": ARN.replace("2026", "2025")}
    with pytest.raises(InvalidStream, match=r"2025.*2026"):
        opened(client, other)


def test_a_token_without_positions_reads_from_the_horizon(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """It never reads from the head."""
    lineage(scripted, "a", "b", "c")
    for shard in "abc":
        scripted.put(shard, "k", 1)
    stream = opened(client, token(["a", "b"], ("a", None, None, None)))
    assert sorted(active(stream)) == ["a", "b", "c"]
    assert versions(read(stream)) == [1, 1, 1]


def test_a_token_of_an_empty_stream_reads_all_later_records(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    taken = opened(client, "latest").token
    assert taken == {"stream_arn": ARN, "active": [], "shards": []}
    lineage(scripted, "s")
    scripted.put("s", "k", 1)
    assert versions(read(opened(client, taken))) == [1]


def test_a_leaf_that_bloop_dropped_because_it_has_no_children_is_finished(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """Its child, which is listed later, is read; the leaf is not read again."""
    lineage(scripted, "s>c", "other")
    scripted.put("s", "k", 1)
    scripted.put("c", "k", 2)
    taken = token(["other"], ("s", None, "after_sequence", "5"), ("other", None, "trim_horizon", None))
    assert versions(read(opened(client, taken))) == [2]


def test_a_child_that_is_listed_only_after_a_restart_is_read_once(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    clock = Clock()
    stream = read_to_its_end(client, scripted, 2, clock)
    resumed = opened(client, stream.token, clock=clock)
    assert read(resumed) == []
    scripted.shard("c", "s")
    scripted.put("c", "k", 5)
    clock.now += 60
    assert versions(read(resumed)) == [5]
    clock.now += DISCOVER_EVERY
    assert read(opened(client, resumed.token, clock=clock)) == []

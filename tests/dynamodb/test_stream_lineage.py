"""Shards that split, end, disappear and appear while a stream is read: parents first (I2), nothing lost (I1, I9)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from relay.dynamodb import InvalidStream
from relay.dynamodb.coordinator import DISCOVER_EVERY
from relay.records import PRUNE_AFTER, Gap
from tests.clock import Clock
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.direct import DirectClient
from tests.dynamodb.endpoint import ScriptedStream, full
from tests.dynamodb.reading import (
    active,
    calls,
    entries,
    iterators,
    lineage,
    opened,
    read,
    read_to_its_end,
    short,
    versions,
)

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient


# ------------------------------------------------------------------ children


def test_a_known_child_starts_at_its_horizon_without_a_listing(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "s>c")
    stream = opened(client)
    calls(scripted)
    assert next(stream) is None
    assert active(stream) == ["c"]
    assert iterators(scripted) == [("c", "TRIM_HORIZON")]
    assert entries(stream)["c"]["iterator_type"] == "trim_horizon"
    assert calls(scripted)[:2] == (0, 1)


def test_an_unknown_child_is_looked_up_once_with_all_its_descendants(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "0")
    stream = opened(client)
    lineage(scripted, "0>1", "1>2,3", "4")
    calls(scripted)
    assert next(stream) is None
    assert [request.get("ExclusiveStartShardId") for request in scripted.requests if "StreamArn" in request][:1] == [
        full("0")
    ]
    assert calls(scripted)[0] == 1
    assert sorted(active(stream)) == ["2", "3"]
    assert entries(stream)["2"]["parent"] == full("1")


def test_children_of_a_closed_leaf_are_looked_up_with_growing_pauses_until_one_exists(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """No record of the child is lost or repeated."""
    clock = Clock()
    stream = read_to_its_end(client, scripted, 2, clock)
    calls(scripted)
    for _ in range(100):
        assert next(stream) is None
    assert calls(scripted)[1:] == (0, 0)
    asked = 0
    for _ in range(200):
        clock.now += 1
        assert next(stream) is None
        asked += calls(scripted)[0]
    assert 5 < asked < 25
    scripted.shard("c", "s")
    scripted.pages("c", 2)
    clock.now += 60
    assert versions(read(stream)) == [0, 1]
    assert (active(stream), next(stream)) == (["c"], None)


def test_children_of_a_closed_leaf_are_looked_up_for_days(scripted: ScriptedStream) -> None:
    """A pause that has doubled 1,024 times is too large for a float."""
    clock = Clock()
    stream = read_to_its_end(DirectClient(scripted), scripted, 1, clock)
    for _ in range(1100):
        clock.now += 60
        assert next(stream) is None


def test_children_of_a_closed_leaf_of_a_disabled_stream_are_not_looked_up_again(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    clock = Clock()
    lineage(scripted, "s")
    scripted.pages("s", 2)
    scripted.close("s")
    scripted.status = "DISABLED"
    stream = opened(client, clock=clock)
    assert versions(read(stream)) == [0, 1]
    calls(scripted)
    clock.now += DISCOVER_EVERY / 2
    assert next(stream) is None
    assert calls(scripted) == (0, 0, 0)


def test_children_wait_until_the_last_record_of_their_parent_is_handed_out(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I2: also if their creation times are older."""
    scripted.shard("p")
    for version in (1, 2, 3):
        scripted.put("p", "k", version, created=1_700_000_100)
    scripted.split("p", "c")
    scripted.put("c", "k", 4, created=1_700_000_000)
    stream = opened(client)
    assert versions(read(stream, 2)) == [1, 2]
    stream.heartbeat()
    assert active(stream) == ["p"]
    assert versions(read(stream)) == [3, 4]


def test_a_parent_that_is_listed_as_open_is_read_to_its_end_before_its_child(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    scripted.shard("p")
    scripted.put("p", "k", 1)
    scripted.shard("c", "p")
    scripted.put("c", "k", 3)
    stream = opened(client)
    assert versions(read(stream)) == [1]
    scripted.put("p", "k", 2)
    scripted.close("p")
    assert versions(read(stream)) == [2, 3]


def test_latest_applies_only_to_the_shards_listed_at_the_start(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """A child that is created later is read from its horizon."""
    lineage(scripted, "0>4", "1", "2", "3")
    for shard in "0123":
        scripted.put(shard, "k", 1)
    stream = opened(client, "latest")
    assert iterators(scripted) == [(name, "LATEST") for name in ("1", "2", "3", "4")]
    assert read(stream) == []
    scripted.split("1", "5")
    scripted.put("5", "k", 2)
    assert versions(read(stream)) == [2]
    assert ("5", "TRIM_HORIZON") in iterators(scripted)
    assert entries(stream)["0"] == {"shard_id": full("0")}


def test_a_shard_listed_late_is_found_by_the_next_complete_listing(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I1: the second child of a split, if the first was listed alone."""
    clock = Clock()
    lineage(scripted, "p>b")
    stream = opened(client, clock=clock)
    assert next(stream) is None
    scripted.shard("a", "p")
    scripted.put("a", "k", 1)
    assert next(stream) is None
    clock.now += DISCOVER_EVERY
    assert versions(read(stream)) == [1]
    assert sorted(active(stream)) == ["a", "b"]


def test_a_child_whose_parent_is_no_longer_listed_is_a_root(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """Bloop pull request 141."""
    lineage(scripted, "0>1", "1>2", "3>4,5")
    scripted.shards[full("0")].listed = False
    assert active(opened(client)) == ["1", "3"]


def test_a_parent_that_one_listing_left_out_is_still_read_first(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I2"""
    lineage(scripted, "p>c")
    scripted.put("p", "k", 1)
    scripted.put("c", "k", 2)
    scripted.shards[full("p")].listed = False

    def list_again(operation: str) -> None:
        scripted.shards[full("p")].listed = len(scripted.calls) > 1

    scripted.before = list_again
    assert versions(read(opened(client))) == [1, 2]


def test_an_ancestor_that_is_listed_after_its_descendant_was_started_is_a_gap(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I2, I9: its records would come after its descendant's."""
    clock, gaps = Clock(), list[Gap]()
    lineage(scripted, "g>p,q", "p>c,d")
    for version, shard in enumerate("gpqcd"):
        scripted.put(shard, "k", version)
        scripted.shards[full(shard)].listed = shard == "c"
    stream = opened(client, clock=clock, on_gap=gaps.append)
    assert versions(read(stream)) == [3]
    for late in scripted.shards.values():
        late.listed = True
    clock.now += DISCOVER_EVERY
    assert sorted(versions(read(stream))) == [2, 4]
    assert [(gap.shard, gap.reason) for gap in gaps] == [(full("g"), "gone"), (full("p"), "gone")]


def test_ended_shards_are_remembered_for_two_days_and_never_read_again(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I11"""
    clock = Clock()
    lineage(scripted, "0>1")
    scripted.pages("0", 1)
    stream = opened(client, clock=clock)
    assert versions(read(stream)) == [0]
    assert sorted(entries(stream)) == ["0", "1"]
    clock.now += DISCOVER_EVERY
    scripted.shards[full("0")].listed = False
    assert read(stream) == []
    clock.now += DISCOVER_EVERY
    scripted.shards[full("0")].listed = True
    assert read(stream) == []
    clock.now += PRUNE_AFTER
    assert read(stream) == []
    scripted.shards[full("0")].listed = False
    clock.now += DISCOVER_EVERY
    assert read(stream) == []
    assert entries(stream) == {"1": {"shard_id": full("1"), "iterator_type": "trim_horizon"}}


def test_a_listing_that_fails_is_raised_and_retried_by_the_next_call(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I1: the child is not forgotten."""
    lineage(scripted, "s")
    stream = opened(client)
    scripted.split("s", "t")
    scripted.put("t", "k", 1)

    def refuse(operation: str) -> None:
        if operation == "DescribeStream":
            raise Refused("ThrottlingException")

    scripted.before = refuse
    for _ in range(2):
        with pytest.raises(Exception, match="giving up"):
            next(stream)
    scripted.before = lambda operation: None
    assert versions(read(stream)) == [1]


# ------------------------------------------------------------------ shards that are gone


def test_a_shard_that_is_trimmed_again_while_it_is_opened_is_opened_in_the_next_round(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "s")
    scripted.put("s", "k", 1)

    def refuse(operation: str) -> None:
        if operation == "GetShardIterator" and scripted.calls.count(operation) <= 2:
            raise Refused("TrimmedDataAccessException")

    scripted.before = refuse
    assert versions(read(opened(client))) == [1]


def test_a_shard_that_is_gone_is_a_gap_and_its_children_are_read(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """It is final, not retried forever."""
    gaps: list[Gap] = []
    lineage(scripted, "s", "other")
    scripted.pages("s", 2)
    stream = opened(client, on_gap=gaps.append)
    records = read(stream)
    scripted.split("s", "c")
    scripted.pages("c", 1)
    scripted.forget("s")
    scripted.expire_iterators()
    scripted.pages("other", 1)
    assert sorted(versions(read(stream))) == [0, 0]
    assert [(gap.shard, gap.reason, gap.begin) for gap in gaps if gap.reason == "gone"] == [
        (full("s"), "gone", {"type": "after_sequence", "sequence": records[-1]["meta"]["sequence_number"]})
    ]
    assert "s" not in active(stream)
    calls(scripted)
    assert read(stream) == []
    assert calls(scripted)[:2] == (0, 0)


def test_a_listed_shard_that_is_reported_unknown_is_read_again_for_a_minute(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I1: also a second time. Then its children have waited for long enough."""
    gaps: list[Gap] = []
    clock = Clock()
    lineage(scripted, "s")
    stream = opened(client, on_gap=gaps.append, clock=clock)
    denials = 0

    def deny(operation: str) -> None:
        nonlocal denials
        if operation == "GetRecords" and denials:
            denials -= 1
            raise Refused("ResourceNotFoundException")

    scripted.before = deny
    for version in range(2):
        scripted.pages("s", 1)
        denials = 2
        assert read(stream) == []
        clock.now += 59.0
        assert versions(read(stream)) == [version]
        clock.now += 100.0
    assert gaps == []
    denials = 1000
    assert read(stream) == []
    clock.now += 60.0
    assert read(stream) == []
    assert [gap.reason for gap in gaps] == ["gone"]


def test_a_stream_that_no_longer_exists_is_an_error(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    lineage(scripted, "s")
    stream = opened(client)

    def deny(operation: str) -> None:
        raise Refused("ResourceNotFoundException")

    scripted.before = deny
    for _ in range(2):
        with pytest.raises(InvalidStream, match="no longer"):
            next(stream)


def test_while_the_gap_callback_raises_no_child_starts(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    """I9"""
    told: list[Any] = []

    def refuse(gap: Gap) -> None:
        told.append(gap.shard)
        if len(told) < 3:
            raise RuntimeError

    lineage(scripted, "s>c")
    scripted.pages("c", 1)
    scripted.pages("s", 1)
    stream = opened(client, on_gap=refuse)
    scripted.forget("s")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            next(stream)
        assert active(stream) == ["s"]
    assert versions(read(stream)) == [0]
    assert [short(name) for name in told] == ["s"] * 3


def test_records_trimmed_while_the_stream_is_read_are_a_gap_before_the_next_record(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I9"""
    seen: list[Any] = []
    lineage(scripted, "s")
    scripted.pages("s", 1, 3)
    stream = opened(client, on_gap=lambda gap: seen.append(gap.reason))
    seen += versions(read(stream, 1))
    scripted.trim("s", 3)
    seen += versions(read(stream))
    assert seen == [0, "trimmed", 3]


def test_a_gap_without_a_callback_is_logged(
    client: DynamoDBStreamsClient, scripted: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    """I9"""
    caplog.set_level(logging.WARNING, "relay")  # commands that ran in this process before may have set another
    lineage(scripted, "s")
    scripted.pages("s", 1, 3)
    stream = opened(client)
    read(stream, 1)
    scripted.trim("s", 3)
    assert versions(read(stream)) == [3]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "trimmed" in caplog.text

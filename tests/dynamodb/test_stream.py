"""``relay.dynamodb.Stream``: records, their order, where reading starts, heartbeats. Lineages: test_stream_lineage."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import relay.dynamodb
from relay.dynamodb import InvalidPosition, InvalidStream, Stream
from relay.records import Gap
from tests.clock import Clock
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ARN, ScriptedStream, full
from tests.dynamodb.reading import active, calls, entries, iterators, lineage, opened, read, versions
from tests.snippets import play, programs

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

NOON = 1_700_049_600


@pytest.fixture
def tree(scripted: ScriptedStream) -> ScriptedStream:
    """0>1>{2,3}, 4>{5,6>7}"""
    lineage(scripted, "0>1", "1>2,3", "4>5,6", "6>7")
    return scripted


# ------------------------------------------------------------------ calls


def test_buffered_records_are_returned_before_any_call(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    lineage(scripted, "s")
    scripted.pages("s", 3)
    stream = opened(client, "latest")
    scripted.pages("s", 2)
    calls(scripted)
    record = next(stream)
    assert calls(scripted) == (0, 0, 1)
    assert record is not None
    assert entries(stream)["s"] == {
        "shard_id": full("s"),
        "iterator_type": "after_sequence",
        "sequence_number": record["meta"]["sequence_number"],
    }
    assert versions([record, *read(stream, 1)]) == [3, 4]
    assert calls(scripted) == (0, 0, 0)
    assert active(stream) == ["s"]


def test_every_active_shard_is_read_in_a_round(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    lineage(scripted, "a", "b")
    scripted.pages("a", 1)
    stream = opened(client)
    calls(scripted)
    assert next(stream) is not None
    assert calls(scripted) == (0, 0, 1 + 5)
    assert active(stream) == ["a", "b"]


def test_a_shard_that_is_empty_and_closed_does_not_hide_another(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "a", "b")
    scripted.pages("a", 1)
    scripted.close("b")
    stream = opened(client)
    assert versions(read(stream)) == [0]


def test_the_last_page_of_a_closed_shard_is_returned_completely(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """Bloop issue 111."""
    lineage(scripted, "s")
    scripted.pages("s", 3)
    scripted.close("s")
    stream = opened(client)
    coordinator = stream._coordinator
    unread = []
    for version in range(3):
        assert versions(read(stream, 1)) == [version]
        assert coordinator.active == []
        unread.append([shard.unread for shard in coordinator.started.values() if not shard.drained])
    assert unread == [[2], [1], []]
    assert not coordinator.buffer
    assert next(stream) is None


# ------------------------------------------------------------------ where reading starts


def test_trim_horizon_is_the_horizon_of_every_root(client: DynamoDBStreamsClient, tree: ScriptedStream) -> None:
    stream = opened(client, "latest")
    stream.heartbeat()
    calls(tree)
    stream.move_to("trim_horizon")
    assert iterators(tree) == [("0", "TRIM_HORIZON"), ("4", "TRIM_HORIZON")]
    assert calls(tree) == (1, 2, 0)
    assert active(stream) == ["0", "4"]


def test_latest_is_the_head_of_every_leaf(client: DynamoDBStreamsClient, tree: ScriptedStream) -> None:
    stream = opened(client)
    calls(tree)
    stream.move_to("latest")
    assert iterators(tree) == [(name, "LATEST") for name in ("2", "3", "5", "7")]
    assert calls(tree) == (1, 4, 0)
    assert active(stream) == ["2", "3", "5", "7"]
    assert [name for name, entry in entries(stream).items() if "parent" not in entry] == ["0", "4"]


def test_a_future_time_is_the_same_as_latest(client: DynamoDBStreamsClient, tree: ScriptedStream) -> None:
    clock = Clock()
    stream = opened(client, clock=clock)
    calls(tree)
    stream.move_to(datetime.fromtimestamp(clock.now + 1, UTC))
    assert iterators(tree) == [(name, "LATEST") for name in ("2", "3", "5", "7")]
    assert calls(tree) == (1, 4, 0)


def test_a_time_is_searched_for_in_every_lineage(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    """Bloop, "Streams" (Moving Around): its records, and all later ones."""
    scripted.shard("0")
    scripted.put("0", "k", 1, created=NOON - 9000)
    scripted.split("0", "1", "2")
    scripted.put("1", "k", 2, created=NOON - 3601)
    scripted.put("1", "k", 3, created=NOON - 3600)
    scripted.put("2", "k", 4, created=NOON - 5000)
    scripted.shard("3")
    scripted.put("3", "k", 5, created=NOON - 3590)
    scripted.split("3", "4")
    scripted.put("4", "k", 6, created=NOON - 3580)
    stream = opened(client, clock=Clock(NOON))
    hour_ago = datetime.fromtimestamp(NOON, UTC) - timedelta(hours=1)
    # An Arrow has its time as `datetime`. One without a time zone is local, as `datetime.now()` is.
    for given in (SimpleNamespace(datetime=hour_ago), hour_ago.astimezone().replace(tzinfo=None), hour_ago):
        stream.move_to(cast(Any, given))
        assert versions(read(stream)) == [3, 5, 6]
    scripted.put("2", "k", 7, created=NOON)
    assert versions(read(stream)) == [7]


def test_a_time_after_many_empty_pages_is_still_found(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    """Also in children that start later."""
    scripted.shard("0")
    scripted.pages("0", 0, 0, 0, 0, 0)
    scripted.put("0", "k", 1, created=NOON - 9001)
    scripted.split("0", "1")
    scripted.put("1", "k", 2, created=NOON - 9000)
    scripted.put("1", "k", 3, created=NOON)
    stream = opened(client, datetime.fromtimestamp(NOON, UTC), clock=Clock(NOON))
    assert versions(read(stream)) == [3]


@pytest.mark.parametrize(
    "position",
    [
        None,
        "start",
        "end",
        "head",
        "front",
        "back",
        "at_sequence",
        ("after_sequence", "1"),
        7,
        datetime(2026, 1, 1).date(),
    ],
)
def test_an_invalid_position_is_refused_and_changes_nothing(
    client: DynamoDBStreamsClient, scripted: ScriptedStream, position: Any
) -> None:
    lineage(scripted, "s")
    scripted.pages("s", 2)
    stream = opened(client)
    assert versions(read(stream, 1)) == [0]
    with pytest.raises(InvalidPosition):
        stream.move_to(position)
    assert versions(read(stream)) == [1]


def test_an_error_names_a_stream_that_does_not_exist(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    other = ARN.replace("scripted", "other")
    with pytest.raises(InvalidStream, match=other):
        Stream(client, other)


def test_moving_drops_buffered_records(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    lineage(scripted, "s")
    scripted.pages("s", 3)
    stream = opened(client)
    read(stream, 2)
    stream.move_to("trim_horizon")
    assert versions(read(stream)) == [0, 1, 2]


# ------------------------------------------------------------------ heartbeats


def test_a_heartbeat_advances_only_iterators_without_a_sequence_number(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "a", "b", "c")
    scripted.put("a", "k", 9)
    stream = opened(client)
    assert versions(read(stream)) == [9]
    for version in range(3):
        scripted.put("b", "k", version)
    scripted.put("a", "k", 10, created=4_000_000_000)
    scripted.close("c")
    calls(scripted)
    stream.heartbeat()
    assert calls(scripted) == (0, 0, 2)
    assert versions(read(stream, 3)) == [0, 1, 2]
    assert calls(scripted) == (0, 0, 0)
    assert versions(read(stream)) == [10]


def test_a_heartbeat_makes_no_call_once_a_record_was_found(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "s")
    stream = opened(client, "latest")
    scripted.put("s", "k", 1)
    calls(scripted)
    stream.heartbeat()
    stream.heartbeat()
    assert calls(scripted) == (0, 0, 1)
    assert versions(read(stream)) == [1]


def test_heartbeats_keep_an_idle_shard_alive(client: DynamoDBStreamsClient, scripted: ScriptedStream) -> None:
    lineage(scripted, "s")
    stream = opened(client, "latest")
    for _ in range(3):
        stream.heartbeat()  # with the iterator made after the expiry
        scripted.put("s", "k", 1)
        assert versions(read(stream)) == [1]
        scripted.expire_iterators()


def test_one_expired_iterator_does_not_keep_the_others_from_their_heartbeat(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    lineage(scripted, "a", "b")
    stream = opened(client)
    scripted.put("b", "k", 7)
    left = 1

    def expire(operation: str) -> None:
        nonlocal left
        if operation == "GetRecords" and left:
            left -= 1
            raise Refused("ExpiredIteratorException")

    scripted.before = expire
    with pytest.raises(relay.dynamodb.IteratorExpired, match=full("a")):
        stream.heartbeat()
    assert versions(read(stream)) == [7]


def test_with_a_gap_callback_the_heartbeat_replaces_the_expired_iterator_too(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    gaps: list[Gap] = []
    lineage(scripted, "a", "b")
    stream = opened(client, on_gap=gaps.append)
    scripted.expire_iterators()
    scripted.put("a", "k", 1)
    scripted.put("b", "k", 2)
    stream.heartbeat()
    assert versions(read(stream)) == [1, 2]
    assert [(gap.shard, gap.reason) for gap in gaps] == [(full("a"), "expired"), (full("b"), "expired")]


def test_an_error_in_one_shard_does_not_keep_others_from_being_read(
    client: DynamoDBStreamsClient, scripted: ScriptedStream
) -> None:
    """I10: it is raised each time, not swallowed."""
    lineage(scripted, "a", "b")
    stream = opened(client)
    scripted.put("b", "k", 1)

    def refuse(operation: str) -> None:
        if operation == "GetRecords" and scripted.requests[-1]["ShardIterator"].startswith(full("a")):
            raise Refused("ValidationException")

    scripted.before = refuse
    with pytest.raises(relay.errors.RelayError):
        next(stream)
    assert versions(read(stream, 1)) == [1]
    with pytest.raises(relay.errors.RelayError):
        next(stream)


# ------------------------------------------------------------------ the package


def test_the_public_names_are_complete() -> None:
    assert set(relay.dynamodb.__all__) == {
        "InvalidPosition",
        "InvalidStream",
        "IteratorExpired",
        "Loaded",
        "Record",
        "Stream",
        "StreamToken",
        "batch_load",
    }
    assert callable(relay.dynamodb.batch_load)


def test_the_example_of_the_readme_works(
    client: DynamoDBStreamsClient,
    scripted: ScriptedStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import boto3

    lineage(scripted, "s")
    scripted.pages("s", 3)
    (example,) = programs("relay/dynamodb/README.md")
    monkeypatch.chdir(tmp_path)
    table = SimpleNamespace(describe_table=lambda TableName: {"Table": {"LatestStreamArn": ARN}})
    monkeypatch.setattr(boto3, "client", {"dynamodb": table, "dynamodbstreams": client}.get)
    play(example, {"range(1000)": "range(3)"})
    printed = capsys.readouterr().out
    assert re.findall(r"'new': .*?'version': \{'N': '(\d)'\}", printed) == ["0", "1", "2"]
    resumed = opened(client, json.loads((tmp_path / "token.json").read_text()))
    scripted.pages("s", 1)
    assert versions(read(resumed)) == [3]


def test_at_least_one_call_is_needed_to_reach_the_head(client: DynamoDBStreamsClient) -> None:
    with pytest.raises(ValueError, match="calls_to_reach_head"):
        opened(client, calls_to_reach_head=0)

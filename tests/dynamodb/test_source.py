"""The DynamoDB source against a scripted endpoint: listing, reading, resuming, and errors."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import datetime
from typing import Any

import orjson
import pytest

from relay.change import Snapshot, Uncarriable
from relay.config import DynamoDBConfig
from relay.dynamodb import describe
from relay.dynamodb.source import DynamoDBSource
from relay.errors import ConfigError, RelayError
from relay.records import Shard, SnapshotPart
from relay.source import Segment
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import LABEL, TABLE, ScriptedStream, full
from tests.dynamodb.opened_source import reader, versions
from tests.reads import read_page


def test_a_listing_spans_pages_and_keeps_parents(source: DynamoDBSource, stream: ScriptedStream) -> None:
    stream.shard("a")
    stream.split("a", "b", "c", "d")
    stream.shard("e", "gone")
    assert {s.id: s.parents for s in source.shards()} == {
        full("a"): (),
        full("b"): (full("a"),),
        full("c"): (full("a"),),
        full("d"): (full("a"),),
        full("e"): (full("gone"),),
    }
    assert stream.calls.count("DescribeStream") - 1 == 3


def source_at(url: str, **config: Any) -> closing[DynamoDBSource]:
    entry = {"name": "orders", "type": "dynamodb", "table": TABLE, "region": "us-east-1", "endpoint_url": url, **config}
    return closing(DynamoDBSource(DynamoDBConfig(**entry)))


def labels(stream: ScriptedStream, **config: Any) -> tuple[str, list[str]]:
    """Return in which stream a source begins, and which stream follows each."""
    with source_at(stream.url, **config) as source:
        source.connect()
        first = source.first()
        return first, [(source.connect(each.label), source.following())[1] for each in (*stream.earlier, stream)]


FIRST, SECOND = "2025-12-31T20:00:00.000", "2025-12-31T22:00:00.000"


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("trim_horizon", FIRST),
        ("latest", LABEL),
        ("2025-12-31T19:00:00", FIRST),
        ("2025-12-31T21:00:00", FIRST),
        ("2025-12-31T23:00:00", SECOND),
        ("2026-01-01T00:00:00", LABEL),
        ("-30s", LABEL),
    ],
)
def test_reading_begins_in_the_stream_that_has_the_start_and_each_stream_is_followed_by_the_next(
    stream: ScriptedStream, start: str, first: str
) -> None:
    """I1: a stream can be read for a day after it was disabled."""
    stream.listing_page = 1
    stream.disabled(FIRST), stream.disabled(SECOND)
    assert labels(stream, region="us-east-1", start=start) == (first, [SECOND, LABEL, LABEL])


def test_a_rule_for_an_attribute_that_nothing_shows_is_refused_at_the_first_start_alone(stream: ScriptedStream) -> None:
    """Which items are looked at later is chance."""

    def before(operation: str) -> None:
        if operation == "Scan":
            raise Refused("AccessDeniedException")

    stream.before = before
    with source_at(stream.url, protect={TABLE: {"ssn": "exclude"}}) as source:
        assert source.connect().label == LABEL
        with pytest.raises(ConfigError, match="ssn"):
            source.first()


def test_the_stream_of_an_earlier_table_with_the_same_name_is_not_read(stream: ScriptedStream) -> None:
    """I2: its items are gone, and no change says so."""
    stream.disabled(FIRST), stream.disabled(SECOND)
    stream.table_created = int(describe.created(SECOND))
    assert labels(stream, region="us-east-1")[0] == SECOND


@pytest.mark.parametrize(
    ("removed", "first", "following"), [(FIRST, SECOND, [SECOND, LABEL, LABEL]), (SECOND, FIRST, [LABEL, LABEL, LABEL])]
)
def test_a_stream_that_is_listed_for_longer_than_it_exists_is_not_read(
    stream: ScriptedStream, removed: str, first: str, following: list[str]
) -> None:
    """I10: nobody can plan it, and those behind it would not be read."""
    stream.disabled(FIRST), stream.disabled(SECOND)

    def refuse(operation: str) -> None:
        if operation == "DescribeStream" and stream.requests[-1]["StreamArn"].endswith(removed):
            raise Refused("ResourceNotFoundException")

    stream.before = refuse
    assert labels(stream, region="us-east-1") == (first, following)


def test_a_stream_that_may_not_be_described_is_not_left_out(stream: ScriptedStream) -> None:
    """I1: its changes would be skipped with a warning about another permission. Whoever reads it is refused aloud."""
    stream.disabled(FIRST), stream.disabled(SECOND)

    def refuse(operation: str) -> None:
        if operation == "DescribeStream" and not stream.requests[-1]["StreamArn"].endswith(LABEL):
            raise Refused("AccessDeniedException")

    stream.before = refuse
    assert labels(stream, region="us-east-1") == (FIRST, [SECOND, LABEL, LABEL])


def test_a_duration_ago_is_counted_by_the_clock_of_the_service_also_where_it_chooses_the_stream(
    stream: ScriptedStream,
) -> None:
    """I1: on a machine whose clock is ahead, the end of the stream before it would be skipped."""
    stream.set_clock(-20.0)
    stream.disabled(FIRST), stream.disabled(SECOND)
    since_newest = int(time.time() - 20.0 - datetime.fromisoformat(f"{LABEL}Z").timestamp())
    assert labels(stream, region="us-east-1", start=f"-{since_newest + 10}s")[0] == SECOND
    assert labels(stream, region="us-east-1", start=f"-{since_newest - 10}s")[0] == LABEL


def test_a_stream_that_is_named_in_the_config_is_neither_preceded_nor_followed(stream: ScriptedStream) -> None:
    stream.disabled(FIRST), stream.disabled(SECOND)
    assert labels(stream, table=None, stream_arn=stream.earlier[1].arn)[0] == SECOND
    source = DynamoDBSource(
        DynamoDBConfig(name="orders", type="dynamodb", stream_arn=stream.earlier[1].arn, endpoint_url=stream.url)
    )
    source.connect()
    assert source.following() == SECOND
    source.close()


def test_without_permission_to_list_streams_the_newest_is_read_with_a_warning(
    stream: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: an upgrade must not stop a relay, and what it does not see must not go unsaid."""
    stream.disabled(FIRST), stream.disabled(SECOND)

    def refuse(operation: str) -> None:
        if operation == "ListStreams":
            raise Refused("AccessDeniedException")

    stream.before = refuse
    assert labels(stream, region="us-east-1") == (LABEL, [LABEL, LABEL, LABEL])
    assert "allow dynamodb:ListStreams" in caplog.text


def test_a_shard_all_of_whose_records_are_trimmed_does_not_keep_a_relay_from_starting_at_the_head(
    stream: ScriptedStream,
) -> None:
    """I10: GetShardIterator says so for any position, for as long as the shard is listed."""
    place: dict[str, Any] = {"table": TABLE, "region": "us-east-1", "endpoint_url": stream.url}
    source = DynamoDBSource(DynamoDBConfig(name="orders", type="dynamodb", start="latest", **place))
    source.connect()

    def refuse(operation: str) -> None:
        if operation == "GetShardIterator" and stream.requests[-1]["ShardId"] == full("old"):
            raise Refused("TrimmedDataAccessException")

    stream.shard("old"), stream.shard("new")
    stream.before = refuse
    assert set(source.starting_points(source.shards()).shards) == {full("old"), full("new")}
    source.close()


@pytest.mark.parametrize("ahead", [0.0, 20.0])
def test_a_start_at_the_head_keeps_new_records_on_a_machine_whose_clock_is_ahead(
    stream: ScriptedStream, ahead: float
) -> None:
    """I1: without an iterator there, only their times say that they are new, by the clock of the service."""
    stream.set_clock(-ahead)
    place: dict[str, Any] = {"table": TABLE, "region": "us-east-1", "endpoint_url": stream.url}
    source = DynamoDBSource(DynamoDBConfig(name="orders", type="dynamodb", start="latest", **place))
    source.connect()

    def throttle(operation: str) -> None:
        if operation == "GetShardIterator":
            raise Refused("ThrottlingException")

    stream.shard("s")
    stream.put("s", "k", 1, created=int(time.time() - ahead) - 120)
    stream.before = throttle
    start = source.starting_points([Shard(full("s"))]).shards[full("s")]
    stream.before = lambda operation: None
    stream.put("s", "k", 2, created=int(time.time() - ahead))
    assert versions(read_page(reader(source, start=start))) == [2]
    source.close()


def test_a_call_that_is_refused_for_good_raises_an_error_with_the_stream(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    stream.shard("s")

    def refuse(operation: str) -> None:
        raise Refused("ValidationException")

    stream.before = refuse
    with pytest.raises(RelayError, match=LABEL):
        read_page(reader(source))


@pytest.mark.parametrize("columns", [None, {"id": "string", "version": "int", "text": "string"}])
def test_a_snapshot_row_that_is_not_valid_text_is_passed_on_unchanged(
    stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch, columns: dict[str, str] | None
) -> None:
    """I8: the encoder decides."""
    stream.shard("s")
    stream.put("s", "k", 1)
    stream.items["k"]["text"] = {"S": "@@"}
    scan = stream._Scan
    answer = lambda request: orjson.Fragment(orjson.dumps(scan(request)).replace(b"@@", b"\\ud83d"))  # noqa: E731
    monkeypatch.setattr(stream, "_Scan", answer)
    config = DynamoDBConfig(
        name="orders", type="dynamodb", table=TABLE, region="us-east-1", endpoint_url=stream.url, columns=columns
    )
    source = DynamoDBSource(config)
    source.connect()
    (change,) = read_page(
        source.snapshots.open(Segment(Shard("segment"), Snapshot("one", 0), 0, 1, part=SnapshotPart()))
    ).changes
    source.close()
    assert isinstance(change.new, Uncarriable)
    assert change.new.item["text"] == {"S": "\ud83d"}

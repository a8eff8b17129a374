"""Reading a shard for the relay, against a scripted endpoint: resuming, gaps, starts, progress and errors."""

from __future__ import annotations

import time

import orjson
import pytest

from relay.config import DynamoDBConfig
from relay.dynamodb.reader import RETENTION
from relay.dynamodb.source import DynamoDBSource
from relay.errors import RelayError
from relay.records import Shard, ShardCheckpoint, ShardState
from relay.source import Page, UnknownShard
from relay.token import EventToken
from tests.clock import Clock
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import TABLE, ScriptedStream, full
from tests.dynamodb.opened_source import reader, versions
from tests.reads import read_page, reason


def test_a_closed_shard_is_read_to_its_last_record(source: DynamoDBSource, stream: ScriptedStream) -> None:
    """I1: records on the page that has no next iterator count too."""
    stream.shard("s")
    for version in (1, 2, 3):
        stream.put("s", "k", version)
    stream.close("s")
    reading = reader(source)
    first, second = read_page(reading), read_page(reading)
    assert versions(first, second) == [1, 2, 3]
    assert (first.finished, second.finished) == (False, True)


def test_a_page_has_the_size_of_its_changes(source: DynamoDBSource, stream: ScriptedStream) -> None:
    """I11: by which a transaction is committed before it is too large."""
    stream.shard("s")
    stream.put("s", "k", 1)
    one = read_page(reader(source))
    stream.put("s", "k", 2)
    both = read_page(reader(source))
    assert 0 < one.counts.size < both.counts.size


def test_a_reader_resumes_exactly_after_a_position(source: DynamoDBSource, stream: ScriptedStream) -> None:
    """I4"""
    stream.shard("s")
    for version in (1, 2, 3):
        stream.put("s", "k", version)
    page = read_page(reader(source))
    assert page.position is not None
    resumed = reader(source, position=page.position)
    assert versions(read_page(resumed)) == [3]


def test_an_expired_iterator_is_replaced_at_the_same_position(source: DynamoDBSource, stream: ScriptedStream) -> None:
    stream.shard("s")
    for version in (1, 2, 3):
        stream.put("s", "k", version)
    reading = reader(source)
    first = read_page(reading)
    stream.expire_iterators()
    assert versions(first, read_page(reading)) == [1, 2, 3]
    fresh = reader(source)
    read_page(fresh)
    stream.expire_iterators()
    assert versions(read_page(fresh)) == [3]


def test_an_iterator_that_expires_before_the_first_record_restarts_at_the_horizon(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    stream.shard("s")
    reading = reader(source)
    assert read_page(reading).counts.records == 0
    stream.expire_iterators()
    stream.put("s", "k", 1)
    assert versions(read_page(reading)) == [1]


def test_trimmed_records_become_a_gap_and_reading_continues_at_the_horizon(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """I9"""
    stream.shard("s")
    for version in range(1, 7):
        stream.put("s", "k", version)
    reading = reader(source)
    last = read_page(reading).position
    stream.trim("s", 4)
    page = read_page(reading)
    assert versions(page) == [5, 6]
    assert page.gap is not None
    assert (page.gap.reason, page.gap.shard, page.gap.begin) == ("trimmed", full("s"), last)


def test_a_position_before_the_horizon_is_a_gap_and_not_the_end_of_the_shard(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    stream.shard("s")
    for version in range(1, 5):
        stream.put("s", "k", version)
    position = read_page(reader(source)).position
    stream.trim("s", 3)
    page = read_page(reader(source, position=position))
    assert page.gap is not None
    assert versions(page) == [4]


def test_a_shard_that_the_stream_does_not_know_is_reported_as_unknown(source: DynamoDBSource) -> None:
    assert isinstance(reader(source, "nowhere").read(), UnknownShard)


@pytest.mark.parametrize("refused", [Refused("ThrottlingException"), Refused("InternalServerError", 500)])
def test_throttling_and_server_errors_fail_one_read_and_change_nothing(
    source: DynamoDBSource, stream: ScriptedStream, refused: Refused
) -> None:
    stream.shard("s")
    for version in (1, 2, 3):
        stream.put("s", "k", version)
    reading = reader(source)
    first = read_page(reading)

    def fail(operation: str) -> None:
        raise refused

    stream.before = fail
    assert refused.kind in reason(reading.read())
    stream.before = lambda operation: None
    assert versions(first, read_page(reading)) == [1, 2, 3]


def test_a_gap_is_kept_over_failed_reads_until_a_page_reports_it(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """I9"""
    stream.shard("s")
    for version in range(1, 5):
        stream.put("s", "k", version)
    reading = reader(source, position=read_page(reader(source)).position)
    stream.trim("s", 3)

    def fail(operation: str) -> None:
        if stream.calls.count("GetShardIterator") > before:
            raise Refused("ThrottlingException")

    before = stream.calls.count("GetShardIterator") + 1
    stream.before = fail
    assert reason(reading.read())
    stream.before = lambda operation: None
    page = read_page(reading)
    assert page.gap is not None
    assert versions(page) == [4]
    assert read_page(reading).gap is None


def test_of_two_gaps_before_one_page_the_first_says_where_the_loss_begins(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """I9: records are trimmed again while the page after the gap is requested."""
    stream.shard("s")
    stream.put("s", "k", 1)
    position = read_page(reader(source)).position
    for version in range(2, 7):
        stream.put("s", "k", version)
    reading = reader(source, position=position)
    stream.trim("s", 3)

    def trim_more(operation: str) -> None:
        if operation == "GetRecords":
            stream.before = lambda operation: None
            stream.trim("s", 5)

    stream.before = trim_more
    page = read_page(reading)
    assert versions(page) == [6]
    assert page.gap is not None
    assert page.gap.begin == position


def test_a_shard_that_was_not_read_for_longer_than_the_retention_has_a_gap(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """I9: nothing else shows that records were trimmed in the meantime."""
    stream.shard("s")
    stream.put("s", "k", 1)
    stream.put("s", "k", 2)
    stream.trim("s", 1)
    late = read_page(reader(source, read_until=time.time() - RETENTION - 1))
    assert late.gap is not None
    assert versions(late) == [2]
    assert read_page(reader(source, read_until=time.time() - RETENTION + 60)).gap is None


@pytest.mark.parametrize("start", ["a time", "a sequence number"])
def test_a_gap_after_which_nothing_was_read_is_reported_once(
    source: DynamoDBSource, stream: ScriptedStream, start: str
) -> None:
    """I9: a restart finds the same loss, but what is written later may be lost again."""
    stream.shard("s")
    for version in (1, 2, 3):
        stream.put("s", "k", version)
    position = read_page(reader(source)).position
    stream.trim("s", 3)
    page = read_page(reader(source, position=position))
    assert page.gap is not None
    assert (page.position, page.gap.begin) == (None, position)
    long_ago = time.time() - RETENTION - 60

    def after_restart(reported_at: float) -> Page:
        checkpoint = ShardCheckpoint(ShardState.READING, gap="ab", updated_at=reported_at)
        begin = position if start == "a sequence number" else {"since": 1.0}
        return read_page(reader(source, checkpoint=checkpoint, start=begin, read_until=long_ago))

    assert after_restart(time.time()).gap is None
    later = after_restart(long_ago + 30).gap
    assert later is not None
    assert later.begin == {"type": "at_time", "seconds": long_ago + 30}


def test_a_shard_with_an_exact_position_does_not_infer_gaps_from_the_time(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    stream.shard("s")
    for version in (1, 2, 3):
        stream.put("s", "k", version)
    position = read_page(reader(source)).position
    page = read_page(reader(source, position=position, read_until=0.0))
    assert page.gap is None
    assert versions(page) == [3]


def test_once_a_change_was_published_the_start_drops_nothing(source: DynamoDBSource, stream: ScriptedStream) -> None:
    """I1: the plan's clock may be ahead of DynamoDB's."""
    stream.shard("s")
    for version in (1, 2, 3):
        stream.put("s", "k", version, created=1000)
    position = read_page(reader(source)).position
    ahead = {"since": 5000.0}
    token = EventToken(1000, "orders/l/s", "DynamoDB/2")
    assert versions(read_page(reader(source, position=position, start=ahead, token=token))) == [3]
    assert versions(read_page(reader(source, position=position, start=ahead))) == []


def test_records_before_the_start_are_dropped_but_count_as_activity(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    stream.shard("s")
    stream.put("s", "k", 1, created=999)
    stream.put("s", "k", 2, created=1000)
    page = read_page(reader(source, start={"since": 1000.7}))
    assert versions(page) == [2]  # the same second may be after the start, so it is kept
    assert page.counts.records == 2


def test_a_creation_time_that_may_be_rounded_to_the_minute_does_not_count_as_old(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """I1: DynamoDB Local does that."""
    stream.shard("s")
    stream.put("s", "k", 1, created=6000 - 60)
    stream.put("s", "k", 2, created=6000)
    assert versions(read_page(reader(source, start={"since": 6030.0}))) == [2]


def starting_at(start: str, stream: ScriptedStream) -> DynamoDBSource:
    raw = {"name": "orders", "type": "dynamodb", "table": TABLE, "region": "us-east-1", "endpoint_url": stream.url}
    return DynamoDBSource(DynamoDBConfig.model_validate({**raw, "start": start}))


def test_a_start_at_the_head_skips_older_records_and_after_an_expiry_goes_by_time(stream: ScriptedStream) -> None:
    source = starting_at("latest", stream)
    stream.set_clock(Clock(6030.0))
    source.connect()
    stream.shard("s")
    stream.put("s", "k", 1, created=6000)
    start = source.starting_points([Shard(full("s"))]).shards[full("s")]
    reading = reader(source, start=start)
    assert read_page(reading).counts.records == 0
    stream.expire_iterators()
    stream.put("s", "k", 2, created=6031)
    assert versions(read_page(reading)) == [1, 2]  # the first may be newer, so it is kept
    stream.put("s", "k", 3, created=6031)
    assert versions(read_page(reading)) == [3]
    source.close()


def test_a_start_in_the_future_is_the_present(stream: ScriptedStream) -> None:
    """I1: the changes until then are read."""
    source = starting_at("9999-12-31", stream)
    stream.set_clock(Clock(6032.0))
    source.connect()
    stream.shard("s")
    stream.put("s", "k", 1, created=6030)
    stream.put("s", "k", 2, created=6033)
    start = source.starting_points([Shard(full("s"))]).shards[full("s")]
    assert versions(read_page(reader(source, start=start))) == [2]
    source.close()


def test_a_head_is_not_used_if_another_worker_has_made_the_plan(stream: ScriptedStream) -> None:
    """I1: a worker that lost the source while it asked for the heads may have them later than the plan."""
    source = starting_at("latest", stream)
    stream.set_clock(Clock(6032.0))
    source.connect()
    stream.shard("s")
    planned_elsewhere = {"since": 6030.0}
    stream.put("s", "k", 1, created=6031)
    source.starting_points([Shard(full("s"))])
    assert versions(read_page(reader(source, start=planned_elsewhere))) == [1]
    source.close()


def test_timestamps_never_go_back_along_a_lineage(source: DynamoDBSource, stream: ScriptedStream) -> None:
    stream.shard("s")
    stream.put("s", "k", 1, created=50)
    stream.put("s", "k", 2, created=120)
    page = read_page(reader(source, floor=100))
    assert [c.token.timestamp for c in page.changes if c.token] == [100, 120]
    assert page.counts.behind == 1
    assert [c.committed_at for c in page.changes] == [50_000_000, 120_000_000]


def test_a_delete_by_time_to_live_is_marked_and_keeps_its_user_identity(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    stream.shard("s")
    service = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}
    stream.put("s", "k", 1, old=1, userIdentity=service, eventName="REMOVE")
    stream.put("s", "k", 2, old=1, eventName="REMOVE")
    marked, plain = read_page(reader(source)).changes
    assert marked.attributes["ttl_delete"] == "true"
    assert orjson.loads(marked.attributes["user_identity"]) == service
    assert "ttl_delete" not in plain.attributes


def test_a_typed_delete_by_time_to_live_has_the_old_row_and_its_user_identity(stream: ScriptedStream) -> None:
    config = DynamoDBConfig(
        name="orders",
        type="dynamodb",
        table=TABLE,
        region="us-east-1",
        endpoint_url=stream.url,
        columns={"id": "string", "version": "int"},
    )
    source = DynamoDBSource(config)
    source.connect()
    stream.shard("s")
    service = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}
    stream.put("s", "k", 1, old=7, userIdentity=service, eventName="REMOVE")
    (change,) = read_page(reader(source)).changes
    source.close()
    assert (change.old, change.new) == ({"id": "k", "version": 7, "rest": None}, None)
    assert change.attributes["ttl_delete"] == "true"
    assert orjson.loads(change.attributes["user_identity"]) == service


def test_a_record_that_cannot_be_carried_is_refused_with_its_sequence_number(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """I8"""
    stream.shard("s")
    sequence = stream.put("s", "k", 1, eventName="SOMETHING_NEW")
    with pytest.raises(RelayError, match=sequence):
        read_page(reader(source))


def test_records_before_one_that_cannot_be_carried_are_returned_first(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    """I1: a reset past the record would skip records that are not on the topic."""
    stream.page = 10
    stream.shard("s")
    for version in (1, 2, 3):
        stream.put("s", "k", version)
    del stream.shards[full("s")].records[2]["dynamodb"]["Keys"]
    stream.close("s")
    reading = reader(source)
    page = read_page(reading)
    assert (versions(page), page.counts.records, page.finished) == ([1, 2], 2, False)
    for _ in range(2):
        with pytest.raises(RelayError, match="cannot be carried"):
            read_page(reading)
    with pytest.raises(RelayError, match="cannot be carried"):
        read_page(reader(source, position=page.position))

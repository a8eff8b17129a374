"""The calls: listings across pages, the child filter, and the exception for each error of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.dynamodb.account_pace import Pace
from relay.dynamodb.stream_calls import IteratorExpired, ShardNotFound, StreamSession, Transient, TrimmedData, retried
from relay.errors import RelayError, Unavailable
from relay.records import Shard
from relay.stream_token import TRIM_HORIZON
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ARN, ScriptedStream, full

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient


@pytest.fixture
def six(scripted: ScriptedStream) -> ScriptedStream:
    """0>{1,2}, 1>{3}, 4, 5, two to a page."""
    scripted.listing_page = 2
    scripted.shard("0")
    scripted.split("0", "1", "2")
    scripted.split("1", "3")
    scripted.shard("4")
    scripted.shard("5")
    return scripted


def names(shards: tuple[Shard, ...]) -> list[str]:
    return [shard.id[-1] for shard in shards]


def test_a_listing_continues_until_there_is_no_last_shard(session: StreamSession, six: ScriptedStream) -> None:
    listing = session.describe()
    assert names(listing.shards) == ["0", "1", "2", "3", "4", "5"]
    assert [request.get("ExclusiveStartShardId") for request in six.requests] == [None, full("1"), full("3")]
    assert not listing.disabled


def test_a_shard_is_closed_if_its_listing_shows_an_end_or_children(session: StreamSession, six: ScriptedStream) -> None:
    six.shards[full("0")].shows_end = False
    six.close("4")
    assert names(tuple(shard for shard in session.describe().shards if shard.closed)) == ["0", "1", "4"]


def test_a_listing_may_start_after_a_shard(session: StreamSession, six: ScriptedStream) -> None:
    assert names(session.describe(first_shard=full("2")).shards) == ["3", "4", "5"]


def test_children_are_requested_with_a_filter(session: StreamSession, six: ScriptedStream) -> None:
    assert names(session.describe_children(full("0")).shards) == ["1", "2"]
    assert six.requests[0]["ShardFilter"] == {"Type": "CHILD_SHARDS", "ShardId": full("0")}


def test_without_support_for_the_filter_the_listing_starts_after_the_parent(
    session: StreamSession, six: ScriptedStream
) -> None:
    six.filters = False
    assert names(session.describe_children(full("1")).shards) == ["2", "3", "4", "5"]
    assert names(session.describe_children(full("3")).shards) == ["4", "5"]
    assert sum("ShardFilter" in request for request in six.requests) == 1


def test_a_listing_that_repeats_a_page_is_an_error(session: StreamSession, six: ScriptedStream) -> None:
    six.listing_page = 1
    describe = six._DescribeStream

    def twisted(request: dict[str, object]) -> dict[str, object]:
        answer = describe(request)
        if answer["StreamDescription"].get("LastEvaluatedShardId") == full("2"):
            answer["StreamDescription"]["LastEvaluatedShardId"] = full("0")
        return answer

    six._DescribeStream = twisted  # type: ignore[method-assign]
    try:
        with pytest.raises(RelayError, match="never ends"):
            session.describe()
    finally:
        del six._DescribeStream


def test_shards_without_an_id_and_an_empty_last_shard_id_are_ignored(
    session: StreamSession, six: ScriptedStream
) -> None:
    six.listing_page = 100
    describe = six._DescribeStream

    def twisted(request: dict[str, object]) -> dict[str, object]:
        answer = describe(request)
        answer["StreamDescription"]["Shards"].append({"ParentShardId": full("0")})
        answer["StreamDescription"]["LastEvaluatedShardId"] = ""
        return answer

    six._DescribeStream = twisted  # type: ignore[method-assign]
    try:
        assert len(session.describe().shards) == 6
    finally:
        del six._DescribeStream


def test_a_page_of_a_listing_that_is_throttled_is_requested_again_and_those_before_it_are_kept(
    client: DynamoDBStreamsClient, six: ScriptedStream
) -> None:
    """A stream may have thousands of shards, which every worker lists."""
    waits: list[float] = []

    def throttle(operation: str) -> None:
        if len(six.calls) in (2, 3, 5):
            raise Refused("ThrottlingException")

    six.before = throttle
    listing = StreamSession(client, ARN, sleep=waits.append).describe()
    assert names(listing.shards) == ["0", "1", "2", "3", "4", "5"]
    asked = [request.get("ExclusiveStartShardId") for request in six.requests]
    assert asked == [None, *[full("1")] * 3, *[full("3")] * 2]
    assert len(waits) == 4  # the last page after a pause, too


def test_a_page_that_always_fails_fails_the_listing(client: DynamoDBStreamsClient, six: ScriptedStream) -> None:
    """In half a listing, shards would seem to be gone."""

    def fail(operation: str) -> None:
        if len(six.calls) > 1:
            raise Refused("InternalServerError", 500)

    six.before = fail
    with pytest.raises(Unavailable, match=r"listing the shards of .* failed 8 times"):
        StreamSession(client, ARN, sleep=lambda seconds: None).describe()


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        ("ExpiredIteratorException", 400, IteratorExpired),
        ("TrimmedDataAccessException", 400, TrimmedData),
        ("ResourceNotFoundException", 400, ShardNotFound),
        ("ThrottlingException", 400, Transient),
        ("LimitExceededException", 400, Transient),
        ("RequestLimitExceeded", 400, Transient),
        ("InternalServerError", 500, Transient),
        ("of a proxy", 429, Transient),
        ("of a proxy", 408, Transient),
        ("AccessDeniedException", 400, Unavailable),
        ("ValidationException", 400, RelayError),
    ],
)
def test_each_error_code_becomes_its_own_exception(
    session: StreamSession, six: ScriptedStream, kind: str, status: int, error: type[Exception]
) -> None:

    def refuse(operation: str) -> None:
        raise Refused(kind, status)

    six.before = refuse
    with pytest.raises(error):
        session.records("iterator")
    with pytest.raises(error):
        session.iterator(full("0"), TRIM_HORIZON)


def test_an_unknown_stream_and_an_unknown_shard_are_not_found(session: StreamSession, scripted: ScriptedStream) -> None:
    with pytest.raises(ShardNotFound):
        StreamSession(session.client, "arn:aws:dynamodb:us-east-1:000000000000:table/t/stream/other").describe()
    with pytest.raises(ShardNotFound):
        session.iterator(full("nowhere"), TRIM_HORIZON)


def test_retries_wait_longer_each_time_with_jitter_and_end() -> None:
    waits: list[float] = []

    def throttled() -> None:
        raise Transient("slow down")

    with pytest.raises(Unavailable, match=r"the listing failed 8 times, giving up.*slow down"):
        retried(throttled, "the listing", Pace(sleep=waits.append))
    assert len(waits) == 7
    assert all(0.09 * 2**n <= wait <= 0.2 * 2**n for n, wait in enumerate(waits))
    assert len(set(waits)) > 1

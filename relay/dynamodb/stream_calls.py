"""The calls of AWS's "DynamoDB Streams low-level API", with one exception type for each reaction to an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from relay.aws import Refused
from relay.dynamodb.account_pace import Pace
from relay.errors import RelayError, Unavailable
from relay.process.service_clock import ServiceClock
from relay.records import Shard
from relay.stream_token import ITERATOR_TYPES, TRIM_HORIZON, Position

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

T = TypeVar("T")

PAGE_LIMIT = 1000
"""Records in a full page: the most that GetRecords returns."""

_MAX_LISTING_PAGES = 10_000
_TRIES = 8


class IteratorExpired(RelayError):
    """The iterator is older than 15 minutes. A new one at the same sequence number returns the same records."""


class TrimmedData(Exception):
    """The position is before the stream's horizon."""


class ShardNotFound(Exception):
    """The stream does not have the shard (any more), or the stream is gone, 24 hours after its end."""


class Transient(Exception):
    """The call was throttled, or the service or the network failed: try again later."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The answer of DescribeStream. ``disabled``: no shard will get children."""

    shards: tuple[Shard, ...]
    disabled: bool


class AnswerDates:
    """Tells a ``clock`` the ``Date`` of answers. Threads may share it."""

    def __init__(self, clock: ServiceClock) -> None:
        self._clock = clock
        # The last `Date`. Only the first answer in each second adds information.
        self._date: str | None = None

    def note(self, date: str | None) -> None:
        """Note the header ``Date`` of an answer that has just arrived. A proxy's text that is not a date is ignored."""
        if date is not None and date != self._date:
            with suppress(ValueError):
                self._clock.note(parsedate_to_datetime(date).timestamp())
            self._date = date

    def listen(self, client: Any) -> None:
        """Note the date of every answer that a boto3 client gets."""
        client.meta.events.register("after-call", self._answered, unique_id="relay-dates")

    def _answered(self, http_response: Any, **_: Any) -> None:
        self.note(http_response.headers.get("date"))


def retried(call: Callable[[], T], doing: str, pace: Pace) -> T:
    """Return the result of ``call``, retried at ``pace`` after ``Transient``. ``doing``: names the call in the error.

    Raises ``Unavailable`` after 8 tries, about 20 seconds if nothing else shares the pace.
    """
    try:
        return pace.repeat(call, _TRIES, lambda error: isinstance(error, Transient))
    except Transient as error:
        raise Unavailable(f"{doing} failed {_TRIES} times, giving up: {error}") from error


class StreamSession:
    """The calls on one stream. Threads may share it: a boto3 client is safe to share, and no lock is held.

    ``clock``: seconds since the epoch by the service's clock, by default a new clock that the session informs itself.
    ``pace``: the pace of listings. ``sleep``: waits for a number of seconds between two tries of other calls.
    """

    def __init__(
        self,
        client: DynamoDBStreamsClient,
        stream_arn: str,
        *,
        clock: Callable[[], float] | None = None,
        pace: Pace | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self.stream_arn = stream_arn
        self.sleep = sleep
        own = ServiceClock()
        self.clock = clock or own
        self._dates = AnswerDates(own) if clock is None else None
        self._pace = pace or Pace(sleep=sleep)
        # Whether the endpoint accepts a ShardFilter. It can only become False, so threads need no lock.
        self._filters = True

    def describe(self, first_shard: str | None = None) -> Listing:
        """Return all shards, or those listed after ``first_shard``. Failed pages are retried, as in ``retried``.

        Raises ``ShardNotFound``, ``Unavailable``, or ``RelayError`` for errors that a retry cannot repair.
        """
        return self._describe({"ExclusiveStartShardId": first_shard} if first_shard is not None else {})

    def describe_children(self, parent: str) -> Listing:
        """Return the children of ``parent`` if the endpoint supports that filter, otherwise the shards listed after it.

        DynamoDB Local accepts the filter and ignores it, so the caller must check the parents.
        """
        if self._filters:
            try:
                return self._describe({"ShardFilter": {"Type": "CHILD_SHARDS", "ShardId": parent}})
            except Unavailable:
                raise
            except RelayError:
                self._filters = False
        return self.describe(parent)

    def _describe(self, arguments: dict[str, Any]) -> Listing:
        shards: dict[str, Shard] = {}
        seen: set[str] = set()
        for _ in range(_MAX_LISTING_PAGES):
            # A stream of thousands of shards has many pages: those before a throttled one are kept.
            page = partial(self._describe_page, arguments)
            description = retried(page, f"listing the shards of {self.stream_arn}", self._pace)
            for raw in description.get("Shards", []):
                if shard := raw.get("ShardId"):
                    parent = raw.get("ParentShardId")
                    closed = "EndingSequenceNumber" in raw.get("SequenceNumberRange", {})
                    shards[shard] = Shard(shard, (parent,) if parent else (), closed=closed)
            last = description.get("LastEvaluatedShardId")
            if not last:
                # A parent may be listed as open while its children are already listed.
                for parent in {parent for shard in shards.values() for parent in shard.parents} & shards.keys():
                    shards[parent] = replace(shards[parent], closed=True)
                return Listing(tuple(shards.values()), description.get("StreamStatus") == "DISABLED")
            if last in seen:
                raise RelayError(f"DescribeStream of {self.stream_arn} repeats the page after {last} and never ends")
            seen.add(last)
            arguments = {**arguments, "ExclusiveStartShardId": last}
        raise RelayError(f"DescribeStream of {self.stream_arn} has more than {_MAX_LISTING_PAGES} pages")

    def _describe_page(self, arguments: dict[str, Any]) -> Any:
        with translated(self.stream_arn):
            answer = self.client.describe_stream(StreamArn=self.stream_arn, **arguments)
            return self._dated(answer)["StreamDescription"]

    def iterator(self, shard: str, position: Position) -> str | None:
        """Return an iterator at ``position``, or None if the shard is closed and has no records from there on."""
        arguments: dict[str, Any] = {"SequenceNumber": position.sequence} if position.sequence is not None else {}
        arguments["ShardIteratorType"] = ITERATOR_TYPES[position.type]
        with translated(self.stream_arn):
            answer: Any = self.client.get_shard_iterator(StreamArn=self.stream_arn, ShardId=shard, **arguments)
        iterator: str | None = self._dated(answer).get("ShardIterator")
        return iterator

    def has(self, shard: str) -> bool:
        """Whether records of ``shard`` can be read, even if it is not listed. Raises ``Unavailable``."""

        def ask() -> bool:
            try:
                self.iterator(shard, TRIM_HORIZON)
            except (ShardNotFound, TrimmedData):
                return False
            return True

        return retried(ask, f"asking for shard {shard} of {self.stream_arn}", Pace(sleep=self.sleep))

    def records(self, iterator: str) -> tuple[list[Any], str | None]:
        """Return the records at ``iterator`` and the next iterator, which is None at the end of a closed shard."""
        with translated(self.stream_arn):
            answer = self._dated(self.client.get_records(ShardIterator=iterator, Limit=PAGE_LIMIT))
        return answer["Records"], answer.get("NextShardIterator")

    def _dated(self, answer: Any) -> Any:
        if self._dates is not None:
            self._dates.note(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))
        return answer


BAD_CREDENTIALS = {
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "IncompleteSignature",
    "MissingAuthenticationTokenException",
    "ExpiredTokenException",
    "ExpiredToken",
}
"""AWS's codes for invalid credentials. Codes for valid credentials without a permission begin with AccessDenied."""

# The last one concerns the account's quota. Other codes for throttling contain `Throttl`.
_TOO_MUCH = {"ProvisionedThroughputExceededException", "LimitExceededException", "RequestLimitExceeded"}
# Proxies' answers that are worth another try: a timeout and a limit. DynamoDB itself answers 400 and a code.
_FROM_PROXIES = {408, 429}


def code_of(error: BaseException) -> str:
    """Return AWS's code of an error, or an empty text if AWS did not send it."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def time_to_live(client: DynamoDBClient, table: str) -> str | None:
    """Return the attribute that holds an item's expiry, or None if it is not enabled."""
    found: Any = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    enabled = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    return str(found["AttributeName"]) if enabled else None


def is_transient(error: ClientError) -> bool:
    """Whether the call was throttled, or the service failed, so that it may be retried later."""
    code = code_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or status in _FROM_PROXIES or "Throttl" in code or code in _TOO_MUCH


@contextmanager
def translated(stream_arn: str) -> Iterator[None]:
    """Turn botocore's errors from calls on a stream or a table into one exception type for each reaction."""
    try:
        yield
    except ClientError as error:
        code = code_of(error)
        if code == "ExpiredIteratorException":
            raise IteratorExpired(str(error)) from error
        if code == "TrimmedDataAccessException":
            raise TrimmedData from error
        if code == "ResourceNotFoundException":
            raise ShardNotFound(str(error)) from error
        if code in BAD_CREDENTIALS or code.startswith("AccessDenied"):
            raise Unavailable(f"the AWS credentials may not read {stream_arn}: {error}") from error
        if is_transient(error):
            raise Transient(str(error)) from error
        raise RelayError(f"DynamoDB refused a call on {stream_arn}: {error}") from error
    except Refused as error:
        raise Unavailable(f"the AWS credentials may not read {stream_arn}: {error}") from error
    except ParamValidationError as error:
        raise RelayError(f"botocore refused the parameters of a call on {stream_arn}: {error}") from error
    except BotoCoreError as error:
        raise Transient(str(error)) from error

"""The four calls of DynamoDB Streams that reading needs, with their errors told apart.

Rules: AWS, "DynamoDB Streams low-level API" (DescribeStream pages of 100 shards, iterators that live 15
minutes, 24 hours of retention).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from relay.errors import RelayError, Unavailable
from relay.lineage import Shard

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

PAGE_LIMIT = 1000
"""Records in a full page: the most GetRecords gives."""

_MAX_LISTING_PAGES = 10_000


class IteratorExpired(Exception):
    """The iterator is older than 15 minutes; a new one at the same position serves as well."""


class TrimmedData(Exception):
    """The position lies before the stream's horizon."""


class ShardNotFound(Exception):
    """The stream does not know the shard, or not any more."""


class Transient(Exception):
    """Throttled, or the service or the network failed: try again later."""


class StreamSession:
    """The calls on one stream."""

    def __init__(self, client: DynamoDBStreamsClient, stream_arn: str) -> None:
        self.client = client
        self.stream_arn = stream_arn

    def __repr__(self) -> str:
        return f"<StreamSession[{self.stream_arn}]>"

    def shards(self) -> list[Shard]:
        """Return one complete listing, across pages. Raises ``Transient`` or ``Unavailable``."""
        shards: dict[str, Shard] = {}
        after: str | None = None
        for _ in range(_MAX_LISTING_PAGES):
            arguments: dict[str, Any] = {"StreamArn": self.stream_arn}
            if after is not None:
                arguments["ExclusiveStartShardId"] = after
            with _translated(self.stream_arn):
                description = self.client.describe_stream(**arguments)["StreamDescription"]
            for raw in description.get("Shards", []):
                parent = raw.get("ParentShardId")
                shards[raw["ShardId"]] = Shard(raw["ShardId"], (parent,) if parent else ())
            last = description.get("LastEvaluatedShardId")
            if not last:
                return list(shards.values())
            if last == after:
                raise RelayError(f"DescribeStream of {self.stream_arn} repeats page {last}: the listing never ends")
            after = last
        raise RelayError(f"DescribeStream of {self.stream_arn} gave more than {_MAX_LISTING_PAGES} pages")

    def iterator(self, shard: str, sequence: str | None) -> str | None:
        """Return an iterator after ``sequence``, or at the horizon. None if the shard has nothing left."""
        arguments: dict[str, Any] = {"StreamArn": self.stream_arn, "ShardId": shard}
        if sequence is None:
            arguments["ShardIteratorType"] = "TRIM_HORIZON"
        else:
            arguments |= {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": sequence}
        with _translated(self.stream_arn):
            return self.client.get_shard_iterator(**arguments).get("ShardIterator")

    def head(self, shard: str) -> str | None:
        """Return an iterator at the head of ``shard``: what comes from now on. None if it is closed."""
        with _translated(self.stream_arn):
            answer = self.client.get_shard_iterator(
                StreamArn=self.stream_arn, ShardId=shard, ShardIteratorType="LATEST"
            )
        return answer.get("ShardIterator")

    def records(self, iterator: str) -> tuple[list[Any], str | None]:
        """Return the records at ``iterator`` and the next iterator, None at the end of a closed shard."""
        with _translated(self.stream_arn):
            answer = self.client.get_records(ShardIterator=iterator, Limit=PAGE_LIMIT)
        return answer["Records"], answer.get("NextShardIterator")


_UNAUTHORISED = {
    "AccessDeniedException",
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "ExpiredTokenException",
    "MissingAuthenticationTokenException",
}


@contextmanager
def _translated(stream_arn: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code == "ExpiredIteratorException":
            raise IteratorExpired from error
        if code == "TrimmedDataAccessException":
            raise TrimmedData from error
        if code == "ResourceNotFoundException":
            raise ShardNotFound(str(error)) from error
        if code in _UNAUTHORISED:
            raise Unavailable(f"not allowed to read {stream_arn}: {error}") from error
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if (
            status >= 500
            or "Throttl" in code
            or code in ("ProvisionedThroughputExceededException", "LimitExceededException")
        ):
            raise Transient(str(error)) from error
        raise RelayError(f"DynamoDB Streams refused a call on {stream_arn}: {error}") from error
    except ParamValidationError as error:
        raise RelayError(f"a call on {stream_arn} is not valid: {error}") from error
    except BotoCoreError as error:
        raise Transient(str(error)) from error

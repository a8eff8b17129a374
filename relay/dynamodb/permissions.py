"""What the credentials of a source may not do, for ``relay check``: found by doing a little of what the relay will."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from relay.config import DynamoDBConfig
from relay.dynamodb.describe import Description
from relay.dynamodb.session import IteratorExpired, ShardNotFound, Transient, TrimmedData, translated
from relay.errors import RelayError

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient


def refusals(
    source: DynamoDBConfig, client: DynamoDBClient, streams: DynamoDBStreamsClient, found: Description
) -> Iterator[str]:
    """Yield what AWS says to each call that the relay needs and may not make: to read the stream, and to read rows."""
    calls: list[tuple[str, Callable[[], Any]]] = [(found.stream_arn, lambda: _read_newest(streams, found.stream_arn))]
    if source.snapshot == "initial" or source.on_gap == "resnapshot":
        calls.append((f"the rows of {found.table}", lambda: client.scan(TableName=found.table, Limit=1)))
    for what, call in calls:
        try:
            with translated(what):
                call()
        except (IteratorExpired, ShardNotFound, Transient, TrimmedData):  # so it may, or nobody can say now
            continue
        except RelayError as error:
            yield str(error)


def _read_newest(streams: DynamoDBStreamsClient, stream_arn: str) -> None:
    """Read one shard of a stream from its end."""
    shards = streams.describe_stream(StreamArn=stream_arn)["StreamDescription"].get("Shards", [])
    for shard in shards[-1:]:
        begun = streams.get_shard_iterator(
            StreamArn=stream_arn, ShardId=shard["ShardId"], ShardIteratorType="LATEST"
        ).get("ShardIterator")
        if begun:
            streams.get_records(ShardIterator=begun, Limit=1)

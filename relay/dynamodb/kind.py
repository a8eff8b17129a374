"""DynamoDB as a kind of source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from relay.dynamodb.check import check
from relay.dynamodb.discover import tagged
from relay.dynamodb.items_of_keys import ItemsOfKeys
from relay.dynamodb.resume_at_token import token_of
from relay.dynamodb.source import DynamoDBSource
from relay.dynamodb.table_rows import DynamoDBTableRows
from relay.source import SourceKind

if TYPE_CHECKING:
    from relay.config import DynamoDBConfig
    from relay.records import Plan, ShardCheckpoint


def _rows(entry: DynamoDBConfig, open_shards: Callable[[], Sequence[str]]) -> Iterator[DynamoDBTableRows]:
    yield DynamoDBTableRows(entry)


def _stream_token(
    entry: DynamoDBConfig, label: str, checkpoints: Mapping[str, ShardCheckpoint], plan: Plan
) -> dict[str, Any]:
    with closing(DynamoDBSource(entry)) as source:
        source.connect(label)
        return token_of(source.session.stream_arn, checkpoints, plan).to_json()


KIND = SourceKind(DynamoDBSource, tagged, check, _rows, ItemsOfKeys, _stream_token)

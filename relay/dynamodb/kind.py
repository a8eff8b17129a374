"""DynamoDB as a kind of source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from relay.aws import Refused
from relay.dynamodb.check import check
from relay.dynamodb.describe import clients
from relay.dynamodb.resume_at_token import token_of
from relay.dynamodb.source import DynamoDBSource
from relay.dynamodb.table_rows import DynamoDBTableRows, ItemsOfKeys
from relay.errors import Unavailable
from relay.source import SourceKind

if TYPE_CHECKING:
    from relay.config import DynamoDBConfig
    from relay.records import Plan, ShardCheckpoint


def tagged(source: DynamoDBConfig) -> list[str]:
    """Return the names of the region's tables that have all of ``source.tags``.

    Needs ListTables, ListTagsOfResource and DescribeTable. Raises ``Unavailable`` if DynamoDB does not answer, if no
    table has the tags, and if one of them has no stream.
    """
    wanted = set((source.tags or {}).items())
    client, streams = clients(source)
    at = f"in region {client.meta.region_name} at {client.meta.endpoint_url}"
    found: list[str] = []
    without: list[str] = []
    try:
        for page in client.get_paginator("list_tables").paginate():
            for name in page["TableNames"]:
                table = client.describe_table(TableName=name)["Table"]
                pages = client.get_paginator("list_tags_of_resource").paginate(ResourceArn=table["TableArn"])
                if wanted <= {(tag["Key"], tag["Value"]) for tags in pages for tag in tags["Tags"]}:
                    enabled = table.get("StreamSpecification", {}).get("StreamEnabled")
                    (found if enabled else without).append(name)
    except (ClientError, BotoCoreError, Refused) as error:
        raise Unavailable(f"source {source.name}: cannot find tables by tag {at}: {error}") from error
    finally:
        client.close()
        streams.close()
    if without:
        names = ", ".join(without)
        raise Unavailable(f"source {source.name}: tables with its tags {at} have no stream: {names}")
    if not found:
        tags = ", ".join(f"{key}={value}" for key, value in sorted(wanted))
        raise Unavailable(
            f"source {source.name}: no table {at} has the tags {tags}: check `tags`, `region` and `endpoint_url`"
        )
    return found


def _rows(entry: DynamoDBConfig, open_shards: Callable[[], Sequence[str]]) -> Iterator[DynamoDBTableRows]:
    yield DynamoDBTableRows(entry)


def _stream_token(
    entry: DynamoDBConfig, label: str, checkpoints: Mapping[str, ShardCheckpoint], plan: Plan
) -> dict[str, Any]:
    with closing(DynamoDBSource(entry)) as source:
        source.connect(label)
        return token_of(source.session.stream_arn, checkpoints, plan).to_json()


KIND = SourceKind(DynamoDBSource, tagged, check, _rows, ItemsOfKeys, _stream_token)

"""What ``relay check`` says of a source: it looks at the table and its stream with the same code as the relay.

What the credentials may not do is found by doing a little of what the relay will.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from relay.config.fields import StartAtToken
from relay.dynamodb import config_match, describe
from relay.dynamodb.session import IteratorExpired, ShardNotFound, Transient, TrimmedData, translated
from relay.dynamodb.source import table_schema
from relay.errors import ConfigError, RelayError, Unavailable
from relay.source import CheckedSource, CheckedTable, Finding

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

    from relay.config import DynamoDBConfig

_TABLE_TIMEOUT = 10.0  # for a table that is being created


def check(source: DynamoDBConfig) -> CheckedSource:
    """Look up the table of ``source`` and its stream, within 35 seconds. Raises ``Unavailable``."""
    client, streams = describe.clients(source, probe=True)
    with closing(client), closing(streams):
        found = describe.describe(client, source, streams, patience=_TABLE_TIMEOUT)
        of_model, (_, rows, _) = check_model(client, source), describe.measure(client, source)
        refused = list(refusals(source, client, streams, found))
        wrong = [config_match.refused_rule(found, source), config_match.unseen_rule(client, found, source)]
    key = ", ".join(f"{column.name} ({column.type})" for column in found.key)
    table = check_table(source, found)
    detail = f"table {found.table}, key {key}, stream of {found.view_type}{table.schema.protection}"
    findings = [Finding(f"source {source.name}", detail), *check_start(source, found), *check_columns(source, found)]
    findings += of_model
    findings += [Finding(f"reading of {source.name}", problem, Unavailable.exit_code) for problem in refused]
    findings += [Finding(f"source {source.name}", problem, ConfigError.exit_code) for problem in wrong if problem]
    return CheckedSource(findings, [table], rows)


def check_table(source: DynamoDBConfig, found: describe.Description) -> CheckedTable:
    """Check that the stream carries what a copy and a cache need."""
    name = f"copy of {found.table}"
    for_copy = Finding(name, "every change carries the new row")
    if found.view_type not in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES"):
        for_copy = Finding(
            name,
            f"a stream of {found.view_type} does not carry the rows, so every changed row would be marked incomplete; "
            "set the table's StreamViewType to NEW_IMAGE or NEW_AND_OLD_IMAGES",
            Unavailable.exit_code,
        )
    partial = ""
    if found.view_type != "NEW_AND_OLD_IMAGES":
        partial = (
            f"a stream of {found.view_type} does not carry it with every change: use key columns, or set the table's "
            "StreamViewType to NEW_AND_OLD_IMAGES"
        )
    return CheckedTable(table_schema(source, found), for_copy=[for_copy], partial=partial)


def check_start(source: DynamoDBConfig, found: describe.Description) -> list[Finding]:
    if not isinstance(source.start, StartAtToken):
        return []
    name, arn = f"start of {source.name}", source.start.stream_arn
    if arn != found.stream_arn:
        detail = f"the token in {source.start.path} belongs to stream {arn}, not to {found.stream_arn}"
        return [Finding(name, detail, ConfigError.exit_code)]
    return [Finding(name, f"the token in {source.start.path} belongs to this stream")]


def check_columns(source: DynamoDBConfig, found: describe.Description) -> list[Finding]:
    if not source.columns:
        return []
    name = f"columns of {source.name}"
    if problems := config_match.mismatches(found, source.columns):
        return [Finding(name, problem, Unavailable.exit_code) for problem in problems]
    return [Finding(name, f"{len(source.columns)} declared, matching table {found.table}")]


def check_model(client: DynamoDBClient, source: DynamoDBConfig) -> list[Finding]:
    """Compare the class that declares the table of ``source`` with the table. Raises ``Unavailable``."""
    if not source.model:
        return []
    name = f"model of {source.name}"
    if problems := describe.differences(client, source, source.model):
        return [Finding(name, problem, Unavailable.exit_code) for problem in problems]
    return [Finding(name, f"{source.model} matches table {source.table_name}")]


def refusals(
    source: DynamoDBConfig, client: DynamoDBClient, streams: DynamoDBStreamsClient, found: describe.Description
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
    shards = streams.describe_stream(StreamArn=stream_arn)["StreamDescription"].get("Shards", [])
    for shard in shards[-1:]:
        begun = streams.get_shard_iterator(
            StreamArn=stream_arn, ShardId=shard["ShardId"], ShardIteratorType="LATEST"
        ).get("ShardIterator")
        if begun:
            streams.get_records(ShardIterator=begun, Limit=1)

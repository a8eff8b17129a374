"""DynamoDB as a kind of source, and its ``relay check``, which tries permissions out by the relay's own calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from relay.aws import Refused
from relay.config.sources import declared_table
from relay.config.value_types import StartAtToken
from relay.dynamodb import config_match
from relay.dynamodb.describe import Description, Missing, TableCalls
from relay.dynamodb.resume_at_token import token_of
from relay.dynamodb.source import DynamoDBSource, table_schema
from relay.dynamodb.stream_calls import IteratorExpired, ShardNotFound, Transient, TrimmedData, time_to_live, translated
from relay.dynamodb.table_rows import DynamoDBTableRows, ItemsOfKeys
from relay.errors import ConfigError, RelayError, Unavailable
from relay.source import CheckedSource, CheckedTable, Finding, Opening, SourceKind

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

    from relay.config import DynamoDBConfig
    from relay.records import Plan, ShardCheckpoint

_TABLE_TIMEOUT = 10.0  # for a table that is being created


def tagged(source: DynamoDBConfig) -> list[str]:
    """Return the names of the tables with all of ``source.tags``. ``Unavailable`` if there is none, or no stream."""
    wanted = set((source.tags or {}).items())
    found: list[str] = []
    without: list[str] = []
    with closing(TableCalls(source)) as calls:
        client, at = calls.dynamodb, calls.at
        try:
            for page in client.get_paginator("list_tables").paginate():
                for name in page["TableNames"]:
                    with suppress(client.exceptions.ResourceNotFoundException):  # deleted since it was listed
                        table = client.describe_table(TableName=name)["Table"]
                        pages = client.get_paginator("list_tags_of_resource").paginate(ResourceArn=table["TableArn"])
                        if wanted <= {(tag["Key"], tag["Value"]) for tags in pages for tag in tags["Tags"]}:
                            enabled = table.get("StreamSpecification", {}).get("StreamEnabled")
                            (found if enabled else without).append(name)
        except (ClientError, BotoCoreError, Refused) as error:
            raise Unavailable(f"source {source.name}: cannot find tables by tag {at}: {error}") from error
    if without:
        names = f"{', '.join(without)}: enable their streams, or remove the tags from them"
        raise Unavailable(f"source {source.name}: these tables with its tags {at} have no stream: {names}")
    if not found:
        tags = ", ".join(f"{key}={value}" for key, value in sorted(wanted))
        check = "check `tags`, `region` and `endpoint_url`"
        raise Unavailable(f"source {source.name}: no table {at} has the tags {tags}: {check}")
    return found


def _rows(
    entry: DynamoDBConfig, open_shards: Callable[[], Sequence[Opening]], tables: Iterable[str]
) -> Iterator[DynamoDBTableRows]:
    for _ in tables:  # an entry has one
        try:
            rows = DynamoDBTableRows(entry)
        except Missing as error:
            raise RelayError(str(error)) from error
        yield rows


def _stream_token(
    entry: DynamoDBConfig, label: str, checkpoints: Mapping[str, ShardCheckpoint], plan: Plan
) -> dict[str, Any]:
    with closing(DynamoDBSource(entry)) as source:
        source.connect(label)
        return token_of(source.session.stream_arn, checkpoints, plan).to_json()


def check(source: DynamoDBConfig) -> CheckedSource:
    """Look up the table of ``source`` and its stream, within 35 seconds. Raises ``Unavailable``."""
    with closing(TableCalls(source, probe=True)) as calls:
        found = calls.describe(_TABLE_TIMEOUT)
        described = calls.table()
        of_model = check_model(calls, described)
        refused = list(refusals(calls, found))
        wrong = [config_match.refused_rule(found, source), config_match.unseen_rule(calls, found)]
        names: Set[str] = frozenset()
        with suppress(Unavailable):  # they are hints, which need no permission
            names = calls.first_names
    key = ", ".join(f"{column.name} ({column.type})" for column in found.key)
    table = replace(check_table(source, found), seen={*names, *(source.columns or ())} if names else ())
    detail = f"table {found.table}, key {key}, stream of {found.view_type}{table.schema.protection}"
    findings = [
        Finding(f"source {source.name}", detail),
        *check_start(source, found),
        *check_columns(source, found, names),
        *of_model,
        *(Finding(f"reading of {source.name}", problem, Unavailable.exit_code) for problem in refused),
        *(Finding(f"source {source.name}", problem, ConfigError.exit_code) for problem in wrong if problem),
    ]
    return CheckedSource(findings, [table], int(described.get("ItemCount", 0)))


def check_table(source: DynamoDBConfig, found: Description) -> CheckedTable:
    """Check that the stream carries what a copy and a cache need."""
    for_copy, view = Finding(f"copy of {found.table}", "every change carries the new row"), found.view_type
    if view not in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES"):
        lacking = (
            f"a stream of {view} does not carry the rows, so every changed row would be marked incomplete; set the "
            "table's StreamViewType to NEW_IMAGE or NEW_AND_OLD_IMAGES"
        )
        for_copy = replace(for_copy, detail=lacking, exit_code=Unavailable.exit_code)
    partial = ""
    if view != "NEW_AND_OLD_IMAGES":
        advice = "use key columns, or set the table's StreamViewType to NEW_AND_OLD_IMAGES"
        partial = f"a stream of {view} does not carry it with every change: {advice}"
    return CheckedTable(table_schema(source, found), for_copy=[for_copy], partial=partial)


def check_start(source: DynamoDBConfig, found: Description) -> list[Finding]:
    if not isinstance(start := source.start, StartAtToken):
        return []
    name, belongs = f"start of {source.name}", f"the token in {start.path} belongs to"
    if start.stream_arn != found.stream_arn:
        return [Finding(name, f"{belongs} stream {start.stream_arn}, not to {found.stream_arn}", ConfigError.exit_code)]
    return [Finding(name, f"{belongs} this stream")]


def check_columns(source: DynamoDBConfig, found: Description, names: Set[str]) -> list[Finding]:
    """Compare the declared columns with the table, and with the attribute ``names`` of its first items."""
    if not source.columns:
        return []
    name = f"columns of {source.name}"
    if problems := config_match.mismatches(found, source.columns):
        return [Finding(name, problem, Unavailable.exit_code) for problem in problems]
    # A class names attributes as the application writes them, however rare they are.
    if names and source.model is None and (problems := config_match.misspelt_columns(found, source.columns, names)):
        return [Finding(name, problem, ConfigError.exit_code) for problem in problems]
    return [Finding(name, f"{len(source.columns)} declared, matching table {found.table}")]


def check_model(calls: TableCalls, table: Any) -> list[Finding]:
    """Compare the class in a source's config with the ``table``. Raises ``Unavailable``."""
    source, name = calls.source, calls.source.table_name
    if not source.model:
        return []
    ttl = calls.ask(f"to describe the time to live of table {name}", lambda: time_to_live(calls.dynamodb, name))
    differences = declared_table(source.model).__differences__(table, ttl)
    found = [Finding(f"model of {source.name}", each, Unavailable.exit_code) for each in differences]
    return found or [Finding(f"model of {source.name}", f"{source.model} matches table {name}")]


def refusals(made: TableCalls, found: Description) -> Iterator[str]:
    """Yield AWS's refusals of calls that the relay needs, for reading the stream and the rows."""
    arn, table = found.stream_arn, found.table
    calls: dict[str, Callable[[], Any]] = {arn: lambda: _read_newest(made.streams, arn)}
    if made.source.snapshot == "initial" or made.source.on_gap == "resnapshot":
        calls[f"the rows of {table}"] = lambda: made.dynamodb.scan(TableName=table, Limit=1)
    for what, call in calls.items():
        try:
            with translated(what):
                call()
        except (IteratorExpired, ShardNotFound, Transient, TrimmedData):  # so the call is allowed, or fails for now
            continue
        except RelayError as error:
            yield str(error)


def _read_newest(streams: DynamoDBStreamsClient, stream_arn: str) -> None:
    shards = streams.describe_stream(StreamArn=stream_arn)["StreamDescription"].get("Shards", [])
    for shard in shards[-1:]:
        asked = {"StreamArn": stream_arn, "ShardId": shard["ShardId"]}
        if begun := streams.get_shard_iterator(**asked, ShardIteratorType="LATEST").get("ShardIterator"):
            streams.get_records(ShardIterator=begun, Limit=1)


KIND = SourceKind(DynamoDBSource, tagged, check, _rows, ItemsOfKeys, _stream_token)

"""What ``relay check`` says of a source: it looks at the table and its stream with the same code as the relay."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from relay.config.fields import StartAtToken
from relay.dynamodb import config_match, describe
from relay.dynamodb.permissions import refusals
from relay.dynamodb.source import table_schema
from relay.errors import ConfigError, Unavailable
from relay.source import CheckedSource, CheckedTable, Finding

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from relay.config import DynamoDBConfig

_TABLE_TIMEOUT = 10.0  # for a table that is being created


def check(source: DynamoDBConfig) -> CheckedSource:
    """Look up the table of ``source`` and its stream, within 35 seconds. Raises ``Unavailable``."""
    client, streams = describe.clients(source, probe=True)
    with closing(client), closing(streams):
        found = describe.describe(client, source, streams, patience=_TABLE_TIMEOUT)
        of_model = check_model(client, source)
        refused = list(refusals(source, client, streams, found))
    key = ", ".join(f"{column.name} ({column.type})" for column in found.key)
    table = check_table(source, found)
    detail = f"table {found.table}, key {key}, stream of {found.view_type}{table.schema.protection}"
    findings = [Finding(f"source {source.name}", detail), *check_start(source, found), *check_columns(source, found)]
    findings += of_model
    findings += [Finding(f"reading of {source.name}", problem, Unavailable.exit_code) for problem in refused]
    if problem := config_match.refused_rule(found, source):
        findings.append(Finding(f"source {source.name}", problem, ConfigError.exit_code))
    return CheckedSource(findings, [table])


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
    """Check that the token in ``start`` belongs to the stream of ``source``."""
    if not isinstance(source.start, StartAtToken):
        return []
    name, arn = f"start of {source.name}", source.start.stream_arn
    if arn != found.stream_arn:
        detail = f"the token in {source.start.path} belongs to stream {arn}, not to {found.stream_arn}"
        return [Finding(name, detail, ConfigError.exit_code)]
    return [Finding(name, f"the token in {source.start.path} belongs to this stream")]


def check_columns(source: DynamoDBConfig, found: describe.Description) -> list[Finding]:
    """Compare the declared columns of ``source`` with its table."""
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

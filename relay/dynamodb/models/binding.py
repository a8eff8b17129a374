"""Creates and verifies the tables of classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from relay.dynamodb.models.declaration import Declaration
from relay.dynamodb.models.errors import TableMismatch, code_of
from relay.dynamodb.models.tables import creation, differences
from relay.errors import Unavailable

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

_PAUSE = 0.5


def bound(
    client: DynamoDBClient, wanted: Sequence[tuple[Declaration, str]], patience: float, sleep: Callable[[float], None]
) -> None:
    """Create what is missing, wait, and verify. ``wanted``: declarations with their tables' names."""
    for declared, table in wanted:
        _create(client, declared, table)
    deadline = time.monotonic() + patience
    problems: list[str] = []
    for declared, table in wanted:
        found = _active(client, table, deadline, sleep)
        ttl = None if declared.ttl is None else _ttl(client, table) or _enabled(client, table, declared.ttl.attribute)
        problems += differences(declared, found, ttl)
    if problems:
        raise TableMismatch("\n".join(problems))


def _create(client: DynamoDBClient, declared: Declaration, table: str) -> None:
    # Looked for first: an application may be allowed to describe its tables, and not to create any.
    if _described(client, table) is None:
        try:
            client.create_table(**creation(declared, table))
        except ClientError as taken:
            if code_of(taken) != "ResourceInUseException":  # another process was faster
                raise


def _described(client: DynamoDBClient, table: str) -> Any:
    try:
        return client.describe_table(TableName=table)["Table"]
    except ClientError as missing:
        if code_of(missing) != "ResourceNotFoundException":
            raise
        return None


def _active(client: DynamoDBClient, table: str, deadline: float, sleep: Callable[[float], None]) -> Any:
    """Return the description of a table that is active, with all its indexes."""
    while True:
        # AWS, "DescribeTable": a table that was just created may not be found yet.
        found: Any = _described(client, table) or {"TableStatus": "CREATING"}
        states = [found["TableStatus"], *(each["IndexStatus"] for each in found.get("GlobalSecondaryIndexes") or ())]
        if all(state in ("ACTIVE", "UPDATING") for state in states):
            return found
        if time.monotonic() > deadline:
            state = " and ".join(sorted({*states}))
            raise Unavailable(f"table {table}, or an index of it, is {state}: bind again when they are ACTIVE")
        sleep(_PAUSE)


def _ttl(client: DynamoDBClient, table: str) -> str | None:
    found: Any = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    enabled = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    return str(found["AttributeName"]) if enabled else None


def _enabled(client: DynamoDBClient, table: str, attribute: str) -> str:
    """Enable a time to live, and return its attribute, which is another process's if that was faster."""
    try:
        client.update_time_to_live(
            TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": attribute}
        )
    except ClientError:
        if (found := _ttl(client, table)) is None:
            raise
        return found
    return attribute

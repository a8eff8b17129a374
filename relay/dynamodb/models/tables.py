"""Tables as DynamoDB describes them: creates them, and reports differences from a declaration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from relay.dynamodb.models.errors import TableMismatch
from relay.dynamodb.stream_calls import time_to_live
from relay.errors import Unavailable

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from relay.dynamodb.models.attribute import Attribute
    from relay.dynamodb.models.declaration import Declaration

_IMAGES = {"NEW_AND_OLD_IMAGES": {"new", "old"}, "NEW_IMAGE": {"new"}, "OLD_IMAGE": {"old"}, "KEYS_ONLY": set()}
_PAUSE = 0.5  # seconds


def bound(
    client: DynamoDBClient, wanted: Sequence[tuple[Declaration, str]], patience: float, sleep: Callable[[float], None]
) -> None:
    """Create missing tables, wait, and verify. ``wanted``: declarations with the names of their tables."""
    for declared, table in wanted:
        # Looked up first: an application may be allowed to describe its tables, but not to create any.
        if _described(client, table) is None:
            with suppress(client.exceptions.ResourceInUseException):  # another process was faster
                client.create_table(**creation(declared, table))
    deadline = time.monotonic() + patience
    problems: list[str] = []
    for declared, table in wanted:
        found, ttl = _active(client, table, deadline, sleep), None
        if declared.ttl is not None:
            ttl = time_to_live(client, table) or _enabled(client, table, declared.ttl.attribute)
        problems += differences(declared, found, ttl)
    if problems:
        raise TableMismatch("\n".join(problems))


def _described(client: DynamoDBClient, table: str) -> Any:
    with suppress(client.exceptions.ResourceNotFoundException):
        return client.describe_table(TableName=table)["Table"]
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
            raise Unavailable(f"table {table} or one of its indexes is {state}: bind again when all are ACTIVE")
        sleep(_PAUSE)


def _enabled(client: DynamoDBClient, table: str, attribute: str) -> str:
    """Enable a time to live, and return its attribute; if another process was faster, return that one's."""
    wanted: Any = {"Enabled": True, "AttributeName": attribute}
    try:
        client.update_time_to_live(TableName=table, TimeToLiveSpecification=wanted)
    except ClientError:
        if (found := time_to_live(client, table)) is None:
            raise
        return found
    return attribute


def creation(declared: Declaration, table: str) -> dict[str, Any]:
    """Return the arguments of CreateTable, without the time to live, which another call sets."""
    keys = {each.attribute: str(each.type.kind) for each in declared.key}
    request: dict[str, Any] = {"TableName": table, "BillingMode": "PAY_PER_REQUEST", "KeySchema": _schema(declared.key)}
    for index in declared.indexes.values():
        keys |= {each.attribute: str(each.type.kind) for each in index.key}
        projection: dict[str, Any] = {"ProjectionType": index.mode}
        if index.mode == "INCLUDE":
            projection["NonKeyAttributes"] = sorted(declared.columns[name].attribute for name in index.included)
        kind = "LocalSecondaryIndexes" if index.is_local else "GlobalSecondaryIndexes"
        wanted = {"IndexName": index.name, "KeySchema": _schema(index.key), "Projection": projection}
        request.setdefault(kind, []).append(wanted)
    request["AttributeDefinitions"] = [{"AttributeName": n, "AttributeType": kind} for n, kind in keys.items()]
    if declared.stream:
        request["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": declared.stream}
    return request


def differences(declared: Declaration, found: Mapping[str, Any], ttl: str | None) -> Iterator[str]:
    """Yield a message for each way in which a table does less than its declaration. ``ttl``: its attribute, if enabled.

    The table may have more indexes, columns of indexes, and images in its stream.
    """
    owner = declared.model.__name__
    where = f"{owner}: table {found['TableName']}"
    types = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    yield from _key_differences(where, declared.key, found["KeySchema"], types)
    described = {
        each["IndexName"]: (each, kind == "LocalSecondaryIndexes")
        for kind in ("LocalSecondaryIndexes", "GlobalSecondaryIndexes")
        for each in found.get(kind) or ()
    }
    for index in declared.indexes.values():
        if index.name not in described:
            yield f"{where} has no index {index.name}, which {index.label} declares: create it"
            continue
        actual, is_local = described[index.name]
        if is_local != index.is_local:
            yield f"{where}: index {index.name} is {'local' if is_local else 'global'}, unlike {index.label}"
        yield from _key_differences(f"{where}, index {index.name}", index.key, actual["KeySchema"], types)
        projection = actual["Projection"]
        wanted = {declared.columns[name].attribute for name in index.included}
        lacking = wanted - set(projection.get("NonKeyAttributes", ()))
        if lacking and projection["ProjectionType"] != "ALL":
            yield f"{where}: index {index.name} lacks {', '.join(sorted(lacking))}, which {index.label} projects"
    specification = found.get("StreamSpecification") or {}
    view = specification.get("StreamViewType") if specification.get("StreamEnabled") else None
    if declared.stream and (view is None or not _IMAGES[declared.stream] <= _IMAGES[view]):
        actual = f"a stream of {view}" if view else "no stream"
        yield f"{where} has {actual}, but {owner} declares {declared.stream}: set its StreamViewType"
    if (wanted_ttl := declared.ttl) is not None and ttl != wanted_ttl.attribute:
        actual = f"the time to live {ttl}" if ttl else "no time to live"
        yield f"{where} has {actual}, but {wanted_ttl.label} declares the attribute {wanted_ttl.attribute}"


def _schema(key: Iterable[Attribute[Any]]) -> list[dict[str, str]]:
    roles = zip(key, ("HASH", "RANGE"), strict=False)
    return [{"AttributeName": each.attribute, "KeyType": role} for each, role in roles]


def _key_differences(
    where: str, key: Iterable[Attribute[Any]], actual: list[Mapping[str, str]], types: Mapping[str, str]
) -> Iterator[str]:
    found = {each["KeyType"]: each["AttributeName"] for each in actual}
    for kind, each in zip(("HASH", "RANGE"), (*key, None), strict=False):
        name = found.get(kind)
        if each is None:
            if name is not None:
                yield f"{where} has the range key {name}, which is not declared"
        elif name != each.attribute:
            yield f"{where} has {f'the {kind.lower()} key {name}' if name else 'no range key'}, not {each.label}"
        elif types[name] != each.type.kind:
            yield f"{where}: {each.label} is of type {each.type.kind}, but {name} is of type {types[name]}"

"""Whether a table, as it was described, is as its source's config says, and what to do if it is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from relay.config.columns import attribute_type
from relay.config.conditions import NOT_IN_KEY, Conditions, not_in_key
from relay.config.errors import did_you_mean
from relay.config.protection import IN_KEY, in_key
from relay.dynamodb import describe
from relay.dynamodb.values import canonical_number
from relay.errors import ConfigError, Unavailable
from relay.table import KeyColumn
from relay.types.columns import REST

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from relay.config import DynamoDBConfig
    from relay.dynamodb.describe import Description

_TYPES = {"S": "string", "N": "decimal(38,0)", "B": "bytes"}


def mismatches(found: Description, columns: Mapping[str, str]) -> list[str]:
    """Return one message for each way in which a table does not match ``columns``, its declared types by name.

    The rule is Bloop's ("Internal", partial table validation): the key must be declared exactly, and the types of an
    index' attributes must agree with their declarations. Indexes themselves are not declared.
    """
    key = {column.name for column in found.key}
    # A key column named `rest`, which cannot be declared, is in the key and in `rest`.
    problems = [
        f"key column `{column.name}` ({column.type}) of table {found.table} is not declared: add "
        f"`{column.name}: {_TYPES[column.type]}` to `columns`"
        for column in found.key
        if column.name not in columns and column.name != REST
    ]
    for name, actual in found.attributes.items():
        kind = columns.get(name)
        wanted = None if kind is None else attribute_type(kind)
        if wanted not in (None, actual):
            role = "a key column" if name in key else "the key of an index"
            problems.append(
                f"`{name}` is declared as {kind}, for attributes of type {wanted}, but as {role} of table "
                f"{found.table} it has type {actual}: declare it as {_TYPES[actual]}, for example"
            )
    if found.view_type == "KEYS_ONLY":
        problems.append(
            f"a {found.view_type} stream has no images, so `columns` would stay empty: remove `columns`, or set the "
            f"StreamViewType of table {found.table} to NEW_AND_OLD_IMAGES"
        )
    return problems


def refused_rule(found: Description, source: DynamoDBConfig) -> str | None:
    """Return why an entry of `protect` or `where` is refused, or None if all can be applied.

    No rule can be about a column of the key, and conditions can be about nothing else.
    """
    key = [column.name for column in found.key]
    if (column := in_key(key, source.rules(found.table))) is not None:
        return f"`protect.{found.table}.{column}`: {IN_KEY}"
    if (column := not_in_key(key, source.conditions(found.table))) is not None:
        return f"`where.{found.table}.{column}`: {NOT_IN_KEY}; {did_you_mean(column, key, 'those are ')}"
    try:
        wanted_key(found.key, source.conditions(found.table))
    except ValueError as error:
        return f"`where.{found.table}`: {error}"
    return None


def unseen_rule(client: DynamoDBClient, found: Description, source: DynamoDBConfig) -> str | None:
    """Return why a rule of `protect` is refused: nothing shows that items have its attribute. None if all may stay.

    Otherwise a name with a typing mistake would publish what it is to hide. Raises ``Unavailable``.
    """
    shown = {*found.attributes, *(source.columns or ())}
    rules = source.rules(found.table)
    wanted = [name for name, rule in rules.items() if not rule.may_be_absent and name not in shown]
    if not wanted:
        return None
    looked = "none of the items that were looked at has it"
    try:
        shown |= {name for item in describe.first_items(client, source) for name in item}
    except describe.NotAllowed:
        looked = "the credentials may not look at items (dynamodb:Scan)"
    column = next((name for name in wanted if name not in shown), None)
    return column and (
        f"`protect.{found.table}.{column}`: {looked}; {did_you_mean(column, sorted(shown), 'known names: ')} If other "
        "items have it, or will, write `{absent: ...}` around its rule, which then holds for these"
    )


def wanted_key(key: Iterable[KeyColumn], where: Conditions) -> dict[str, str]:
    """Return the values in ``where`` as keys have them. Raises ValueError for one that a column cannot have."""
    wanted: dict[str, str] = {}
    for column in key:
        if column.name in where:
            value = str(where[column.name])
            if column.type == "B":
                raise ValueError(f"{column.name} is binary, which cannot choose rows")
            wanted[column.name] = canonical_number(value) if column.type == "N" else value
    return wanted


def verify(found: Description, source: DynamoDBConfig) -> None:
    """Check a table against its source's declared columns. Raises ``Unavailable`` with every mismatch.

    Raises ``ConfigError`` for a rule of a key column.
    """
    if problem := refused_rule(found, source):
        raise ConfigError(f"source {source.name}: {problem}")
    if source.columns and (problems := mismatches(found, source.columns)):
        raise Unavailable("\n".join(f"source {source.name}: {problem}" for problem in problems))

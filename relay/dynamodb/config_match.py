"""Whether a table, as it was described, is as its source's config says, and what to do if it is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from relay.config.columns import attribute_type
from relay.config.conditions import NOT_IN_KEY, Conditions, not_in_key
from relay.config.protection import IN_KEY, in_key
from relay.dynamodb.values import canonical_number
from relay.errors import ConfigError, Unavailable
from relay.table import KeyColumn
from relay.types.columns import REST

if TYPE_CHECKING:
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
        return f"`where.{found.table}.{column}`: {NOT_IN_KEY}, of {', '.join(key)}"
    try:
        wanted_key(found.key, source.conditions(found.table))
    except ValueError as error:
        return f"`where.{found.table}`: {error}"
    return None


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

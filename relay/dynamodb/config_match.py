"""Whether a described table matches its source's config, and what to do if it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING

from relay.config.dynamodb_columns import RareType, attribute_type
from relay.config.errors import MISSPELT, did_you_mean, nearest
from relay.config.per_table import NOT_IN_KEY, Conditions
from relay.config.protection import IN_KEY, in_key
from relay.dynamodb.describe import Description, NotAllowed, TableCalls
from relay.dynamodb.values import canonical_number
from relay.errors import ConfigError, Unavailable
from relay.table import KeyColumn
from relay.types.columns import REST

if TYPE_CHECKING:
    from relay.config import DynamoDBConfig

_TYPES = {"S": "string", "N": "decimal(38,0)", "B": "bytes"}


def mismatches(found: Description, columns: Mapping[str, str]) -> list[str]:
    """Return a message for each way in which a table does not match ``columns``, the declared types by name.

    The rule is Bloop's ("Internal", partial table validation): the key must be declared exactly, and the types of
    indexes' attributes must agree with their declarations.
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
    """Return why a rule about a key column, or a condition about another column, is refused; None if there is none."""
    key = [column.name for column in found.key]
    if (column := in_key(key, source.rules(found.table))) is not None:
        return f"`protect.{found.table}.{column}`: {IN_KEY}"
    for column in source.conditions(found.table):
        if column not in key:
            return f"`where.{found.table}.{column}`: {NOT_IN_KEY}; {did_you_mean(column, key, 'those are ')}"
    try:
        wanted_key(found.key, source.conditions(found.table))
    except ValueError as error:
        return f"`where.{found.table}`: {error}"
    return None


_UNSEEN = "none of the items that were looked at has it"


def unseen_rule(calls: TableCalls, found: Description) -> str | None:
    """Return why a rule of `protect` is refused because no item seen has its attribute; None if all rules may stay.

    Otherwise a misspelled name would publish the values that it should hide. Raises ``Unavailable``.
    """
    shown = {*found.attributes, *(calls.source.columns or ())}
    rules = calls.source.rules(found.table)
    wanted = [name for name, rule in rules.items() if not rule.may_be_absent and name not in shown]
    if not wanted:
        return None
    looked = _UNSEEN
    try:
        shown |= calls.first_names
    except NotAllowed:
        looked = "the credentials may not look at items (dynamodb:Scan)"
    column = next((name for name in wanted if name not in shown), None)
    return column and (
        f"`protect.{found.table}.{column}`: {looked}; {did_you_mean(column, sorted(shown), 'known names: ')} If other "
        "items have it, or will have it, write `{absent: ...}` around its rule, which then applies to them"
    )


def misspelt_columns(found: Description, columns: Mapping[str, str], names: Set[str]) -> list[str]:
    """Return a message for each declared column that no item has, if items have a similar name without a column.

    Otherwise the attribute would be in `rest`, and the column null. ``names``: see `TableCalls.first_names`.
    """
    undeclared, shown = sorted(names - columns.keys()), names | found.attributes.keys()
    unseen = {name: kind for name, kind in columns.items() if name not in shown and not isinstance(kind, RareType)}
    likes = ((name, kind, nearest(name, undeclared, MISSPELT)) for name, kind in unseen.items())
    return [
        f"`{name}`: {_UNSEEN}; did you mean `{like}`? If other items have it, or will have it, write "
        f"`{name}: {{absent: {kind}}}`"
        for name, kind, like in likes
        if like is not None
    ]


def wanted_key(key: Iterable[KeyColumn], where: Conditions) -> dict[str, str]:
    """Return the values in ``where`` as keys have them. Raises ValueError for a value that a column cannot have."""
    wanted: dict[str, str] = {}
    for column in key:
        if column.name in where:
            value = str(where[column.name])
            if column.type == "B":
                raise ValueError(f"{column.name} is binary, and `where` cannot test binary columns")
            wanted[column.name] = canonical_number(value) if column.type == "N" else value
    return wanted


def verify(found: Description, source: DynamoDBConfig) -> None:
    """Check a table against its source's config. Raises ``Unavailable`` with every mismatch, and ``ConfigError``."""
    if problem := refused_rule(found, source):
        raise ConfigError(f"source {source.name}: {problem}")
    if source.columns and (problems := mismatches(found, source.columns)):
        raise Unavailable("\n".join(f"source {source.name}: {problem}" for problem in problems))

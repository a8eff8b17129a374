"""What is published of protected columns: values in place of theirs, before a row becomes a change.

So nothing that comes after has the values: no image, no dead letter, no message about a change.
"""

from collections.abc import Callable, Iterable, Set
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from relay.config.errors import did_you_mean
from relay.config.protection import MASK, ColumnRule, ColumnRules, Protect
from relay.errors import ConfigError, RelayError
from relay.table import Column, TableSchema
from relay.types.columns import ColumnKind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rules_of(columns: Iterable[Column], rules: ColumnRules) -> ColumnRules:
    """Return the rules by the names that the columns have: to the database, case makes no difference in them."""
    if not rules:
        return rules
    by_name = {name.lower(): rule for name, rule in rules.items()}
    return {column.name: by_name[column.name.lower()] for column in columns if column.name.lower() in by_name}


def published_columns(columns: Iterable[Column], rules: ColumnRules) -> tuple[Column, ...]:
    """Return the columns of a row as it is published: excluded ones are missing, masked and hashed ones are text."""
    return tuple(
        Column(column.name, ColumnKind.STRING) if column.name in rules else column
        for column in columns
        if column.name not in rules or rules[column.name].kind != "exclude"
    )


def replacements(columns: Iterable[Column], rules: ColumnRules) -> dict[str, Callable[[Any], str]]:
    """Return, by column that is masked or hashed, what makes the published text of a value that is not null."""
    return {
        column.name: _replacement(column, rules[column.name])
        for column in columns
        if column.name in rules and rules[column.name].kind != "exclude"
    }


def _replacement(column: Column, rule: ColumnRule) -> Callable[[Any], str]:
    if rule.kind == "mask":
        return lambda _: MASK
    canonical, hashed = _canonical(column), rule.hashed
    return lambda value: hashed(canonical(value))


def _canonical(column: Column) -> Callable[[Any], bytes]:
    """Return what makes equal values the same bytes, even where the column's type became wider since."""
    if column.type == ColumnKind.TIMESTAMP:
        return lambda value: (_EPOCH + timedelta(microseconds=value)).strftime("%Y-%m-%d %H:%M:%S.%f").encode()
    if column.has_decimals:
        return lambda value: _without_zeros(value).encode()
    return _bytes


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return ",".join(value).encode()
    if isinstance(value, float):
        value = Decimal(repr(value))
    if isinstance(value, Decimal):
        return _without_zeros(f"{value:f}").encode() if value else b"0"
    return b"%d" % value


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def check_followed(before: TableSchema, now: TableSchema) -> None:
    """Refuse columns that follow ``before`` in a stream if a protected one may have been renamed to one without a rule.

    Raises ``RelayError``.
    """
    _refuse_renamed(before, now, {name for name, _ in before.protected})


def check_first(there: TableSchema, rules: ColumnRules, first: TableSchema) -> None:
    """Do the same for the ``first`` columns that are read. ``there``: those when the relay connected.

    The first ones may be earlier. So they may lack a protected one whose rule says so, and have another in its place.
    """
    absent = {name.lower() for name, rule in rules.items() if rule.may_be_absent}
    lost = {name for name, _ in there.protected if name.lower() not in absent} - _names(first)
    if len(lost) > len(dict(first.protected).keys() - _names(there)):
        _refuse_renamed(there, first, lost)


def _refuse_renamed(before: TableSchema, now: TableSchema, protected: Set[str]) -> None:
    was, left = _names(before), sorted(protected - _names(now))
    added = [column.name for column in now.row or () if column.name not in was | dict(now.protected).keys()]
    if left and added:
        raise RelayError(
            f"source {now.source}: table {now.table} no longer has column {left[0]}, which `protect` names, but has "
            f"the new column {added[0]}, without a rule. If {left[0]} was renamed, add a rule for {added[0]} to "
            f"`protect.{now.table}`. Write `{{absent: ...}}` around the rule of {left[0]}, which still holds for "
            "earlier rows. Nothing was skipped"
        )


def _names(table: TableSchema) -> set[str]:
    return {column.name for column in table.row or ()} | dict(table.protected).keys()


def check_protected(source: str, protect: Protect, tables: Iterable[TableSchema]) -> None:
    """Refuse a rule of a column that there is not now, in ``tables``. Raises ``ConfigError``, naming the column.

    Otherwise a name with a typing mistake, or of a column that was renamed, would publish what it is to hide.
    """
    there = {table.table: table for table in tables}
    for table, rules in protect.items():
        names = _names(there[table]) if table in there else set()
        for column, rule in rules.items():
            if rule.may_be_absent or column.lower() in map(str.lower, names):
                continue
            missing, hint = f"table {table} has no column {column}", did_you_mean(column, sorted(names), "it has ")
            if not names:
                missing, hint = f"there is no table {table}", did_you_mean(table, sorted(there), "the tables are ")
            raise ConfigError(
                f"source {source}: {missing}, which `protect.{table}.{column}` names; {hint} If it was dropped or "
                "renamed, or is yet to be made, write `{absent: ...}` around its rule, which then holds for the rows "
                "that have it"
            )

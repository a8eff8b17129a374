"""Replaces the values of protected columns before a row becomes a change, so that no image or message shows them."""

from collections.abc import Callable, Iterable, Set
from datetime import timedelta
from decimal import Decimal
from typing import Any

from relay.config.errors import did_you_mean
from relay.config.protection import MASK, ColumnRule, ColumnRules, Protect
from relay.errors import ConfigError, RelayError
from relay.mysql_dialect.charsets import NotText
from relay.table import Column, TableSchema
from relay.types.columns import EPOCH, ColumnKind


def rules_of(columns: Iterable[Column], rules: ColumnRules) -> ColumnRules:
    """Return the rules by the names of the columns: for the database, case makes no difference in them."""
    if not rules:
        return rules
    by_name = {name.lower(): rule for name, rule in rules.items()}
    return {column.name: by_name[column.name.lower()] for column in columns if column.name.lower() in by_name}


def published_columns(columns: Iterable[Column], rules: ColumnRules) -> tuple[Column, ...]:
    """Return the columns of a published row: excluded ones are missing, masked and hashed ones are text."""
    return tuple(
        Column(column.name, ColumnKind.STRING) if column.name in rules else column
        for column in columns
        if column.name not in rules or rules[column.name].kind != "exclude"
    )


def replacements(columns: Iterable[Column], rules: ColumnRules) -> dict[str, Callable[[Any], str]]:
    """Return, for each masked or hashed column, what makes the published text of a value other than null."""
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
    """Return a function that maps equal values to equal bytes, even if the column's type became wider."""
    if column.type == ColumnKind.TIMESTAMP:
        return lambda value: (EPOCH + timedelta(microseconds=value)).strftime("%Y-%m-%d %H:%M:%S.%f").encode()
    if column.has_decimals:
        return lambda value: _without_zeros(value).encode()
    return _bytes


def _bytes(value: Any) -> bytes:
    if isinstance(value, NotText):
        return b"\xff" + value  # I8: no text in UTF-8 begins with this byte
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
    """Raise ``RelayError`` if a protected column may have been renamed to one without a rule."""
    _refuse_renamed(before, now, {name for name, _ in before.protected})


def check_first(there: TableSchema, rules: ColumnRules, first: TableSchema) -> None:
    """Do the same for the ``first`` columns that are read. ``there``: the columns when the relay connected.

    The first ones may be older. They may lack a protected column whose rule allows that, and have another.
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
    """Raise ``ConfigError`` for a rule of a column that ``tables`` lack: misspelled, it would publish the values."""
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
                "renamed, or is yet to be created, write `{absent: ...}` around its rule, which then holds for the "
                "rows that have it"
            )

"""Which rows of an SQL table are published."""

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from relay.config.conditions import NOT_IN_KEY, Conditions
from relay.config.errors import did_you_mean
from relay.errors import ConfigError
from relay.table import TableSchema
from relay.types.columns import ColumnKind, column_type

_NUMBERS = (ColumnKind.INT, ColumnKind.LONG, ColumnKind.DECIMAL)


def wanted_rows(table: TableSchema, names: Sequence[str], where: Conditions) -> Callable[[Sequence[Any]], bool] | None:
    """Return what says whether a row is published, or None if all are. ``names``: the names of its columns, in order.

    Raises ``ConfigError`` for a condition on a column that is not in the key, and for a value that it cannot have.
    """
    if not where:
        return None
    key = {column.name.lower(): column for column in table.key}
    tests: list[tuple[int, Any]] = []
    for name, value in where.items():
        place = f"source {table.source}: `where.{table.table}.{name}`"
        if (column := key.get(name.lower())) is None:
            hint = did_you_mean(name, [each.name for each in table.key], "those are ")
            raise ConfigError(f"{place}: {NOT_IN_KEY}; {hint}")
        try:
            tests.append((names.index(column.name), _stored(column.type, value)))
        except (ValueError, InvalidOperation):
            raise ConfigError(f"{place}: a column of type {column.type} cannot be equal to {value!r}") from None
    return lambda row: all(row[at] == value for at, value in tests)


def _stored(kind: str, value: str | int) -> Any:
    """Return a value as a row has it. Raises ValueError if no column of this type can have it."""
    if kind == ColumnKind.STRING:
        return str(value)
    if column_type(kind).kind in _NUMBERS:
        return Decimal(value)  # equal to the int, and to the number with other decimals
    raise ValueError(f"columns of type {kind} cannot choose rows")

"""Declared columns: an item becomes a typed row, and attributes that no column can hold exactly stay DynamoDB JSON.

``schemas/README.md`` has the table of types and the values each accepts, which are part of the wire format.
"""

import math
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any

from relay.dynamodb.values import canonical_number, image_json
from relay.table import Column, TableSchema
from relay.types.columns import FIRST_TIME, LAST_TIME, REST, ColumnKind, ColumnType, column_type
from relay.types.items import binary

Convert = Callable[[Mapping[str, Any]], Any]
"""Returns the column's value for a typed attribute, or None if the column cannot hold it exactly."""


class TypedRows:
    """Turns items into rows. ``columns``: types by name. ``protected``: those published as a text. Immutable."""

    def __init__(self, columns: Mapping[str, str], protected: Collection[str] = ()) -> None:
        columns = {name: "string" if name in protected else kind for name, kind in columns.items()}
        self.columns = (*(Column(name, kind) for name, kind in columns.items()), Column(REST, REST))
        kinds = {name: column_type(kind) for name, kind in columns.items()}
        self._converts = [(name, CONVERTS[kind.kind](kind)) for name, kind in kinds.items()]

    def row(self, item: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the row of ``item``: every declared column, and in `REST` the JSON of all other attributes.

        `REST` holds undeclared attributes, NULLs, and values that their column cannot hold exactly (I8). A column is
        null for an attribute that is absent, and for one that is in `REST`.
        """
        row = {name: convert(item[name]) if name in item else None for name, convert in self._converts}
        others = {name: value for name, value in item.items() if row.get(name) is None}
        row[REST] = image_json(others) if others else None
        return row

    def checked(self, item: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the row of an item that a tolerant parser read. Raises ValueError if JSON cannot hold it (I8)."""
        image_json(item)
        return self.row(item)


def typed_key(table: TableSchema) -> Callable[[Mapping[str, str | bytes]], dict[str, Any]]:
    """Return the function that gives a key's values as in its row, if declared. ValueError if one is not exact (I8)."""
    declared = {column.name: column.type for column in table.row or () if column.name != REST}
    attributes = {column.name: column.type for column in table.key if column.name in declared}
    rows = TypedRows({name: declared[name] for name in attributes})

    def convert(key: Mapping[str, str | bytes]) -> dict[str, Any]:
        row = rows.row({name: {kind: key[name]} for name, kind in attributes.items()})
        for name in attributes:
            if row[name] is None:
                raise ValueError(
                    f"{key[name]!r} is not a value of {name!r}, declared as {declared[name]}: declare it as another "
                    "type, or not at all"
                )
        return {**key, **row}

    return convert


def _scalar(kind: str, of: type | tuple[type, ...], fit: Callable[[Any], Any]) -> Convert:
    """Return the conversion for attributes of DynamoDB type ``kind``.

    ``fit``: returns the column's value. None, or a ValueError, if the column cannot hold it exactly.
    """

    def convert(value: Mapping[str, Any]) -> Any:
        raw = value.get(kind)
        if not isinstance(raw, of) or len(value) != 1:
            return None
        try:
            return fit(raw)
        except ValueError:
            return None

    return convert


def _number(fit: Callable[[str], Any]) -> Convert:
    """Return the conversion for numbers. ``fit``: returns the column's value of a canonical number, or None."""
    return _scalar("N", str, lambda text: fit(canonical_number(text)))


def _integer(kind: ColumnType) -> Callable[[str], int | None]:
    least, greatest = kind.bounds

    def fit(text: str) -> int | None:
        return int(text) if "." not in text and least <= int(text) <= greatest else None

    return fit


def _decimal(kind: ColumnType) -> Callable[[str], Decimal | None]:
    def fit(text: str) -> Decimal | None:
        whole, _, decimals = text.removeprefix("-").partition(".")
        fits = len(decimals) <= kind.scale and (len(whole) <= kind.whole or whole == "0")
        return Decimal(text) if fits else None

    return fit


def _double(text: str) -> float | None:
    # Only a number that prints as the same text, so that no two numbers become one double.
    number = float(text)
    return number if math.isfinite(number) and Decimal(repr(number)) == Decimal(text) else None


def _time(text: str) -> int | None:
    """Return the microseconds of a number of seconds since the epoch, such as a TTL attribute.

    ISO text is not converted: its offset, and the fact that it was text, would be lost (I8).
    """
    whole, _, decimals = text.partition(".")
    if len(decimals) > 6 or len(whole) > 13:
        return None
    time = int(whole + decimals.ljust(6, "0"))
    return time if FIRST_TIME <= time <= LAST_TIME else None


CONVERTS: dict[ColumnKind, Callable[[ColumnType], Convert]] = {
    ColumnKind.INT: lambda kind: _number(_integer(kind)),
    ColumnKind.LONG: lambda kind: _number(_integer(kind)),
    ColumnKind.DECIMAL: lambda kind: _number(_decimal(kind)),
    ColumnKind.DOUBLE: lambda _: _number(_double),
    ColumnKind.STRING: lambda _: _scalar("S", str, str),
    ColumnKind.BYTES: lambda _: _scalar("B", (str, bytes, bytearray), binary),
    ColumnKind.BOOLEAN: lambda _: _scalar("BOOL", bool, bool),
    ColumnKind.TIMESTAMP: lambda _: _number(_time),
    ColumnKind.SET: lambda _: _scalar("SS", list, list),
    ColumnKind.JSON: lambda _: image_json,
}
"""Makes the conversion to each column type that can be declared, by its kind."""

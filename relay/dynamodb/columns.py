"""Declared columns: an item becomes a typed row, and attributes that no column can hold exactly stay DynamoDB JSON.

``schemas/README.md`` has the table of types and the values each accepts, which are part of the wire format.
"""

import math
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any

from relay.dynamodb.values import canonical_number, image_json
from relay.table import Column
from relay.types.columns import FIRST_TIME, LAST_TIME, REST, ColumnKind, ColumnType, column_type
from relay.types.items import binary

Convert = Callable[[Mapping[str, Any]], Any]
"""Returns the column's value of a typed attribute, or None if the column cannot hold the attribute exactly."""


class TypedRows:
    """Turns the items of one table into rows. ``columns``: declared type by attribute name.

    ``protected``: the columns that are published as a text in place of the values. Shared by the
    threads that read the table; it does not change.
    """

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


def _as_it_is(kind: str, of: type) -> Convert:
    """Return the conversion of attributes of DynamoDB's type ``kind`` whose value the column takes as it is."""

    def convert(value: Mapping[str, Any]) -> Any:
        raw = value.get(kind)
        return raw if isinstance(raw, of) and len(value) == 1 else None

    return convert


def _bytes(value: Mapping[str, Any]) -> bytes | None:
    if len(value) != 1 or "B" not in value:
        return None
    try:
        return binary(value["B"])
    except ValueError:
        return None


def _number(fit: Callable[[str], Any]) -> Convert:
    """Return the conversion of numbers. ``fit``: returns the column's value of a canonical number, or None."""

    number = _as_it_is("N", str)

    def convert(value: Mapping[str, Any]) -> Any:
        raw = number(value)
        try:
            return None if raw is None else fit(canonical_number(raw))
        except ValueError:
            return None

    return convert


def _integer(kind: ColumnType) -> Callable[[str], int | None]:
    least, greatest = kind.bounds

    def fit(text: str) -> int | None:
        if "." in text:
            return None
        number = int(text)
        return number if least <= number <= greatest else None

    return fit


def _decimal(kind: ColumnType) -> Callable[[str], Decimal | None]:
    def fit(text: str) -> Decimal | None:
        whole, _, decimals = text.removeprefix("-").partition(".")
        fits = len(decimals) <= kind.scale and (len(whole) <= kind.whole or whole == "0")
        return Decimal(text) if fits else None

    return fit


def _double(text: str) -> float | None:
    # Only a number that is printed as the same text, so that no two numbers become one double.
    number = float(text)
    return number if math.isfinite(number) and Decimal(repr(number)) == Decimal(text) else None


def _time(text: str) -> int | None:
    """Return the microseconds of a number of seconds since the epoch, such as a TTL attribute.

    ISO text is not converted: its offset, and that it was text, would be lost (I8).
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
    ColumnKind.STRING: lambda _: _as_it_is("S", str),
    ColumnKind.BYTES: lambda _: _bytes,
    ColumnKind.BOOLEAN: lambda _: _as_it_is("BOOL", bool),
    ColumnKind.TIMESTAMP: lambda _: _number(_time),
    ColumnKind.SET: lambda _: _as_it_is("SS", list),
    ColumnKind.JSON: lambda _: image_json,
}
"""Makes the conversion to each column type that can be declared, by its kind."""

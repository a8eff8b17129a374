"""Tables as the relay sees them: key columns, row columns and column types."""

from __future__ import annotations

import re
from dataclasses import dataclass

REST = "rest"
"""The column, and its type, of a typed DynamoDB row for the attributes that are in no other column."""

MAX_AVRO_PRECISION = 38
"""The most digits of an Avro decimal. Spark refuses more, so wider numbers become text."""

PLAIN_TYPES = ("string", "bytes", "boolean", "int", "long", "float", "double")
"""The column types that have the same name in Avro."""

_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A primary key column. ``type``: ``S``, ``N`` or ``B`` for DynamoDB, a `column_type` for an SQL table.

    ``has_decimals``: whether the text of a value ends in the decimals of a second, as many as its type has.
    """

    name: str
    type: str
    has_decimals: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a row. ``type``: as for `column_type`. ``has_decimals``: as for `KeyColumn`."""

    name: str
    type: str
    has_decimals: bool = False


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of one table, which its changes have.

    ``key``: the full primary key; its first ``hash_columns`` columns are the hash key, which chooses the partition.
    ``row``: the columns of a row image, None if images are DynamoDB-typed JSON text. ``protected``: the columns whose
    values are not published, each with ``exclude``, ``mask`` or ``hash``.
    """

    source: str
    table: str
    key: tuple[KeyColumn, ...]
    hash_columns: int
    row: tuple[Column, ...] | None = None
    protected: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.hash_columns <= len(self.key):
            raise ValueError(
                f"table {self.table}: the hash key has {self.hash_columns} of the {len(self.key)} key columns: it must "
                "have at least one, and at most all"
            )
        for kind, columns in (("key", self.key), ("row", self.row or ())):
            names = [column.name for column in columns]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"table {self.table}: the {kind} has two columns named {twice[0]!r}")


@dataclass(frozen=True, slots=True)
class Decimals:
    """``decimal(precision,scale)``: numbers of ``precision`` digits, ``scale`` of them after the point.

    In Avro a decimal up to 38 digits, text above.
    """

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


def column_type(text: str) -> str | Decimals:
    """Read a column type, such as ``long`` or ``decimal(10,2)``.

    Returns `Decimals` for ``decimal(p,s)``, and the text itself for ``string bytes boolean int long float double
    timestamp set json rest``. ``set`` is a list of texts in the order of its definition, ``json`` one DynamoDB value of
    any type as JSON, ``rest`` the JSON of the attributes that are in no column. Raises ValueError for anything else.
    """
    if text in PLAIN_TYPES or text in ("timestamp", "set", "json", REST):
        return text
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if precision >= 1 and scale <= precision:
            return Decimals(precision, scale)
        raise ValueError(f"{text!r} is not a column type: use decimal(p,s) with p from 1, and s from 0 to p")
    raise ValueError(
        f"{text!r} is not a column type: use one of {', '.join(PLAIN_TYPES)}, decimal(p,s), timestamp, set, json"
    )

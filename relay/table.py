"""The shape of a table: its key, its columns, and the types that they can have."""

from __future__ import annotations

import re
from dataclasses import dataclass

REST = "rest"  # type and field, in a typed DynamoDB row, of the attributes that are in no column

MAX_AVRO_PRECISION = 38
"""Digits that an Avro decimal has at most, since Spark refuses more: wider numbers are text."""

PLAIN_TYPES = ("string", "bytes", "boolean", "int", "long", "float", "double")
"""The column types that are types of Avro by the same name."""

_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A primary key column: ``S``, ``N`` or ``B`` of DynamoDB, or a column type of an SQL table."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Column:
    """A row's column; `column_type` says which types there are."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What the changes of one table look like.

    ``key``: the full primary key, its first ``hash_columns`` columns being the hash key.
    ``row``: None where images are DynamoDB-typed JSON text, else the row's columns.
    """

    source: str
    table: str
    key: tuple[KeyColumn, ...]
    hash_columns: int
    row: tuple[Column, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.hash_columns <= len(self.key):
            raise ValueError(f"table {self.table}: {self.hash_columns} hash columns of {len(self.key)} key columns")
        for kind, columns in (("key", self.key), ("row", self.row or ())):
            names = [column.name for column in columns]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"table {self.table}: {kind} column {twice[0]!r} is there twice")


@dataclass(frozen=True, slots=True)
class Decimals:
    """``decimal(precision,scale)``: Avro decimal up to 38 digits, text above."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


def column_type(text: str) -> str | Decimals:
    """Read a column type; ValueError on an unknown one.

    ``string bytes boolean int long float double timestamp set json rest`` stand for themselves,
    ``decimal(p,s)`` becomes `Decimals`. ``set`` is a list of text in the order of its definition;
    ``json`` is one DynamoDB value of any type as its JSON, ``rest`` the JSON of what is in no column.
    """
    if text in PLAIN_TYPES or text in ("timestamp", "set", "json", REST):
        return text
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if precision >= 1 and scale <= precision:
            return Decimals(precision, scale)
        raise ValueError(f"column type {text!r}: needs 1 or more digits, and no more decimals than digits")
    raise ValueError(f"column type {text!r} is none of {', '.join(PLAIN_TYPES)}, decimal(p,s), timestamp, set")

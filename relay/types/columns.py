"""The column types: the types that a column of a change may have, and their names elsewhere."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any

REST = "rest"
"""The column, and its type, for the attributes of a typed DynamoDB row that have no column of their own."""

MAX_AVRO_PRECISION = 38
"""The most digits of an Avro decimal. Spark refuses more, so wider numbers become text."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# The years 1 to 9999 in microseconds, which all readers of timestamp-micros support.
FIRST_TIME = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LAST_TIME = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND

_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)")


class ColumnKind(StrEnum):
    """The column types, with ``decimal`` without its digits. Code for a type is chosen by its kind."""

    INT = "int"
    LONG = "long"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    SET = "set"  # texts in the order of the definition
    JSON = "json"  # one DynamoDB value of any type
    REST = "rest"  # JSON of the attributes without a column


@dataclass(frozen=True, slots=True)
class ColumnType:
    """``avro``: its Avro type. ``core``: the form in which the core writes its values, ``other`` if Python does.

    ``spark``, ``postgres``: its type in a copy. ``attribute``: the DynamoDB type of attributes that can be declared
    with it, ``*`` for all, empty for none. ``family``: a column of a copy is widened only to a type of the
    same family. ``bounds``: the least and the greatest integer. ``in_keys``: whether equal values have one text, so
    that a key column may be of this type. ``whole``, ``scale``: the digits of a number before and after the point.
    """

    kind: ColumnKind
    avro: Any
    core: str
    spark: str
    postgres: str
    attribute: str
    family: str
    bounds: tuple[int, int] = (0, 0)
    in_keys: bool = True
    whole: int = 0
    scale: int = 0

    @property
    def precision(self) -> int:
        return self.whole + self.scale

    @property
    def is_wide(self) -> bool:
        """Whether it is a decimal too wide for Avro and Spark, which is text there."""
        return self.precision > MAX_AVRO_PRECISION

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.kind is ColumnKind.DECIMAL else self.kind


_TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
_TEXTS = {"type": "array", "items": "string"}
_INT, _LONG = ((-(1 << bits), (1 << bits) - 1) for bits in (31, 63))
_TIMES = (FIRST_TIME, LAST_TIME)

# kind, avro, core, spark, postgres, attribute, family
TYPES = (
    ColumnType(ColumnKind.INT, "int", "integer", "int", "integer", "N", "number", _INT, whole=10),
    # A long has 19 digits, but Delta widens it only to decimals with at least 20 before the point.
    ColumnType(ColumnKind.LONG, "long", "integer", "bigint", "bigint", "N", "number", _LONG, whole=20),
    ColumnType(ColumnKind.DECIMAL, "bytes", "decimal", "decimal", "numeric", "N", "number"),
    ColumnType(ColumnKind.FLOAT, "float", "other", "float", "real", "", "float"),
    ColumnType(ColumnKind.DOUBLE, "double", "double", "double", "double precision", "N", "float"),
    ColumnType(ColumnKind.STRING, "string", "text", "string", "text", "S", "string"),
    ColumnType(ColumnKind.BYTES, "bytes", "bytes", "binary", "bytea", "B", "bytes"),
    ColumnType(ColumnKind.BOOLEAN, "boolean", "boolean", "boolean", "boolean", "BOOL", "boolean"),
    ColumnType(
        ColumnKind.TIMESTAMP, _TIMESTAMP, "integer", "timestamp", "timestamp with time zone", "N", "timestamp", _TIMES
    ),
    ColumnType(ColumnKind.SET, _TEXTS, "texts", "array<string>", "text[]", "SS", "set", in_keys=False),
    ColumnType(ColumnKind.JSON, "string", "text", "string", "json", "*", "json", in_keys=False),
    ColumnType(ColumnKind.REST, "string", "text", "string", "json", "", "json", in_keys=False),
)
"""Each column type; decimals without digits. If two share a name elsewhere, that name means the first one."""

_BY_NAME = {str(each.kind): each for each in TYPES}


def decimal(precision: int, scale: int) -> ColumnType:
    """Return the type of numbers with ``precision`` digits, ``scale`` of them after the point."""
    made = replace(_BY_NAME[ColumnKind.DECIMAL], whole=precision - scale, scale=scale)
    if made.is_wide:
        return replace(made, avro="string", core="other")
    return replace(made, avro={"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale})


@lru_cache(maxsize=1000)
def column_type(text: str) -> ColumnType:
    """Return the column type called, for example, ``long`` or ``decimal(10,2)``. Raises ValueError for other names."""
    if text in _BY_NAME and text != ColumnKind.DECIMAL:
        return _BY_NAME[text]
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if precision >= 1 and scale <= precision:
            return decimal(precision, scale)
        raise ValueError(f"{text!r} is not a column type: use decimal(p,s) with p >= 1 and s from 0 to p")
    names = ", ".join(
        "decimal(p,s)" if name == ColumnKind.DECIMAL else name for name in _BY_NAME if name != ColumnKind.REST
    )
    raise ValueError(f"{text!r} is not a column type: use one of {names}")

"""The column types that attributes of a DynamoDB table can be declared as: ``columns:`` of a source."""

from __future__ import annotations

from relay.table import MAX_AVRO_PRECISION, REST, Decimals, column_type

_ATTRIBUTES = {
    "string": "S",
    "bytes": "B",
    "boolean": "BOOL",
    "int": "N",
    "long": "N",
    "double": "N",
    "timestamp": "N",
    "set": "SS",
    "json": None,
}


def declared(text: str) -> str:
    """Give a declared type in its one spelling; ValueError if an attribute cannot be declared as it."""
    try:
        kind = column_type(text)
    except ValueError:
        kind = REST
    if isinstance(kind, Decimals):
        if kind.precision > MAX_AVRO_PRECISION:
            raise ValueError(f"{kind} has more than {MAX_AVRO_PRECISION} digits, and no number of DynamoDB has")
    elif kind not in _ATTRIBUTES:
        raise ValueError(f"{text!r} is none of {', '.join(_ATTRIBUTES)}, decimal(p,s) with p up to 38")
    return str(kind)


def attribute_type(kind: str) -> str | None:
    """Give the DynamoDB type that a column of a declared type holds, such as ``N``; None for any."""
    return "N" if isinstance(column_type(kind), Decimals) else _ATTRIBUTES[kind]

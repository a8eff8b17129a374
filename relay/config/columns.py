"""The types that ``columns:`` of a DynamoDB source can declare for attributes."""

from __future__ import annotations

from relay.table import MAX_AVRO_PRECISION, REST, Decimals, column_type

_ATTRIBUTE_TYPES = {
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

FORM = "|".join(_ATTRIBUTE_TYPES) + r"|decimal\(\s*(?:[1-9]|[12]\d|3[0-8])\s*,\s*\d+\s*\)"
"""The form of declared types, for the JSON schema."""


def canonical_type(text: str) -> str:
    """Return a declared type in its canonical spelling. ValueError if no attribute can be declared as it."""
    try:
        kind = column_type(text)
    except ValueError:
        kind = REST
    if isinstance(kind, Decimals):
        if kind.precision > MAX_AVRO_PRECISION:
            raise ValueError(f"type {kind} has more than {MAX_AVRO_PRECISION} digits, the most a DynamoDB number has")
    elif kind not in _ATTRIBUTE_TYPES:
        types = ", ".join(_ATTRIBUTE_TYPES)
        raise ValueError(f"unknown type {text!r}; the types are {types}, and decimal(p,s) with p up to 38")
    return str(kind)


def attribute_type(kind: str) -> str | None:
    """Return the DynamoDB type that a column of a declared type holds, such as ``N``; None if it holds any."""
    return "N" if isinstance(column_type(kind), Decimals) else _ATTRIBUTE_TYPES[kind]

"""The types that ``columns:`` of a DynamoDB source can declare for attributes."""

from relay.types.columns import MAX_AVRO_PRECISION, TYPES, ColumnKind, column_type

_NAMES = [each.kind.value for each in TYPES if each.attribute and each.kind is not ColumnKind.DECIMAL]

FORM = "|".join(_NAMES) + r"|decimal\(\s*(?:[1-9]|[12]\d|3[0-8])\s*,\s*\d+\s*\)"
"""The form of declared types, for the JSON schema."""


def canonical_type(text: str) -> str:
    """Return a declared type in its canonical spelling. ValueError if no attribute can be declared as it."""
    try:
        kind = column_type(text)
    except ValueError:
        kind = None
    if kind is None or not kind.attribute:
        types = ", ".join(_NAMES)
        raise ValueError(f"unknown type {text!r}; the types are {types}, and decimal(p,s) with p up to 38")
    if kind.is_wide:
        raise ValueError(f"type {kind} has more than {MAX_AVRO_PRECISION} digits, the most a DynamoDB number has")
    return str(kind)


def attribute_type(kind: str) -> str | None:
    """Return the DynamoDB type that a column of a declared type holds, such as ``N``, or None if it holds any."""
    found = column_type(kind).attribute
    return None if found == "*" else found

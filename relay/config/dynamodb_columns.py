"""The types that ``columns:`` of a DynamoDB source can declare for attributes."""

from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from relay.config.model import only, texts
from relay.types.columns import MAX_AVRO_PRECISION, TYPES, ColumnKind, column_type

_NAMES = [each.kind.value for each in TYPES if each.attribute and each.kind is not ColumnKind.DECIMAL]

_FORM = "|".join(_NAMES) + r"|decimal\(\s*(?:[1-9]|[12]\d|3[0-8])\s*,\s*\d+\s*\)"
"""The pattern of declared types, for the JSON schema."""


def canonical_type(text: str) -> str:
    """Return a declared type in its canonical spelling. Raises ValueError if no attribute can have it."""
    try:
        kind = column_type(text)
    except ValueError:
        kind = None
    if kind is None or not kind.attribute:
        types = ", ".join(_NAMES)
        raise ValueError(f"unknown type {text!r}; the types are {types}, and decimal(p,s) with p up to 38")
    if kind.is_wide:
        raise ValueError(f"type {kind} has more digits than a DynamoDB number, which has at most {MAX_AVRO_PRECISION}")
    return str(kind)


class RareType(str):
    """The declared type of an attribute that no item may have yet: `{absent: type}`."""

    __slots__ = ()


def _declared(given: Any, validate: ValidatorFunctionWrapHandler) -> str:
    if isinstance(given, dict) and set(given) == {"absent"}:
        return RareType(validate(given["absent"]))
    return given if isinstance(given, RareType) else str(validate(given))


DeclaredType = Annotated[
    str,
    AfterValidator(canonical_type),
    WrapValidator(_declared),
    PlainSerializer(lambda each: {"absent": str(each)} if isinstance(each, RareType) else each, when_used="json"),
    WithJsonSchema({"anyOf": [texts(_FORM), only("absent", texts(_FORM))]}),
]


def attribute_type(kind: str) -> str | None:
    """Return the DynamoDB type of values in a column of a declared type, such as ``N``, or None if it takes any."""
    found = column_type(kind).attribute
    return None if found == "*" else found

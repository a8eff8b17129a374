"""DynamoDB items as Python values."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import orjson


def item_values(item: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as Python values: ``str``, ``Decimal``, ``bytes``, ``bool``, None, ``set``, ``list`` and ``dict``.

    ``item``: DynamoDB-typed, as a boto3 client returns it, or as JSON text, such as an image from
    ``spark_consumers.read_changes``. Raises ValueError for anything else.

        >>> item_values('{"id": {"S": "ada"}, "total": {"N": "19.90"}, "tags": {"SS": ["new"]}}')
        {'id': 'ada', 'total': Decimal('19.90'), 'tags': {'new'}}
    """
    values: dict[str, Any] = one_value({"M": orjson.loads(item) if isinstance(item, str) else item})
    return values


def one_value(value: Any) -> Any:
    """Return one typed value as a Python value. Raises ValueError for anything else."""
    try:
        return _value(value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{str(value)[:100]} is not a value of one of DynamoDB's types: {error!r}") from error


def _value(value: Any) -> Any:
    ((kind, raw),) = value.items()
    return _VALUES[kind](raw)


def binary(raw: Any) -> bytes:
    """Return the bytes of a B value. Raises ValueError for text that is not base64."""
    return b64decode(raw, validate=True) if isinstance(raw, str) else bytes(raw)


_VALUES: dict[str, Callable[[Any], Any]] = {
    "S": lambda raw: raw,
    "N": Decimal,
    "B": binary,
    "BOOL": lambda raw: raw,
    "NULL": lambda _: None,
    "SS": set,
    "NS": lambda raw: set(map(Decimal, raw)),
    "BS": lambda raw: set(map(binary, raw)),
    "L": lambda raw: list(map(_value, raw)),
    "M": lambda raw: {name: _value(value) for name, value in raw.items()},
}
TYPES = frozenset(_VALUES)
"""The types of a typed value."""

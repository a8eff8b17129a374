"""Which rows of a table are published: those with given values in key columns."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from relay.config.errors import mapping

Conditions = Mapping[str, str | int]
"""For one table, the value that each column must have in published rows."""

NOT_IN_KEY = "it is not part of the key, so an update could change it: only key columns can choose rows"
"""Why a column cannot choose rows."""


def not_in_key(key: list[str], conditions: Conditions) -> str | None:
    """Return a column of ``conditions`` that is not in ``key``, or None if all are."""
    return next((column for column in conditions if column not in key), None)


def _value(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("must be text or an integer")
    return value


_Value = Annotated[
    str | int, PlainValidator(_value), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]})
]
_Values = Annotated[
    dict[str, _Value], mapping("{column: value}", at_least=1), Field(json_schema_extra={"minProperties": 1})
]
Where = Annotated[dict[str, _Values], mapping("{table: {column: value}}")]
"""The conditions of a source's tables, by table."""

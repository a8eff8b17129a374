"""Which rows of a table are published: those that have given values in columns of the key.

Other columns are refused: an update could change them, and its row would be on the topic in part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from relay.config.errors import invalid
from relay.config.schema_forms import by_table_and_column
from relay.config.yaml_file import Location

Conditions = Mapping[str, str | int]
"""The values that the rows of one table have, by column."""

NOT_IN_KEY = "it is not part of the key, so an update could change it: only columns of the key can choose rows"
"""Why a column cannot choose rows."""


def not_in_key(key: list[str], conditions: Conditions) -> str | None:
    """Return a column of ``conditions`` that is not in ``key``, None if all are."""
    return next((column for column in conditions if column not in key), None)


def _parse(value: Any) -> dict[str, dict[str, str | int]]:
    if not isinstance(value, dict):
        raise invalid("must be {table: {column: value}}")
    problems: list[tuple[Location, str]] = []
    for table, columns in value.items():
        if not isinstance(columns, dict) or not columns:
            problems.append(((table,), "must be {column: value}"))
            continue
        problems += [
            ((table, column), "must be text or an integer")
            for column, wanted in columns.items()
            if isinstance(wanted, bool) or not isinstance(wanted, (str, int))
        ]
    if problems:
        raise invalid(*problems)
    return value


Where = Annotated[
    dict[str, dict[str, str | int]],
    PlainValidator(_parse),
    WithJsonSchema(by_table_and_column({"anyOf": [{"type": "string"}, {"type": "integer"}]})),
]
"""The conditions of a source's tables, by table."""

"""Describes columns for the compiled core, and which of them it writes itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relay.avro import columns
from relay.avro.schema import change_schema, columns_of_key, columns_of_row
from relay.table import TableSchema
from relay.types.columns import ColumnKind, column_type

if TYPE_CHECKING:
    from relay.native._core import Field


def fields_of(schema: Mapping[str, Any]) -> tuple[list[Field] | None, list[Field]]:
    """Return the row columns in a `change_schema`, None if images are JSON text, and its key columns."""
    row = columns_of_row(schema)
    key = [_field(*each) for each in columns_of_key(schema)]
    return None if row is None else [_field(*each) for each in row], key


def compiled_fields(schema: TableSchema) -> tuple[list[Field], list[Field]] | None:
    """Return the columns of row and key of a table, or None if the core cannot make changes from its rows."""
    if schema.protected or any(column.type == ColumnKind.TIMESTAMP for column in schema.key):
        return None
    row, key = fields_of(change_schema(schema))
    return None if row is None else (row, key)


def _field(name: str, kind: str) -> Field:
    """Return the column ``name`` of the column type ``kind`` in the form for the core."""
    found = column_type(kind)
    numbers = (found.precision, found.scale) if found.kind is ColumnKind.DECIMAL else found.bounds
    return name, found.core, numbers, columns.writer(kind)

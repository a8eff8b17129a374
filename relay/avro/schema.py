"""The Avro schema of a table's changes, and column names as Avro names and back.

The fixed part of a schema is ``schemas/change.avsc``; key and row records are made here. Both are on the wire: changing
the schema or a name for the same columns needs new golden files.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from relay.table import Column, KeyColumn, TableSchema
from relay.types.columns import column_type

_DYNAMODB_KEY_TYPES = {"S": "string", "N": "string", "B": "bytes"}


_ILLEGAL = re.compile(r"[^A-Za-z0-9_]|^[0-9]|_(?=x)")
_ESCAPED = re.compile(r"_x([0-9A-F]{4,6})_")
_EMPTY = "_x_"


def escape(name: str) -> str:
    """Return ``name`` as an Avro name. `unescape` restores it, so no two names become one.

    Each illegal character, a leading digit and the underscore of a literal ``_x`` become ``_xHHHH_``, the code point
    in hexadecimal: ``a-b`` is ``a_x002D_b``. The empty text becomes ``_x_``.
    """
    if not name:
        return _EMPTY
    return _ILLEGAL.sub(lambda found: f"_x{ord(found[0]):04X}_", name)


def unescape(name: str) -> str:
    if name == _EMPTY:
        return ""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


def change_schema(table: TableSchema) -> dict[str, Any]:
    """Return the Avro schema of ``relay.Change`` for one table. Raises ValueError for an unsuitable column type."""
    namespace = namespace_of(table.source, table.table)
    protected = dict(table.protected)
    row: Any = "string"
    if table.row is not None:
        row = _record("Row", namespace, [_row_field(column) for column in table.row], protected)
    key = _record("Key", namespace, [_key_field(column) for column in table.key], protected if row == "string" else {})
    places = {"relay.Key": key, "relay.Row": row, "relay.EventToken": _fixed("event_token.avsc")}
    schema: dict[str, Any] = _fill(_fixed("change.avsc"), places)
    if protected:
        schema["relay.protected"] = protected
    return schema


def namespace_of(source: str, table: str) -> str:
    """Return the namespace of the records of a table, which all its schemas share."""
    return f"relay.{escape(source)}.{escape(table)}"


def source_name(field: dict[str, Any]) -> str:
    """Return the column name of a field of a key or row record."""
    return str(field.get("source.name", field["name"]))


def columns_of_key(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names and the column types, or Avro types, of the key in a `change_schema`."""
    (key,) = (field["type"][1] for field in schema["fields"] if field["name"] == "key")
    return [(source_name(field), str(field.get("relay.type", field["type"]))) for field in key["fields"]]


def columns_of_row(schema: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Return the names and column types of the row in a `change_schema`, or None if images are JSON text."""
    (row,) = (field["type"][1] for field in schema["fields"] if field["name"] == "old")
    return None if row == "string" else [(source_name(field), field["relay.type"]) for field in row["fields"]]


def _key_field(column: KeyColumn) -> dict[str, Any]:
    field: dict[str, Any] = {"name": escape(column.name), "source.name": column.name}
    if column.type in _DYNAMODB_KEY_TYPES:
        field["type"] = _DYNAMODB_KEY_TYPES[column.type]
        if column.type == "N":
            field["dynamodb"] = "N"
        return field
    found = column_type(column.type)
    if not found.in_keys:
        raise ValueError(
            f"key column {column.name!r} cannot be of type {column.type!r}: equal keys must have one text form"
        )
    field["type"] = found.avro
    field["relay.type"] = str(found)
    if column.has_decimals:
        field["decimals"] = True
    return _told(field, column)


def _row_field(column: Column) -> dict[str, Any]:
    found = column_type(column.type)
    field = {
        "name": escape(column.name),
        "source.name": column.name,
        "type": ["null", found.avro],
        "default": None,
        "relay.type": str(found),
    }
    return _told(field, column)


def _told(field: dict[str, Any], column: KeyColumn | Column) -> dict[str, Any]:
    return {**field, "relay.sql": column.sql} if column.sql else field


def _record(kind: str, namespace: str, fields: list[dict[str, Any]], protected: dict[str, str]) -> dict[str, Any]:
    # The fingerprint on the wire ignores logical types, scale and properties. The hash in the name covers them: other
    # types give another name, and so another fingerprint.
    covered = [fields, protected] if protected else fields
    text = json.dumps(covered, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return {"type": "record", "name": f"{kind}_{digest}", "namespace": namespace, "fields": fields}


def schemas_folder() -> Path:
    """Return the folder ``schemas``: inside the package if it is installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_schemas"
    return installed if installed.is_dir() else package.parent / "schemas"


@cache
def _template(name: str) -> str:
    return (schemas_folder() / name).read_text(encoding="utf-8")


def _fixed(name: str) -> Any:
    return without("doc", json.loads(_template(name)))


def without(property: str, part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: without(property, value) for name, value in part.items() if name != property}
    if isinstance(part, list):
        return [without(property, value) for value in part]
    return part


def _fill(part: Any, places: dict[str, Any]) -> Any:
    """Insert definitions at their places: in full at the first one, by full name after that."""
    if isinstance(part, dict):
        return {name: value if name == "default" else _fill(value, places) for name, value in part.items()}
    if isinstance(part, list):
        return [_fill(value, places) for value in part]
    if not isinstance(part, str) or part not in places:
        return part
    definition = places[part]
    if isinstance(definition, dict):
        places[part] = f"{definition['namespace']}.{definition['name']}"
    return definition

"""Columns of a table to the Avro schema of its changes, and column names to Avro names and back.

Everything here is on the wire: a different schema or name for the same columns needs new golden files.
The fixed part of the schema is ``schemas/change.avsc``; only key and row records are made here.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import relay

MAX_AVRO_PRECISION = 38  # Spark refuses decimals with more digits
REST = "rest"  # type and field, in a typed DynamoDB row, of the attributes that are in no column

_DYNAMODB_KEY_TYPES = {"S": "string", "N": "string", "B": "bytes"}
_PLAIN_TYPES = {
    "string": "string",
    "bytes": "bytes",
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
}
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A primary key column: ``S``, ``N`` or ``B`` of DynamoDB, or a column type of an SQL table."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Column:
    """A row's column; `column_type` says which types there are."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What the changes of one table look like.

    ``key``: the full primary key, its first ``hash_columns`` columns being the hash key.
    ``row``: None where images are DynamoDB-typed JSON text, else the row's columns.
    """

    source: str
    table: str
    key: tuple[KeyColumn, ...]
    hash_columns: int
    row: tuple[Column, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.hash_columns <= len(self.key):
            raise ValueError(f"table {self.table}: {self.hash_columns} hash columns of {len(self.key)} key columns")
        for kind, columns in (("key", self.key), ("row", self.row or ())):
            names = [column.name for column in columns]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"table {self.table}: {kind} column {twice[0]!r} is there twice")


@dataclass(frozen=True, slots=True)
class Decimals:
    """``decimal(precision,scale)``: Avro decimal up to 38 digits, text above."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


def column_type(text: str) -> str | Decimals:
    """Read a column type; ValueError on an unknown one.

    ``string bytes boolean int long float double timestamp set json rest`` stand for themselves,
    ``decimal(p,s)`` becomes `Decimals`. ``set`` is a list of text in the order of its definition;
    ``json`` is one DynamoDB value of any type as its JSON, ``rest`` the JSON of what is in no column.
    """
    if text in _PLAIN_TYPES or text in ("timestamp", "set", "json", REST):
        return text
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if precision >= 1 and scale <= precision:
            return Decimals(precision, scale)
        raise ValueError(f"column type {text!r}: needs 1 or more digits, and no more decimals than digits")
    raise ValueError(f"column type {text!r} is none of {', '.join(_PLAIN_TYPES)}, decimal(p,s), timestamp, set")


def avro_type(text: str) -> Any:
    """Give the Avro type that carries a column type."""
    kind = column_type(text)
    if isinstance(kind, Decimals):
        if kind.precision > MAX_AVRO_PRECISION:
            return "string"
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if kind == "timestamp":
        return {"type": "long", "logicalType": "timestamp-micros"}
    if kind == "set":
        return {"type": "array", "items": "string"}
    return _PLAIN_TYPES.get(kind, "string")


_ILLEGAL = re.compile(r"[^A-Za-z0-9_]|^[0-9]|_(?=x)")
_ESCAPED = re.compile(r"_x([0-9A-F]{4,6})_")
_EMPTY = "_x_"


def escape(name: str) -> str:
    """Make any text an Avro name; `unescape` gives it back (X24: nothing merges or is renamed).

    Each illegal character, a leading digit and the underscore of a literal ``_x`` become ``_xHHHH_``, the
    code point in hexadecimal. The empty text becomes ``_x_``.
    """
    if not name:
        return _EMPTY
    return _ILLEGAL.sub(lambda found: f"_x{ord(found[0]):04X}_", name)


def unescape(name: str) -> str:
    """Give the text that `escape` was given."""
    if name == _EMPTY:
        return ""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


def change_schema(table: TableSchema) -> dict[str, Any]:
    """Build the Avro schema of ``relay.Change`` for one table; ValueError on a column it cannot have."""
    namespace = f"relay.{escape(table.source)}.{escape(table.table)}"
    key = _record("Key", namespace, [_key_field(column) for column in table.key])
    row: Any = "string"
    if table.row is not None:
        row = _record("Row", namespace, [_row_field(column) for column in table.row])
    places = {"relay.Key": key, "relay.Row": row, "relay.EventToken": _fixed("event_token.avsc")}
    schema: dict[str, Any] = _fill(_fixed("change.avsc"), places)
    return schema


def source_name(field: dict[str, Any]) -> str:
    """Give the original name of a field of a key or row record."""
    return str(field.get("source.name", field["name"]))


def _key_field(column: KeyColumn) -> dict[str, Any]:
    field: dict[str, Any] = {"name": escape(column.name), "source.name": column.name}
    if column.type in _DYNAMODB_KEY_TYPES:
        field["type"] = _DYNAMODB_KEY_TYPES[column.type]
        if column.type == "N":
            field["dynamodb"] = "N"
        return field
    if column.type in ("set", "json", REST):
        raise ValueError(f"key column {column.name!r} cannot be of type {column.type!r}")
    field["type"] = avro_type(column.type)
    field["relay.type"] = str(column_type(column.type))
    return field


def _row_field(column: Column) -> dict[str, Any]:
    return {
        "name": escape(column.name),
        "source.name": column.name,
        "type": ["null", avro_type(column.type)],
        "default": None,
        "relay.type": str(column_type(column.type)),
    }


def _record(kind: str, namespace: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    # The fingerprint that is on the wire leaves out logical types, scale and properties. The hash in
    # the name brings them back in: other types, other name, other fingerprint.
    text = json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return {"type": "record", "name": f"{kind}_{digest}", "namespace": namespace, "fields": fields}


def schemas_folder() -> Path:
    """Find ``schemas/``: inside the package when installed, beside it in a checkout."""
    package = Path(relay.__file__).resolve().parent
    installed = package / "_schemas"
    return installed if installed.is_dir() else package.parent / "schemas"


@cache
def _template(name: str) -> str:
    return (schemas_folder() / name).read_text(encoding="utf-8")


def _fixed(name: str) -> Any:
    return _without_doc(json.loads(_template(name)))


def _without_doc(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _without_doc(value) for name, value in part.items() if name != "doc"}
    if isinstance(part, list):
        return [_without_doc(value) for value in part]
    return part


def _fill(part: Any, places: dict[str, Any]) -> Any:
    """Put definitions in their places: whole at the first mention, by full name after that."""
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

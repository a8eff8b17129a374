"""Reads the documents of ``Decoder.reduced_changes``: what cache keys are computed from, as the JVM printed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from relay.cache.keys import CacheRules, ReducedChange
from relay.change import Operation
from relay.dynamodb.values import canonical_number
from relay.table import REST
from relay.token import EventToken, OriginToken
from spark_consumers.decode import BROKEN, Layout, RecordField

ChangeReader = Callable[[Mapping[str, Any]], ReducedChange]
"""Reads the ``c`` of a document."""

_ImageReader = Callable[[str], Mapping[str, Any] | None]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPERATIONS = {operation.value: operation for operation in Operation}


def change_reader(layout: Layout, rules: CacheRules) -> ChangeReader:
    """Return the reader of the changes of one layout."""
    columns = layout.columns
    missing = None if columns is None else rules.missing(layout.table, columns)
    names = [field.name for field in layout.key]
    kinds = _kinds_to_convert(layout.key)
    image = _image_reader(layout)

    def read(change: Mapping[str, Any]) -> ReducedChange:
        texts, old, new = change.get("key"), change.get("old"), change.get("new")
        key = None if texts is None else dict(zip(names, texts, strict=True))
        if kinds and key is not None:
            key = _convert(key, kinds)
        return ReducedChange(
            _OPERATIONS[change["op"]],
            layout.source,
            layout.table,
            key,
            None if old is None else image(old),
            None if new is None else image(new),
            _token(change.get("token")),
            missing,
        )

    return read


def _image_reader(layout: Layout) -> _ImageReader:
    if layout.row is None:
        return _item
    if layout.rest is None:  # an SQL row
        to_convert = _kinds_to_convert(layout.row)
        return (lambda text: _convert(orjson.loads(text), to_convert)) if to_convert else orjson.loads
    kinds = {field.name: field.column or "" for field in layout.row}

    def typed(text: str) -> Mapping[str, Any] | None:
        columns: dict[str, Any] = orjson.loads(text)
        undeclared = columns.pop(REST, {})
        if BROKEN in undeclared:
            return None
        return attributes(columns, kinds) | {name: orjson.loads(value) for name, value in undeclared.items()}

    return typed


def _item(text: str) -> Mapping[str, Any] | None:
    columns: dict[str, Any] = orjson.loads(text)
    if BROKEN in columns:
        return None
    return {name: orjson.loads(value) for name, value in columns.items()}


def _kinds_to_convert(fields: Iterable[RecordField]) -> dict[str, str]:
    """Return the kind of each column of an SQL row whose text in a cache key is not the text that the JVM prints."""
    found = {}
    for each in fields:
        kind = each.type.get("logicalType") if isinstance(each.type, dict) else each.type
        if each.column == "set" or kind in ("decimal", "float", "double"):
            found[each.name] = "set" if each.column == "set" else str(kind)
    return found


def _convert(columns: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: sql_value(kinds[name], printed) if name in kinds and printed is not None else printed
        for name, printed in columns.items()
    }


def _token(fields: Mapping[str, Any] | None) -> EventToken | None:
    if fields is None:
        return None
    origin = fields.get("origin")
    return EventToken(
        fields["timestamp"], fields["shard"], fields["position"], None if origin is None else OriginToken(**origin)
    )


def attributes(columns: Mapping[str, str], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the DynamoDB attributes of typed columns, given as the text that the JVM prints.

    A value then has the same text in a cache key whether its column is declared or not. ``kinds``: the column types.
    """
    return {name: _attribute(kinds[name], printed) for name, printed in columns.items()}


def sql_value(kind: str, printed: str) -> str | list[str]:
    """Return the value, for ``text``, of a column of an SQL row, given as the text that the JVM prints."""
    if kind == "set":
        members: list[str] = orjson.loads(printed)
        return members
    return canonical_number(repr(float(printed)) if kind in ("float", "double") else printed)


def _attribute(kind: str, printed: str) -> dict[str, Any]:
    if kind == "json":
        attribute: dict[str, Any] = orjson.loads(printed)
        return attribute
    if kind == "set":
        return {"SS": orjson.loads(printed)}
    if kind == "boolean":
        return {"BOOL": printed == "true"}
    if kind in ("string", "bytes"):
        return {"S" if kind == "string" else "B": printed}
    if kind == "double":
        return {"N": repr(float(printed))}  # Java prints some with more digits than needed
    if kind == "timestamp":
        since = datetime.fromisoformat(printed) - _EPOCH
        microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return {"N": f"{microseconds}E-6"}
    return {"N": printed}

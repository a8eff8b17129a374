"""Reduces changes to what cache keys are computed from.

They come from ``relay.avro.decode``. A value has the same text in a cache key whether its column is declared or not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from typing import Any

import orjson

from relay.avro.columns import shortest
from relay.avro.decode import token_of
from relay.cache.keys import ZERO_TIME, CacheRules, ReducedChange
from relay.change import Operation
from relay.dynamodb.values import canonical_number
from spark_consumers.records import Layout, RecordField

_Image = Mapping[str, Any] | None
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT = struct.Struct("<f")
_OPERATIONS = {operation.value: operation for operation in Operation}


def image_columns(layout: Layout, rules: CacheRules) -> frozenset[str]:
    """Return the columns of images that the cache keys of a layout need; none if its key columns are enough."""
    wanted = rules.columns(layout.table)
    if wanted <= {field.name for field in layout.key}:
        return frozenset()
    return wanted if layout.rest is None else wanted | {layout.rest.name}  # I6: it has what is not declared


def decoded_reader(layout: Layout, rules: CacheRules) -> Callable[[Mapping[str, Any]], ReducedChange]:
    """Return the reader of the decoded changes of one layout; it needs the ``image_columns`` of their images."""
    wanted = rules.columns(layout.table)
    key_converts = _converts(layout.key, wanted, is_sql=True)
    image = _decoded_image(layout, wanted) if image_columns(layout, rules) else lambda _: {}
    missing = None if layout.columns is None else rules.missing(layout.table, layout.columns)
    source, table = layout.source, layout.table

    def read(change: Mapping[str, Any]) -> ReducedChange:
        key, old, new = change["key"], change["old"], change["new"]
        return ReducedChange(
            _OPERATIONS[change["operation"]],
            source,
            table,
            _converted(key, key_converts) if key_converts and key is not None else key,
            None if old is None else image(old),
            None if new is None else image(new),
            token_of(change["token"]),
            missing,
        )

    return read


def _decoded_image(layout: Layout, wanted: Container[str]) -> Callable[[Any], _Image]:
    if layout.row is None:
        return _json_object
    rest = layout.rest
    converts = _converts(layout.row, wanted, is_sql=rest is None)
    if rest is None:
        return partial(_converted, converts=converts)

    def typed(row: Mapping[str, Any]) -> _Image:
        undeclared = _json_object(row[rest.name] or "{}")
        return None if undeclared is None else {**_converted(row, converts), **undeclared}

    return typed


def _json_object(text: str) -> _Image:
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _converts(
    fields: Iterable[RecordField], wanted: Container[str], *, is_sql: bool
) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return what makes a value for ``text`` of each wanted column whose Python value is not one."""
    converts = _SQL_CONVERTS if is_sql else _DYNAMODB_CONVERTS
    found = []
    for each in fields:
        # Numbers too long for an Avro decimal are text.
        kind = each.column or ""
        if kind.startswith("decimal") and each.type == "string":
            kind = "digits"
        if each.name in wanted and kind in converts:
            found.append((each.name, converts[kind]))
    return found


def _converted(row: Mapping[str, Any], converts: Iterable[tuple[str, Callable[[Any], Any]]]) -> Mapping[str, Any]:
    changed = {name: convert(row[name]) for name, convert in converts if row[name] is not None}
    return {**row, **changed} if changed else row


def _short(number: float) -> float:
    """Return the double with the shortest text of a 32-bit float."""
    return shortest(_FLOAT.pack(number)) if isfinite(number) else number


def _seconds(time: datetime) -> dict[str, str]:
    """Return the DynamoDB number of a time: its seconds since the epoch."""
    since = time - _EPOCH
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return {"N": f"{microseconds}E-6"}


def _zero_as_text(time: datetime) -> datetime | str:
    """Return a TIMESTAMP, the zero one as drivers show it: an application that reads it does not get the epoch."""
    return ZERO_TIME if time == _EPOCH else time


_SQL_CONVERTS: Mapping[str, Callable[[Any], Any]] = {
    "float": _short,
    "digits": canonical_number,
    "timestamp": _zero_as_text,
}
_DYNAMODB_CONVERTS: Mapping[str, Callable[[Any], Any]] = {"timestamp": _seconds, "json": orjson.loads}

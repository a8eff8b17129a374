"""Which cache keys a change touches, and when nobody can tell: plain functions over changes, no Spark.

The text of a value in a key is a contract with the applications that read the cache; the README of the consumers
says it. ``relay check`` warns about templates for which images are missing; here they cost the namespace.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import orjson

from relay.change import Operation
from relay.config import CacheConfig
from relay.config.template import Template
from relay.dynamodb.values import canonical_number
from relay.token import EventToken

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Which images say what a change touches: the row that was, and the row that is.
_NEEDED = {
    Operation.INSERT: ("new",),
    Operation.UPDATE: ("old", "new"),
    Operation.DELETE: ("old",),
}


class Touching(Protocol):
    """What the rules ask of a change; ``relay.change.Change`` has it.

    ``key``, ``old``, ``new``: by original column name. An image may be text, then it is DynamoDB-typed JSON.
    """

    @property
    def operation(self) -> Operation: ...
    @property
    def table(self) -> str: ...
    @property
    def key(self) -> Mapping[str, Any] | None: ...
    @property
    def old(self) -> Any: ...
    @property
    def new(self) -> Any: ...
    @property
    def token(self) -> EventToken | None: ...


@dataclass(slots=True)
class Touched:
    """A change, reduced to what its cache keys are made of."""

    operation: Operation
    table: str
    key: Mapping[str, Any] | None
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    token: EventToken | None


@dataclass(slots=True)
class Invalidations:
    """What to do to the cache. ``bumps``: why the whole namespace has to go, empty if it need not."""

    pairs: list[tuple[str, EventToken | None]] = field(default_factory=list)
    bumps: list[str] = field(default_factory=list)


class KeyTemplate(NamedTuple):
    template: Template
    columns: frozenset[str]


class Templates:
    """The cache keys of each table."""

    def __init__(self, cache: CacheConfig) -> None:
        self._of = {table: [_key_template(text) for text in texts] for table, texts in cache.keys.items()}

    def of(self, table: str) -> Sequence[KeyTemplate]:
        return self._of.get(table, ())

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns that the templates of ``table`` name."""
        return frozenset().union(*(each.columns for each in self.of(table)))


def _key_template(text: str) -> KeyTemplate:
    template = Template.parse(text)
    return KeyTemplate(template, frozenset(template.columns))


def invalidations(changes: Iterable[Touching], templates: Templates) -> Invalidations:
    """Return what the changes, those of an item in order, ask for. READ asks for nothing, TRUNCATE for all."""
    result = Invalidations()
    for change in changes:
        if change.operation is Operation.READ:
            continue
        if change.operation is Operation.TRUNCATE or change.key is None:
            result.bumps.append(f"{change.table} was truncated")
            continue
        try:
            keys = cache_keys(change, templates.of(change.table))
        except ValueError as error:
            # I6: some entry may hold what this change replaced, and nobody can say which.
            result.bumps.append(f"{change.table} {dict(change.key)}: {error}")
            continue
        token = change.token
        for key in keys:
            result.pairs.append((key, token))
    return result


def cache_keys(change: Touching, templates: Sequence[KeyTemplate]) -> list[str]:
    """Return the cache keys a change touches: those of the row that was and of the row that is.

    A row without one of the columns has no such key. ValueError if an image that is needed is missing, or holds
    in such a column what cannot stand in a key.
    """
    key: dict[str, str] = {}
    for name, value in (change.key or {}).items():
        shown = text(value)
        if shown is not None:
            key[name] = shown
    rows: list[dict[str, str]] | None = None
    found: dict[str, None] = {}
    for template, columns in templates:
        if columns <= key.keys():
            found[template.render(key)] = None
            continue
        if rows is None:
            wanted = frozenset().union(*(each.columns for each in templates))
            rows = [{**row, **key} for row in _rows(change, wanted)]
        for row in rows:
            if columns <= row.keys():
                found[template.render(row)] = None
    return list(found)


def _rows(change: Touching, wanted: Iterable[str]) -> list[dict[str, str]]:
    """Return the wanted columns of the images that ``change`` needs, as text; null and absent ones left out."""
    rows = []
    for name in _NEEDED[change.operation]:
        raw = change.old if name == "old" else change.new
        if raw is None:
            raise ValueError(f"its cache keys need columns of the {name} image, which it does not carry")
        image = orjson.loads(raw) if isinstance(raw, (str, bytes)) else raw
        texts = ((column, text(image[column])) for column in wanted if image.get(column) is not None)
        rows.append({column: shown for column, shown in texts if shown is not None})
    return rows


def text(value: Any) -> str | None:
    """Return a column's value as it stands in a cache key; None for a null of DynamoDB.

    Text as it is, DynamoDB's numbers in canonical form, binary in base64. ValueError for lists, sets and maps.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, Decimal)):
        return str(value)
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, raw),) = value.items()
        if kind == "NULL":
            return None
        if kind == "N" and isinstance(raw, str):
            return canonical_number(raw)
        if kind in ("S", "B", "BOOL"):
            return text(raw)
    raise ValueError(f"{str(value)[:100]} cannot stand in a cache key")


def attributes(columns: Mapping[str, str], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return texts of typed columns as the attributes of DynamoDB they come from.

    So that a value has one text in a cache key, whether its column is declared or not. ``kinds``: the column types.
    """
    return {name: _attribute(kinds[name], shown) for name, shown in columns.items()}


def sql_value(kind: str, shown: str) -> str | list[str]:
    """Return what ``text`` is to be asked of for a column of an SQL row, of which the JVM has printed ``shown``."""
    if kind == "set":
        members: list[str] = orjson.loads(shown)
        return members
    return canonical_number(repr(float(shown)) if kind in ("float", "double") else shown)


def _attribute(kind: str, shown: str) -> dict[str, Any]:
    if kind == "json":
        found: dict[str, Any] = orjson.loads(shown)
        return found
    if kind == "set":
        return {"SS": orjson.loads(shown)}
    if kind == "boolean":
        return {"BOOL": shown == "true"}
    if kind in ("string", "bytes"):
        return {"S" if kind == "string" else "B": shown}
    if kind == "double":
        return {"N": repr(float(shown))}  # Java prints some with more digits than they need
    if kind == "timestamp":
        since = datetime.fromisoformat(shown) - _EPOCH
        whole = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return {"N": f"{whole}E-6"}
    return {"N": shown}

"""The cache keys that changes invalidate, and the reasons to invalidate a whole namespace: pure functions.

Applications build the same keys: the text of a value in a key is a contract, ``deploy/docs/reference/cache_keys.md``.
"""

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, SupportsBytes

import orjson

from relay.change import Operation
from relay.config import CacheConfig, SourceConfig
from relay.config.template import Template
from relay.dynamodb.values import canonical_number
from relay.token import EventToken

_TEXTS = 2
"""The version of ``text``. Raise it with any change of a text: entries with the old texts are then invalidated."""

ZERO_TIME = "0000-00-00 00:00:00"
"""The text of a zero TIMESTAMP or DATETIME, however many decimals it shows: a TIMESTAMP is relayed without any."""

# The images whose cache keys a change invalidates.
_IMAGES = {
    Operation.INSERT: ("new",),
    Operation.UPDATE: ("old", "new"),
    Operation.DELETE: ("old",),
    Operation.READ: ("new",),
}


@dataclass(slots=True)
class ReducedChange:
    """A change reduced to the parts from which its cache keys are computed.

    ``key``, ``old``, ``new``: by original column name. ``missing``: the answer of `CacheRules.missing` for its table's
    columns.
    """

    operation: Operation
    source: str
    table: str
    key: Mapping[str, Any] | None
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    token: EventToken | None
    missing: str | None = None


@dataclass(slots=True)
class Invalidations:
    """What to invalidate: (cache key, token) ``pairs``, and for each reason in ``bumps`` the whole namespace."""

    pairs: list[tuple[str, EventToken | None]] = field(default_factory=list)
    bumps: dict[str, None] = field(default_factory=dict)


class KeyTemplate(NamedTuple):
    template: Template
    columns: frozenset[str]


class CacheRules:
    """The rules for what changes invalidate: the cache keys of each of the ``tables``, and the ``sources``."""

    def __init__(self, cache: CacheConfig, sources: Iterable[SourceConfig]) -> None:
        self._by_table = {table: [key_template(text) for text in texts] for table, texts in cache.keys.items()}
        self.tables = frozenset(self._by_table)
        complete = {source.name: source.traits.has_complete_streams for source in sources}
        self.sources = frozenset(complete)
        # The other sources, such as a copy of Vitess, may begin while the cache is in use, and nothing shows what
        # changed before: a READ may be the only sign of a change.
        self.with_complete_streams = frozenset(name for name in complete if complete[name])

    @property
    def keys(self) -> str:
        """Identifies the cache keys: it changes with the templates, and with the rules for texts of values."""
        templates = {table: sorted(each.template.text for each in of) for table, of in self._by_table.items() if of}
        return blake2b(orjson.dumps([_TEXTS, templates], option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()

    def of_table(self, table: str) -> Sequence[KeyTemplate]:
        return self._by_table.get(table, ())

    def columns(self, table: str) -> frozenset[str]:
        return frozenset().union(*(each.columns for each in self.of_table(table)))

    def missing(self, table: str, columns: Collection[str]) -> str | None:
        """Return why some cache keys of ``table`` cannot be computed if these are all its columns; None if all can."""
        for template, wanted in self.of_table(table):
            if absent := sorted(wanted.difference(columns)):
                return (
                    f"{table} has no column `{absent[0]}`, which the cache key {template.text} needs: name another "
                    "column in `cache.keys`, or remove the key"
                )
        return None


@lru_cache(maxsize=1024)
def key_template(text: str) -> KeyTemplate:
    template = Template.parse(text)
    return KeyTemplate(template, frozenset(template.columns))


def invalidations(changes: Iterable[ReducedChange], rules: CacheRules) -> Invalidations:
    """Return what changes invalidate, an item's in order. A READ counts where it may be the only sign of a change."""
    result = Invalidations()
    for change in changes:
        is_read = change.operation is Operation.READ
        if is_read and change.source in rules.with_complete_streams:
            continue
        if change.key is None or change.operation is Operation.TRUNCATE:
            # I6: nothing tells which rows a truncation removed, or which disappeared before they were copied.
            result.bumps[f"{change.table} was {'copied' if is_read else 'truncated'}"] = None
            continue
        templates = rules.of_table(change.table)
        try:
            keys = cache_keys(change, templates)
        except ValueError as error:
            # I6: an entry may contain the row that this change replaced, whose key is unknown.
            result.bumps[f"{change.table} {dict(change.key)}: {error}"] = None
            continue
        if change.missing:
            result.bumps[change.missing] = None  # I6: an entry may have the row under a key that it no longer has
        if is_read and not all(columns <= change.key.keys() for _, columns in templates):
            # I6: the row changed while no stream recorded it, so its former values are unknown.
            result.bumps[f"{change.table} is being copied, and its cache keys do not consist of its key alone"] = None
        result.pairs += [(key, change.token) for key in keys]  # the token of a READ is null, so its order is unknown
    return result


def cache_keys(change: ReducedChange, templates: Sequence[KeyTemplate]) -> list[str]:
    """Return the cache keys of the old and the new row of a change.

    A row without a column of a template has no key by it. Raises ``ValueError`` if a needed image is missing, or has a
    value that cannot be part of a key.
    """
    key = _texts(change.key or {}, change.key or {})
    rows: list[dict[str, str]] | None = None
    found: dict[str, None] = {}
    for template, columns in templates:
        if columns <= key.keys():
            found[template.render(key)] = None
            continue
        if rows is None:
            wanted = frozenset().union(*(each.columns for each in templates))
            rows = [{**row, **key} for row in _rows(change, wanted)]
        found |= {template.render(row): None for row in rows if columns <= row.keys()}
    return list(found)


def _rows(change: ReducedChange, wanted: Iterable[str]) -> list[dict[str, str]]:
    """Return the wanted columns of the old and the new row as text."""
    images = {name: getattr(change, name) for name in _IMAGES[change.operation]}
    for name, image in images.items():
        if image is None:
            raise ValueError(f"this change has no {name} image, but the cache keys need its columns")
    return [_texts(image, wanted) for image in images.values()]


def _texts(row: Mapping[str, Any], columns: Iterable[str]) -> dict[str, str]:
    """Return the text of these columns, except null or absent ones."""
    given = (column for column in columns if row.get(column) is not None)
    return {column: part for column in given if (part := text(row[column])) is not None}


def gap_bump(record: bytes, sources: Collection[str]) -> str | None:
    """Return why a record of the gaps topic invalidates the namespace; None for a gap outside ``sources`` (I9)."""
    try:
        gap = orjson.loads(record)
        source, reason = gap["source"], gap.get("reason")
        if "table" in gap:  # the record of its statement invalidates the cache, if that has the table
            return None
        if source is not None and source not in frozenset(sources):  # TypeError for a list
            return None
    except (ValueError, TypeError, KeyError):
        # Changes were lost, even if the record that reports it cannot be read.
        source, reason = None, "the gap record cannot be read"
    return f"changes of {source or 'an unknown source'} were lost: {reason}"


def key_text(template: str, row: Mapping[str, Any]) -> str:
    """Return the cache key of a row, as the consumer of the cache computes it.

    ``template``: a template as in ``cache.keys``. ``row``: by column name, at least the template's columns, as a driver
    or boto3 returns them, or as DynamoDB's typed values. Raises ``ValueError`` if the row has no such key, because a
    column is null or absent, or if a value has no known text. Lists, sets and maps have none, nor do DATETIME and TIME
    columns as Python objects, which do not say how many decimals the database prints: select them as text.

        >>> key_text("order:{customer}:{total}", {"customer": "ada", "total": Decimal("19.90")})
        'order:ada:19.9'
    """
    parsed, columns = key_template(template)
    parts = _texts(row, columns)
    for column in columns - parts.keys():
        raise ValueError(f"there is no cache key {template} for a row without a value of `{column}`")
    return parsed.render(parts)


def row_keys(templates: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the distinct keys of rows that have all columns. Raises ``ValueError`` for a value without a text."""
    found: dict[str, None] = {}
    for row in rows:
        for template, columns in map(key_template, templates):
            parts = _texts(row, columns)
            if columns <= parts.keys():
                found[template.render(parts)] = None
    return list(found)


def text(value: Any) -> str | None:
    """Return the text of a column's value in a cache key, or None for DynamoDB's null.

    Text is unchanged, numbers are canonical, binary is base64, times that have an offset are in UTC to the microsecond.
    A zero time has no decimals. Raises ``ValueError`` for lists, sets, maps and other times.
    """
    if isinstance(value, str):
        # Tested first for speed: most texts end there.
        is_zero = value[:1] == "0" and value.startswith(ZERO_TIME) and value[len(ZERO_TIME) :].rstrip("0") in ("", ".")
        return ZERO_TIME if is_zero else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)  # I6: the member of an enum has another text
    if isinstance(value, (Decimal, float)):
        return canonical_number(float.__repr__(value) if isinstance(value, float) else str(value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, raw),) = value.items()
        if kind == "NULL":
            return None
        if kind == "N" and isinstance(raw, str):
            return canonical_number(raw)
        if kind in ("S", "B", "BOOL"):
            return text(raw)
    if isinstance(value, (bytearray, memoryview, SupportsBytes)):
        return b64encode(bytes(value)).decode()
    raise ValueError(f"{str(value)[:100]} cannot be part of a cache key ({type(value).__name__})")

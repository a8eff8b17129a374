"""Rows of a source, the copy or the log in one form: equal rows are equal however their values are written."""

import json
import re
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, NamedTuple

import orjson

from relay.avro.columns import microseconds
from relay.avro.schema import change_schema
from relay.change import Uncarriable
from relay.dynamodb.values import canonical_item, canonical_number, canonical_value
from relay.errors import RelayError
from relay.mysql_dialect.charsets import NotText
from relay.table import Column, KeyColumn, TableSchema
from relay.types.columns import EPOCH, REST, ColumnKind, column_type
from spark_consumers.kept_rows import KeptRow
from spark_consumers.records import Layout

ComparedKey = tuple[str, ...]  # the key columns as text: numbers are canonical, binary is base64, times are in UTC

_PADDING = re.compile(r"\.0*$|(\.\d*[1-9])0+$")
_NOT_SHOWN: list[str | None] = ["not shown, because of `protect`"] * 2
_SHOWN = 300  # characters of a value that a message shows
_MEMORY = 8 << 10  # KiB for SQLite's cache of pages, and the same for the rows that it sorts at once


class ComparedRow(NamedTuple):
    """A row. ``values``: by `ComparedTable.columns`; None if the stored row is unknown or the true one not carried."""

    key: ComparedKey
    values: tuple[Any, ...] | None
    incomplete: bool = False
    event_id: str = ""

    @property
    def digest(self) -> str:
        """A text that is equal for equal values; empty if the row has none."""
        if self.values is None:
            return ""
        return blake2b(orjson.dumps(self.values, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def are_alike(kept: str | None, truth: str | None) -> bool:
    """Whether the stored row equals the source's. Takes the digests of both rows, None for a missing row."""
    # I8: a row that cannot be carried counts as absent. If only a stub came, the row may no longer exist.
    return truth != "" and (kept or None) == truth


class ComparedTable:
    """The columns by which a table's rows are compared. ``columns``: those outside the key; one for an image."""

    def __init__(self, schema: TableSchema) -> None:
        self.source, self.table, self.key = schema.source, schema.table, schema.key
        self.layout = Layout.of(change_schema(schema))
        self._protected = dict(schema.protected).keys()
        in_key = {column.name for column in schema.key}
        self._is_item = schema.row is None
        # A complete DynamoDB item is compared like the attributes that have no column of their own.
        row = schema.row or (Column("item", REST),)
        self.columns = [column for column in row if self._is_item or column.name not in in_key]

    @property
    def wanted(self) -> list[str | None]:
        """The columns as ``kept_rows`` takes them."""
        return [None if self._is_item else column.name for column in self.columns]

    def of_source(self, key: Mapping[str, Any], image: Any) -> ComparedRow:
        """Return a source's row, without values if they cannot be carried. ``key``, ``image``: parts of a change."""
        values = None
        if not isinstance(image, Uncarriable):
            values = self._values([image] if self._is_item else [image[column.name] for column in self.columns])
        return ComparedRow(self.key_of(key), values)

    def of_kept(self, row: KeptRow) -> ComparedRow:
        values = None if row.values is None else self._values(row.values)
        return ComparedRow(self._key(row.key), values, row.incomplete, row.event_id)

    def key_of(self, key: Mapping[str, Any]) -> ComparedKey:
        """Return the key of a change, as the source or the topic has it. Raises ``RelayError`` if it is not text."""
        parts = [key[column.name] for column in self.key]
        if wrong := next((part for part in parts if isinstance(part, NotText)), None):
            raise RelayError(f"table {self.table}: the key of a row cannot be compared: {wrong}")
        return self._key(parts)

    def shown(self, key: ComparedKey) -> dict[str, str]:
        return {column.name: part for column, part in zip(self.key, key, strict=True)}

    def differences(self, kept: ComparedRow | None, truth: ComparedRow | None) -> dict[str, list[str | None]]:
        """Return what differs, by column or attribute: the stored and the true value. Empty without both rows."""
        found: dict[str, list[str | None]] = {}
        if kept is None or kept.values is None or truth is None or truth.values is None:
            return found
        for column, *both in zip(self.columns, kept.values, truth.values, strict=True):
            if both[0] == both[1]:
                continue
            if column.type == REST and all(isinstance(value, Mapping) for value in both):
                names = sorted({name for value in both for name in value})
                parts = {name: [value.get(name) for value in both] for name in names}
                found |= {name: [*map(_shown, pair)] for name, pair in parts.items() if pair[0] != pair[1]}
            else:
                found[column.name] = [*map(_shown, both)]
        return {name: pair if name not in self._protected else _NOT_SHOWN for name, pair in found.items()}

    def _key(self, parts: Sequence[Any]) -> ComparedKey:
        return tuple(str(_canonical(column, part)) for column, part in zip(self.key, parts, strict=True))

    def _values(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(_canonical(column, value) for column, value in zip(self.columns, values, strict=True))


def _canonical(column: Column | KeyColumn, value: Any) -> Any:
    """Return the canonical form of a value, which may be the source's value, a text, or a value from the log's JSON."""
    if value is None:
        return None
    try:
        is_document = column.sql == "json"
        form = _document if is_document else _OF_ATTRIBUTES.get(column.type) or FORMS[column_type(column.type).kind]
        found = form(value)
    except (ValueError, TypeError, AttributeError):
        return f"{value} (not of type {column.type})"
    return _PADDING.sub(r"\1", found) if column.has_decimals else found


def _number(value: Any) -> str:
    return canonical_number(str(value))


def _float(value: Any) -> str:
    return repr(float(value) + 0.0)  # -0 is 0


def _bytes(value: Any) -> str:
    return value if isinstance(value, str) else b64encode(value).decode()


def _time(value: Any) -> str:
    if isinstance(value, str):
        return value
    value = microseconds(value)
    return f"{(EPOCH + timedelta(microseconds=value)).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _document(value: str) -> Any:
    """Return a form of an SQL JSON document that is equal for equal documents, however they are written."""
    number = lambda text: {"N": canonical_number(text)}  # noqa: E731
    return json.loads(value, parse_int=number, parse_float=number, object_hook=lambda found: {"M": found})


def _parsed(value: Any) -> Any:
    return orjson.loads(value) if isinstance(value, str) else value


FORMS: Mapping[ColumnKind, Callable[[Any], Any]] = {
    **dict.fromkeys((ColumnKind.INT, ColumnKind.LONG, ColumnKind.DECIMAL), _number),
    **dict.fromkeys((ColumnKind.FLOAT, ColumnKind.DOUBLE), _float),
    ColumnKind.STRING: str,
    ColumnKind.BYTES: _bytes,
    ColumnKind.BOOLEAN: lambda value: str(value).lower(),
    ColumnKind.TIMESTAMP: _time,
    ColumnKind.SET: lambda value: sorted(_parsed(value)),
    ColumnKind.JSON: lambda value: canonical_value(_parsed(value)),
    ColumnKind.REST: lambda value: canonical_item(_parsed(value)),
}
"""The function that makes the compared form of a value, for each kind of column."""
_OF_ATTRIBUTES: Mapping[str, Callable[[Any], Any]] = {"S": str, "N": _number, "B": _bytes}


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


class DigestPair(NamedTuple):
    """The digests of one key, None where there is no row. ``is_twice``: whether several rows of the key are stored."""

    key: ComparedKey
    kept: str | None
    truth: str | None
    is_twice: bool = False


class NoRoom(RelayError):
    """The disk is full."""


def digest_pairs(kept: Iterable[ComparedRow], truth: Iterable[ComparedRow]) -> Iterator[DigestPair]:
    """Yield a pair for each key on either side, whose last row counts. Raises ``NoRoom``."""
    with (
        TemporaryDirectory(prefix="relay-verify-") as folder,
        closing(sqlite3.connect(Path(folder, "rows"), isolation_level=None)) as rows,  # I11
    ):
        try:
            spare = gettempdir().replace("'", "''")
            rows.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE;"
                f"PRAGMA temp_store_directory = '{spare}'; PRAGMA cache_size = -{_MEMORY};"
                "CREATE TABLE digests (key BLOB, side INTEGER, digest TEXT); BEGIN;"
            )
            for side, of_side in enumerate((kept, truth)):
                lines = ((orjson.dumps(row.key), side, row.digest) for row in of_side)
                rows.executemany("INSERT INTO digests VALUES (?, ?, ?)", lines)
            found = rows.execute("SELECT key, side, digest FROM digests ORDER BY key, rowid")
            for key, of_key in groupby(found, itemgetter(0)):
                rows_of_key = [(side, digest) for _, side, digest in of_key]
                sides = dict(rows_of_key)
                is_twice = sum(side == 0 and digest != "" for side, digest in rows_of_key) > 1
                yield DigestPair(tuple(orjson.loads(key)), sides.get(0), sides.get(1), is_twice)
        except sqlite3.OperationalError as error:
            raise NoRoom(
                f"cannot sort the compared rows in {folder}: {error}: set TMPDIR to a folder with more space"
            ) from error

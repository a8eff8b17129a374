"""Functions on rows, made once per layout of a table: images, keys, keys as bytes, and conditions that find rows."""

import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from relay.change import TO_CONTINUE, Change, Uncarriable, event_ids, refusal
from relay.config.protection import NOT_SHOWN
from relay.errors import RelayError
from relay.mysql_dialect.catalog import quoted
from relay.mysql_dialect.charsets import NotText
from relay.mysql_dialect.tables import WITHOUT, Row, Table
from relay.table import KeyColumn
from relay.types.columns import EPOCH, ColumnKind, column_type
from relay.types.sql import Form, defined

KEYS = 200  # how many keys one statement looks for
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_TEXTS = (Form.TEXT, Form.ENUM, Form.TIME)
_BYTES = (Form.PADDED, Form.BYTES)
_ZERO = "1970-01-01T00:00:00.000000Z"  # also stands for the zero TIMESTAMP


class RowMapper:
    """Functions for a table's rows. ``identity``: the key as bytes. ``read_id``: the event id of a copied row."""

    def __init__(self, table: Table, shard: str, source: str) -> None:
        self.table = table
        self.image = imager(table)
        self.key = keyer(table)
        self.identity = identifier(table)
        self.event_id = event_ids(shard, table.name)
        self.read_id = event_ids(source, table.name)


def imager(table: Table) -> Callable[[Row], dict[str, Any] | Uncarriable]:
    """Return the function that turns a row into its image, a dict by published column if it can be carried."""
    values_of = _by_column(table)

    def image(row: Row) -> dict[str, Any] | Uncarriable:
        found = values_of(row)
        if NotText not in map(type, found.values()):  # I8
            return found
        name, value = next(each for each in found.items() if type(each[1]) is NotText)
        return Uncarriable(found, f"column {name!r}: {NOT_SHOWN if table.schema.protected else value}")

    return image


def require_carried(table: Table, change: Change) -> None:
    """Raise ``RelayError`` for a change that cannot be carried, if ``on_unencodable`` refuses it.

    Readers call it: what a publisher refuses ends the relay.
    """
    for image in (change.old, change.new):
        if isinstance(image, Uncarriable) and table.is_strict:
            raise RelayError(f"{refusal(change, image.reason)}. {TO_CONTINUE}")


def _by_column(table: Table) -> Callable[[Row], dict[str, Any]]:
    published, names = {column.name for column in table.schema.row or ()}, table.names
    if not table.replaced and published.issuperset(names):
        return lambda row: dict(zip(names, row, strict=True))
    columns = [(name, table.replaced.get(name)) for name in names]

    def image(row: Row) -> dict[str, Any]:
        return {
            name: value if replaced is None or value is None else replaced(value)
            for (name, replaced), value in zip(columns, row, strict=True)
            if name in published
        }

    return image


def keyer(table: Table) -> Callable[[Row], dict[str, Any]]:
    columns = [
        (column.name, at, column.type == ColumnKind.TIMESTAMP)
        for column, at in zip(table.schema.key, table.key, strict=True)
    ]
    return lambda row: {
        name: EPOCH + timedelta(microseconds=row[at]) if is_time else row[at] for name, at, is_time in columns
    }


def identifier(table: Table) -> Callable[[Row], bytes]:
    """Return the function that makes the key of a row bytes, so that different keys are different bytes."""

    def identity(row: Row) -> bytes:
        try:
            parts = [_AS_BYTES[type(row[at])](row[at]) for at in table.key]
        except KeyError:
            values = {table.names[at]: row[at] for at in table.key}
            wrong = next(value for value in values.values() if type(value) not in _AS_BYTES)
            raise RelayError(
                f"source {table.schema.source}: {values!r} cannot be a key of {table.name}: {_said(wrong)} cannot be "
                f"part of a key. Nothing was skipped. Name other columns that identify a row, as `key: {{{table.name}: "
                f"[...]}}`, or {WITHOUT}"
            ) from None
        return parts[0] if len(parts) == 1 else b"".join([len(part).to_bytes(4, "big") + part for part in parts])

    return identity


def _said(value: Any) -> str:
    return f"{value}, so it" if isinstance(value, NotText) else repr(value)


_AS_BYTES: dict[type, Callable[[Any], bytes]] = {
    int: lambda value: b"%d" % value,
    str: str.encode,
    bytes: bytes,
    float: lambda value: repr(value).encode(),
    Decimal: lambda value: f"{value:f}".encode(),
}


class PublishedRows:
    """``types``: by column, its definition. ``in_utc``: whether the sessions of the statements are."""

    def __init__(self, table: Table, types: Mapping[str, str], *, in_utc: bool) -> None:
        self.table = table
        self._image = imager(table)
        self._forms = {name: defined(definition).type.form for name, definition in types.items()}
        self._in_utc = in_utc

    def of(self, row: Row) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the key and the image that a change has of a row; nothing if the row is not published."""
        table = self.table
        if table.wanted is None or table.wanted(row):
            columns = zip(table.schema.key, table.key, strict=True)
            yield {column.name: row[at] for column, at in columns}, self._image(row)

    def conditions(self, keys: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yield conditions that the rows with ``keys``, and perhaps others, meet. Keys are texts, binary in base64."""
        for at in range(0, len(keys), KEYS):
            yield " OR ".join(map(self._is_row_of, keys[at : at + KEYS]))

    def _is_row_of(self, key: Sequence[str]) -> str:
        """Return a condition that the row with this key meets; a column's is left out if it may not be exact."""
        columns = zip(self.table.schema.key, key, strict=True)
        conditions = [condition for column, part in columns if (condition := self._equals(column, part))]
        return f"({' AND '.join(conditions) or 'true'})"

    def _equals(self, column: KeyColumn, part: str) -> str:
        name, form = quoted(column.name), self._forms[column.name]
        if column_type(column.type).family == "number":
            return f"{name} = {part}" if _NUMBER.fullmatch(part) else "false"
        if form in _BYTES:
            return f"{name} = X'{b64decode(part).hex()}'"
        if form is Form.TIMESTAMP and self._in_utc and part != _ZERO:
            return _has_text(name, part.replace("T", " ").removesuffix("Z"))
        return _has_text(name, part) if form in _TEXTS else ""


def _has_text(name: str, text: str) -> str:
    # The server converts a literal to the character set of the column, so that it finds it by the index.
    return f"{name} = _utf8mb4 X'{text.encode().hex()}'"

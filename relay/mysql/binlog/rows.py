"""Decodes row events to values (``relay.types.sql``), or describes them to the compiled core, which decodes most."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from relay.avro.compiled_fields import compiled_fields
from relay.mysql.binlog import binary_json, table_map, values
from relay.mysql.binlog.table_map import BadTableMap, ColumnLayout, TableMap, UnfitColumn
from relay.mysql_dialect.charsets import BINARY, decoder, is_utf8, text_reader
from relay.mysql_dialect.compiled_changes import Stored, compiled_rows
from relay.mysql_dialect.printed import REMEMBERED, chosen
from relay.mysql_dialect.tables import Row, Table
from relay.table import Column
from relay.types.columns import MAX_AVRO_PRECISION
from relay.types.sql import Form, detail_of, named

if TYPE_CHECKING:
    from relay.native._core import CompiledRows

Change = tuple[Row | None, Row | None]  # a row before and after a change: None before an insert and after a delete

_INTEGERS = {
    table_map.TINY: ("tinyint", 1),
    table_map.SHORT: ("smallint", 2),
    table_map.INT24: ("mediumint", 3),
    table_map.LONG: ("int", 4),
    table_map.LONGLONG: ("bigint", 8),
}
_BLOBS = (table_map.BLOB, table_map.BLOB_COMPRESSED)
_TEXTS = (table_map.VARCHAR, table_map.VAR_STRING, table_map.VARCHAR_COMPRESSED, table_map.STRING)
_TIMES: dict[int, tuple[str, int, Callable[[int], Callable[[bytes], Any]]]] = {
    table_map.TIMESTAMP2: ("timestamp", 4, values.timestamp_reader),
    table_map.DATETIME2: ("datetime", 5, values.datetime_reader),
    table_map.TIME2: ("time", 3, values.time_reader),
}
_DOUBLE = struct.Struct("<d")

_unsigned = partial(int.from_bytes, byteorder="little")
_signed = partial(int.from_bytes, byteorder="little", signed=True)


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """A column's reader. ``base``: its type. ``form``: how the compiled core reads it. ``members``: an ENUM's members.

    ``size``: bytes of a value, or of the length before it if ``of_length``. ``decode``: returns the value of its bytes.
    """

    base: str
    form: str
    size: int
    decode: Callable[[bytes], Any]
    of_length: bool = False
    members: Sequence[str] = ()

    def read(self, buffer: bytes, at: int) -> tuple[Any, int]:
        """Return the value at ``at``, which is not NULL, and the place after it."""
        end = at + self.size
        if self.of_length:
            at, end = end, end + int.from_bytes(buffer[at:end], "little")
        return self.decode(buffer[at:end]), end

    def stored(self, column: ColumnLayout) -> Stored:
        width = column.precision if self.form == "decimal" else column.width
        return self.form, self.size, width, column.decimals, self.members


def _column_reader(column: ColumnLayout) -> ColumnReader:
    kind = column.kind
    if kind in _INTEGERS:
        base, size = _INTEGERS[kind]
        form, decode = ("unsigned", _unsigned) if column.unsigned else ("signed", _signed)
        return ColumnReader(base, form, size, decode)
    if kind in _TEXTS or kind in _BLOBS:
        return _text(column)
    if kind == table_map.NEWDECIMAL:
        digits = column.precision, column.decimals
        form, read = ("decimal" if column.precision <= MAX_AVRO_PRECISION else "other"), values.decimal_reader
        return ColumnReader("decimal", form, values.decimal_size(*digits), values.remembering(read, *digits))
    if kind == table_map.FLOAT:
        return ColumnReader("float", "other", 4, values.float_of)
    if kind == table_map.DOUBLE:
        return ColumnReader("double", "double", 8, lambda stored: _DOUBLE.unpack(stored)[0])
    if kind == table_map.ENUM:
        members = _decoded(column)
        texts = ("", *members)  # the server stores 0 for a text that is not a member
        return ColumnReader("enum", "enum", _length(column), lambda stored: texts[_unsigned(stored)], members=members)
    if kind == table_map.SET:
        members = _decoded(column)
        choose = lru_cache(REMEMBERED)(lambda stored: chosen(members, _unsigned(stored)))
        return ColumnReader("set", "other", column.size, choose)
    if kind == table_map.BIT:
        return ColumnReader("bit", "bits", column.size, bytes)
    if kind in (table_map.GEOMETRY, table_map.VECTOR):
        base = "geometry" if kind == table_map.GEOMETRY else "vector"
        return ColumnReader(base, "bytes", _length(column), bytes, of_length=True)
    if kind == table_map.JSON:
        return ColumnReader("json", "other_text", _length(column), binary_json.text, of_length=True)
    return _time(column)


def _time(column: ColumnLayout) -> ColumnReader:
    kind, decimals = column.kind, column.decimals
    if kind in (table_map.DATE, table_map.NEWDATE):
        return ColumnReader("date", "date", 3, values.date)
    if kind == table_map.YEAR:
        return ColumnReader("year", "year", 1, values.year)
    if kind not in _TIMES or decimals > 6:
        raise UnfitColumn(f"its column {column.name} has the unknown type {kind}")
    base, size, reader = _TIMES[kind]
    # Times with milliseconds rarely repeat.
    read = values.remembering(reader, decimals) if decimals < 3 else reader(decimals)
    return ColumnReader(base, base, size + values.fraction_size(decimals), read)


def _text(column: ColumnLayout) -> ColumnReader:
    is_blob, is_fixed = column.kind in _BLOBS, column.kind == table_map.STRING
    decode: Callable[[bytes], Any] = bytes
    if column.charset == BINARY:
        base, form = "blob" if is_blob else "varbinary", "bytes"
        if is_fixed:
            width = column.width
            base, form, decode = "binary", "padded", lambda stored: stored.ljust(width, b"\0")  # zeros are not stored
    else:
        base = "text" if is_blob else "char" if is_fixed else "varchar"
        form, decode = "text" if is_utf8(column.charset) else "other_text", text_reader(column.charset)
    if column.kind in (table_map.VARCHAR_COMPRESSED, table_map.BLOB_COMPRESSED):
        inner = decode
        form, decode = "other_text", lambda stored: inner(values.decompressed(stored))
    return ColumnReader(base, form, _length(column), decode, of_length=True)


def _length(column: ColumnLayout) -> int:
    if not 1 <= column.size <= 4:
        raise BadTableMap(f"its column {column.name} has a length of {column.size} bytes")
    return column.size


def _decoded(column: ColumnLayout) -> tuple[str, ...]:
    if column.charset == BINARY:
        raise UnfitColumn(f"its column {column.name} is an ENUM or SET with binary members")
    return tuple(map(decoder(column.charset), column.members))


def columns_of(table: TableMap) -> list[Column]:
    """Return the columns with the types of their values. Raises ``BadTableMap`` for one that cannot be relayed."""
    carried = []
    for column in (column for at, column in enumerate(table.columns) if at not in table.hidden):
        reader = _column_reader(column)
        base = named(reader.base)
        kind = base.carried(unsigned=column.unsigned, precision=column.precision, scale=column.decimals)
        members = _decoded(column) if base.form is Form.SET else reader.members
        detail = detail_of(base, unsigned=column.unsigned, decimals=column.decimals, bits=column.bits, members=members)
        carried.append(Column(column.name, kind, base.told, detail=detail))
    return carried


class UnreadableColumn(ValueError):
    """A value cannot be read. ``where``: the column. The text also shows bytes, which may belong to other columns."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where


class RowDecoder:
    """Reads the row events of one layout. ``inserts``, ``deletes``, ``updates`` raise ValueError for bad bytes.

    They raise `UnreadableColumn` if the fault is in a column.
    """

    def __init__(self, table: TableMap) -> None:
        self.table = table
        self.name = f"{table.database}.{table.table}"
        self.readers = [_column_reader(column) for column in table.columns]
        self.width = len(self.readers)
        # Bytes of the bitmaps: the columns that an event has, and the NULL columns of a row.
        self.bitmap = (self.width + 7) // 8
        self._mask = (1 << self.width) - 1
        self.full = (self._mask.to_bytes(self.bitmap, "little"), b"\xff" * self.bitmap)

    def is_full(self, bitmap: bytes) -> bool:
        """Whether an event with this bitmap has all columns. Bits beyond the last column have no meaning."""
        return bitmap in self.full or int.from_bytes(bitmap, "little") & self._mask == self._mask

    def inserts(self, buffer: bytes, start: int, end: int) -> list[Change]:
        return [(None, row) for row in self._images(buffer, start, end)]

    def deletes(self, buffer: bytes, start: int, end: int) -> list[Change]:
        return [(row, None) for row in self._images(buffer, start, end)]

    def updates(self, buffer: bytes, start: int, end: int) -> list[Change]:
        images = self._images(buffer, start, end)
        if len(images) % 2:
            raise ValueError("the last updated row has an old image but no new one")
        return list(zip(images[::2], images[1::2], strict=True))

    def _images(self, buffer: bytes, at: int, end: int) -> list[Row]:
        readers, hidden, images = self.readers, self.table.hidden, list[Row]()
        while at < end:
            # The NULL columns, the first in the lowest bit.
            nulls, at = int.from_bytes(buffer[at : at + self.bitmap], "little"), at + self.bitmap
            row: list[Any] = []
            for number, reader in enumerate(readers):
                value = None
                if not nulls >> number & 1:
                    start = at
                    try:
                        value, at = reader.read(buffer, at)
                    except Exception as fault:  # malformed bytes may raise anything
                        where = f"column {self.table.columns[number].name} of image {len(images) + 1} of the event"
                        raise UnreadableColumn(where, f"{fault} ({buffer[start : start + 40]!r}...)") from None
                if number not in hidden:
                    row.append(value)
            images.append(tuple(row))
        if at != end:
            raise ValueError(f"the last row ends {at - end} bytes after the event")
        return images


def rows_of(source: str, shard: str, table: Table, decoder: RowDecoder) -> CompiledRows | None:
    """Return the core's description of the rows that ``decoder`` reads, or None. ``shard``: globally qualified."""
    if decoder.table.hidden:
        return None

    def read(raw: bytes) -> Row:
        ((_, row),) = decoder.inserts(raw, 0, len(raw))
        assert row is not None
        return row

    columns = zip(decoder.table.columns, decoder.readers, strict=True)
    cells = [(reader.stored(column), _value(reader), False, False) for column, reader in columns]
    try:
        return compiled_rows(table, source, shard, cells, compiled_fields(table.schema), read)
    except ValueError:  # no value of a column has the size in its TABLE_MAP, so Python reads or refuses it
        return None


def _value(reader: ColumnReader) -> Callable[[bytes], Any]:
    return lambda raw: reader.read(raw, 0)[0]

"""Decodes row events, column by column. The compiled core reads most rows instead, see ``relay.mysql.compiled_rows``.

``relay.types.sql`` lists the values.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from relay.mysql.binlog import binary_json, table_map, values
from relay.mysql.binlog.table_map import BadTableMap, ColumnLayout, TableMap, UnfitColumn
from relay.mysql_dialect.charsets import BINARY, decoder, is_utf8
from relay.mysql_dialect.members import chosen
from relay.mysql_dialect.memo import Memo
from relay.mysql_dialect.tables import Row
from relay.table import Column
from relay.types.sql import named

Change = tuple[Row | None, Row | None]
"""A row before and after a change: None before an insert and after a delete."""

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
    """How a column is read.

    ``base``: its type. ``size``: bytes of a value, or of the length before it for one ``of_length``. ``decode``: makes
    the value of its bytes. ``members``: an ENUM's.
    """

    base: str
    size: int
    decode: Callable[[bytes], Any]
    of_length: bool = False
    members: Sequence[str] = ()

    def read(self, buffer: bytes, at: int) -> tuple[Any, int]:
        """Return the value at ``at``, which is not NULL, and where it ends."""
        end = at + self.size
        if self.of_length:
            at, end = end, end + int.from_bytes(buffer[at:end], "little")
        return self.decode(buffer[at:end]), end


def _column_reader(column: ColumnLayout) -> ColumnReader:
    kind = column.kind
    if kind in _INTEGERS:
        base, size = _INTEGERS[kind]
        return ColumnReader(base, size, _unsigned if column.unsigned else _signed)
    if kind in _TEXTS or kind in _BLOBS:
        return _text(column)
    if kind == table_map.NEWDECIMAL:
        digits = column.precision, column.decimals
        memo = values.memo_of(values.decimal_reader, *digits)
        return ColumnReader("decimal", values.decimal_size(*digits), memo.__getitem__)
    if kind == table_map.FLOAT:
        return ColumnReader("float", 4, values.FLOATS.__getitem__)
    if kind == table_map.DOUBLE:
        return ColumnReader("double", 8, lambda stored: _DOUBLE.unpack(stored)[0])
    if kind == table_map.ENUM:
        members = _decoded(column)
        texts = ("", *members)  # the server stores 0 for a text that is not a member
        return ColumnReader("enum", _length(column), lambda stored: texts[_unsigned(stored)], members=members)
    if kind == table_map.SET:
        memo = Memo(partial(chosen, _decoded(column)))
        return ColumnReader("set", column.size, lambda stored: memo[_unsigned(stored)])
    if kind == table_map.BIT:
        return ColumnReader("bit", column.size, bytes)
    if kind in (table_map.GEOMETRY, table_map.VECTOR):
        base = "geometry" if kind == table_map.GEOMETRY else "vector"
        return ColumnReader(base, _length(column), bytes, of_length=True)
    if kind == table_map.JSON:
        return ColumnReader("json", _length(column), binary_json.text, of_length=True)
    return _time(column)


def _time(column: ColumnLayout) -> ColumnReader:
    kind, decimals = column.kind, column.decimals
    if kind in (table_map.DATE, table_map.NEWDATE):
        return ColumnReader("date", 3, values.DATES.__getitem__)
    if kind == table_map.YEAR:
        return ColumnReader("year", 1, values.year)
    if kind not in _TIMES or decimals > 6:
        raise UnfitColumn(f"its column {column.name} has the unknown type {kind}")
    base, size, reader = _TIMES[kind]
    memo = values.memo_of(reader, decimals)
    # Times with milliseconds rarely repeat.
    return ColumnReader(base, size + values.fraction_size(decimals), memo.__getitem__ if decimals < 3 else memo.make)


def _text(column: ColumnLayout) -> ColumnReader:
    decompressed = values.decompressed
    compressed = column.kind in (table_map.VARCHAR_COMPRESSED, table_map.BLOB_COMPRESSED)
    decode: Callable[[bytes], Any]
    if column.charset == BINARY:
        base, decode = "blob" if column.kind in _BLOBS else "varbinary", decompressed if compressed else bytes
        if column.kind == table_map.STRING:
            width = column.width
            base, decode = "binary", lambda stored: stored.ljust(width, b"\0")  # trailing zeros are not stored
    else:
        base = "text" if column.kind in _BLOBS else "char" if column.kind == table_map.STRING else "varchar"
        text = bytes.decode if is_utf8(column.charset) else decoder(column.charset)
        decode = (lambda stored: text(decompressed(stored))) if compressed else text
    return ColumnReader(base, _length(column), decode, of_length=True)


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
        base = named(_column_reader(column).base)
        kind = base.carried(unsigned=column.unsigned, precision=column.precision, scale=column.decimals)
        carried.append(Column(column.name, kind, base.told))
    return carried


class UnreadableColumn(ValueError):
    """A value cannot be read. ``where``: the column; the text also shows bytes, which may be of other columns."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where


class RowDecoder:
    """Reads the row events of one layout. ``inserts``, ``deletes``, ``updates``: called with ``(buffer, start, end)``.

    They raise ValueError on malformed bytes, `UnreadableColumn` if a column is at fault.
    """

    def __init__(self, table: TableMap) -> None:
        self.table = table
        self.name = f"{table.database}.{table.table}"
        self.readers = [_column_reader(column) for column in table.columns]
        self.width = len(self.readers)
        # Bytes of the bitmaps: which columns an event has, and which columns of a row are NULL.
        self.bitmap = (self.width + 7) // 8
        self._mask = (1 << self.width) - 1
        self.full = (self._mask.to_bytes(self.bitmap, "little"), b"\xff" * self.bitmap)

    def is_full(self, bitmap: bytes) -> bool:
        """Whether an event with this bitmap has all columns. Bits past the last column have no meaning."""
        return bitmap in self.full or int.from_bytes(bitmap, "little") & self._mask == self._mask

    def inserts(self, buffer: bytes, start: int, end: int) -> list[Change]:
        return [(None, row) for row in self._images(buffer, start, end)]

    def deletes(self, buffer: bytes, start: int, end: int) -> list[Change]:
        return [(row, None) for row in self._images(buffer, start, end)]

    def updates(self, buffer: bytes, start: int, end: int) -> list[Change]:
        images = self._images(buffer, start, end)
        if len(images) % 2:
            raise ValueError("the last row has no image after its update")
        return list(zip(images[::2], images[1::2], strict=True))

    def _images(self, buffer: bytes, at: int, end: int) -> list[Row]:
        readers, hidden, images = self.readers, self.table.hidden, list[Row]()
        while at < end:
            # Which columns are NULL, the first in the lowest bit.
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

"""Decodes rows of VStream, which are the concatenated texts of their values, to tuples for ``relay.mysql_dialect``.

A row must decode to the same values, byte for byte, whether it comes from the binlog or from a copy (I8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay.avro.compiled_fields import compiled_fields
from relay.config.protection import NOT_SHOWN
from relay.errors import RelayError
from relay.mysql_dialect import charsets
from relay.mysql_dialect.compiled_changes import compiled_rows
from relay.mysql_dialect.printed import (
    Printed,
    by_index,
    by_text,
    detail,
    printed,
    printed_text,
    sets_by_index,
    sets_by_text,
)
from relay.mysql_dialect.tables import Row, Table
from relay.table import Column
from relay.types.sql import Defined, Form, defined
from relay.vitess.position import VitessShard
from relay.vitess.proto import vtgate_pb2 as pb

if TYPE_CHECKING:
    from relay.native._core import CompiledRows

Layout = Callable[[str, Sequence[Column], Sequence[str]], Table | None]
"""Returns a table's layout by its name, its columns and its primary key, or None if it is not wanted."""

_NOT_NULL = 1
_PRIMARY = 2  # the flag of a field that is part of the primary key

# How Go escapes characters that it does not print: \x01, \a, \U000e0001. It escapes others as JSON does.
_GO_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|U([0-9a-f]{8})|([av])|.)", re.DOTALL)
_LETTERS = {"a": "07", "v": "0b"}


class PartialRow(Exception):
    """Some columns of a row were not logged."""


class Uncarried(ValueError):
    """A row has a value that cannot be carried exactly. The text says which column, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class VStreamRowDecoder:
    """Decodes the rows that follow one FIELD event."""

    table: Table
    columns: tuple[Printed, ...]  # the decoder of each, in the table's order
    others: frozenset[int]  # the columns outside the primary key
    # The ``others`` that are NOT NULL: if one is NULL in an old row, it was not logged, or was altered since.
    doubtful: frozenset[int]
    blobs: frozenset[int]  # the columns that binlog_row_image=NOBLOB leaves out: every BLOB, TEXT, JSON and geometry

    def decode(self, row: pb.Row) -> tuple[Any, ...]:
        """Return the values of a row. Raises `Uncarried`."""
        values, at = row.values, 0
        found: list[Any] = []
        try:
            for length, column in zip(row.lengths, self.columns, strict=True):
                if length < 0:
                    found.append(None)
                else:
                    found.append(column.decode(values[at : at + length]))
                    at += length
        except (ValueError, ArithmeticError, KeyError) as error:
            raise Uncarried(self._explain(row, len(found), at, error)) from None
        if at != len(values):
            raise Uncarried(f"its values have {len(values)} bytes, but their lengths add up to {at}")
        return tuple(found)

    def _explain(self, row: pb.Row, number: int, at: int, error: Exception) -> str:
        """Return why the relay cannot carry the value of column ``number``, which begins at byte ``at``."""
        if len(row.lengths) != len(self.columns):
            return f"it has {len(row.lengths)} values for {len(self.columns)} columns"
        name, value = self.table.names[number], row.values[at : at + row.lengths[number]]
        if self.table.schema.protected:
            return f"column {name}: {NOT_SHOWN}"
        shown = value if len(value) <= 60 else value[:60] + b"..."
        return f"column {name}: {shown!r} cannot be carried exactly: {error}"

    def before(self, row: pb.Row) -> tuple[Any, ...]:
        """Decode a row before its change. Raises `PartialRow` if columns were not logged: VStream sends them as NULL.

        A NOT NULL column may also be NULL in a row from before an ALTER. If instead it was not logged, binlog_row_image
        left out every column outside the primary key (MINIMAL), or every blob (NOBLOB).
        """
        absent = {at for at, length in enumerate(row.lengths) if length < 0}
        if not absent.isdisjoint(self.doubtful) and (
            self.others <= absent or (self.blobs <= absent and not self.blobs.isdisjoint(self.doubtful))
        ):
            raise PartialRow
        return self.decode(row)

    def may_lack_columns(self, row: Row) -> bool:
        """Whether an old row has NULL in each column outside the primary key: perhaps they were not logged (I8)."""
        return bool(self.others) and all(row[at] is None for at in self.others)


def decoder(event: pb.FieldEvent, layout: Layout, *, copied: bool = False) -> VStreamRowDecoder | None:
    """Return the decoder of the rows that follow ``event``, or None if ``layout`` does not want the table.

    ``copied``: whether the rows come from a SELECT, not a binlog. Raises ``RelayError`` naming table and column.
    """
    name = event.table_name
    carried, columns = [], []
    others, doubtful, blobs = set[int](), set[int](), set[int]()
    for at, field in enumerate(event.fields):
        try:
            found = _defined(field)
            read = _printed(found, field, copied=copied, as_text=event.enum_set_string_values)
            carried.append(Column(field.name, found.carried, found.type.told, detail=detail(found)))
        except ValueError as error:
            raise RelayError(f"table {name}: column {field.name} {field.column_type}: {error}") from None
        columns.append(read)
        if not field.flags & _PRIMARY:
            others.add(at)
            doubtful |= {at} if field.flags & _NOT_NULL else set()
            blobs |= {at} if found.type.is_blob else set()
    table = layout(name, carried, [field.name for field in event.fields if field.flags & _PRIMARY])
    if table is None:
        return None
    if table.names != tuple(field.name for field in event.fields):
        raise RelayError(f"table {name}: its layout has different columns from the stream")
    return VStreamRowDecoder(table, tuple(columns), frozenset(others), frozenset(doubtful), frozenset(blobs))


def _defined(field: pb.Field) -> Defined:
    """Return the type of a column. Raises ValueError if it is not known, or cannot be read."""
    if field.name.startswith("@"):
        raise ValueError(
            "Vitess does not know the columns that the table had when this row was written: run the tablets with "
            "--track-schema-versions, or reset the source to a later position"
        )
    if not field.column_type:
        raise ValueError("Vitess does not give its type: the column may have been dropped or renamed since")
    found = defined(field.column_type)
    if "compressed" in found.attributes:
        raise ValueError("compressed columns cannot be read")
    return found


def _printed(found: Defined, field: pb.Field, *, copied: bool, as_text: bool) -> Printed:
    """Return the decoder of a column. A binlog does not have all values as SELECT prints them."""
    match found.type.form:
        case Form.FLOAT if copied:
            raise ValueError(
                "SELECT rounds a FLOAT, so it cannot be copied exactly: make it a DOUBLE, or use another `start`"
            )
        case Form.FLOAT:
            return Printed(float, "double")
        case Form.JSON if not copied:
            return Printed(_document)
        case Form.ENUM | Form.SET:
            return Printed(_members(found, field.charset, copied=copied, as_text=as_text))
        case Form.ADDRESS | Form.PADDED if not (copied and found.type.form is Form.ADDRESS):
            # The binlog omits trailing zero bytes of types with a fixed length.
            width = found.type.size or int(found.inside or 1)
            return Printed(lambda raw: raw.ljust(width, b"\0"))
        case Form.BIT:
            size = (int(found.inside or 1) + 7) // 8
            return Printed(lambda raw: raw.rjust(size, b"\0"))
    return printed(found, _charset(field.charset) if found.type.form is Form.TEXT else None)


def _document(raw: bytes) -> str:
    """Return a document from a binlog as JSON: Vitess quotes its texts as Go does."""
    text = str(raw, "utf_8")
    return _GO_ESCAPE.sub(_as_json, text) if "\\" in text else text  # I8


def _as_json(escape: re.Match[str]) -> str:
    code, wide, letter = escape.groups()
    if wide is not None:
        return chr(int(wide, 16))
    if code is None and letter is None:
        return escape[0]
    if code is not None and code > "7f":
        raise ValueError(f"a text in the document has the byte {code}, which is not UTF-8")
    return f"\\u00{code or _LETTERS[letter]}"


def _charset(collation: int) -> str:
    """Return the character set of a collation, given by its id, or by 0 if nobody knows it: then it is UTF-8."""
    charset = charsets.charset(collation) if collation else "utf8mb4"
    return "utf8mb4" if charset == charsets.BINARY else charset  # binary text arrives as UTF-8


def _members(found: Defined, collation: int, *, copied: bool, as_text: bool) -> Callable[[bytes], Any]:
    # A copy has the stored bytes; for a binlog Vitess sends texts from the column's definition, in UTF-8.
    decode = printed_text(_charset(collation) if copied else None).decode
    if found.type.form is Form.ENUM:
        return by_text(found.inside, decode) if as_text else by_index(found.inside)
    return sets_by_text(found.inside, decode, copied=copied) if as_text else sets_by_index(found.inside)


def rows_of(shard: VitessShard, decoder: VStreamRowDecoder, *, copied: bool = False) -> CompiledRows | None:
    """Return the compiled decoder of a table's rows, or None if only Python reads them. ``copied``: see `decoder`."""
    cells = [
        (column.cell, column.decode, at in decoder.doubtful, at not in decoder.others)
        for at, column in enumerate(decoder.columns)
    ]
    table = decoder.table

    def read(raw: bytes) -> Row:
        return decoder.decode(pb.Row.FromString(raw))

    fields = compiled_fields(table.schema)
    return compiled_rows(table, shard.source, shard.qualified, cells, fields, read, copied=copied)

"""Decodes row events with one Python function that is compiled for each layout of a table.

A function reads all rows of an event in one loop, without a call per column for the common types: columns of fixed
width, and the length of the text after them, are unpacked together. Rows with NULLs have functions of their own, one
for each set of columns that are NULL. ``relay.types.sql`` lists the values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relay.config.protection import NOT_SHOWN
from relay.mysql.binlog import binary_json, table_map, values
from relay.mysql.binlog.table_map import BadTableMap, ColumnLayout, TableMap
from relay.mysql_dialect.charsets import BINARY, decoder, is_utf8
from relay.mysql_dialect.tables import Row
from relay.table import Column
from relay.types.sql import named

Change = tuple[Row | None, Row | None]
"""A row before and after a change: None before an insert and after a delete."""

_VARIANTS = 64
"""How many sets of NULL columns get a function of their own."""

_INTEGERS = {
    table_map.TINY: ("tinyint", "bB"),
    table_map.SHORT: ("smallint", "hH"),
    table_map.LONG: ("int", "iI"),
    table_map.LONGLONG: ("bigint", "qQ"),
}
_LENGTHS = {1: "B", 2: "H", 3: "HB", 4: "I"}
_BLOBS = (table_map.BLOB, table_map.BLOB_COMPRESSED)
_TEXTS = (table_map.VARCHAR, table_map.VAR_STRING, table_map.VARCHAR_COMPRESSED, table_map.STRING)


@dataclass(frozen=True, slots=True)
class _ColumnReader:
    """How a column is read.

    ``codes``: of ``struct``. Without ``of_length`` they read the value, which ``expression`` makes from ``{}``, or from
    ``{0}`` and ``{1}``; with it they read the length of the bytes that follow, and ``{}`` is those bytes.
    ``uses``: the name ``F`` in the expression.
    """

    base: str
    codes: str
    expression: str = "{}"
    of_length: bool = False
    uses: Any = None


def _column_reader(column: ColumnLayout) -> _ColumnReader:
    kind = column.kind
    if kind in _INTEGERS:
        base, codes = _INTEGERS[kind]
        return _ColumnReader(base, codes[column.unsigned])
    if kind == table_map.INT24:
        return _ColumnReader("mediumint", "HB" if column.unsigned else "Hb", "{0} | {1} << 16")
    if kind in _TEXTS or kind in _BLOBS:
        return _text(column)
    if kind == table_map.NEWDECIMAL:
        size = values.decimal_size(column.precision, column.decimals)
        return _ColumnReader(
            "decimal", f"{size}s", "F[{}]", uses=values.memo_of("decimal", column.precision, column.decimals)
        )
    if kind == table_map.FLOAT:
        return _ColumnReader("float", "4s", "F[{}]", uses=values.memo_of("float"))
    if kind == table_map.DOUBLE:
        return _ColumnReader("double", "d")
    if kind == table_map.ENUM:
        # The server stores 0 for a text that is not a member.
        return _ColumnReader("enum", _LENGTHS[column.size], "F[{}]", uses=("", *_decoded(column)))
    if kind == table_map.SET:
        return _ColumnReader(
            "set", f"{column.size}s", "list(F[{}])", uses=values.Memo(values.set_reader(_decoded(column)))
        )
    if kind == table_map.BIT:
        return _ColumnReader("bit", f"{column.size}s")
    if kind in (table_map.GEOMETRY, table_map.VECTOR):
        base = "geometry" if kind == table_map.GEOMETRY else "vector"
        return _ColumnReader(base, _LENGTHS[column.size], of_length=True)
    if kind == table_map.JSON:
        return _ColumnReader("json", _LENGTHS[column.size], "F({})", True, binary_json.text)
    return _time(column)


def _time(column: ColumnLayout) -> _ColumnReader:
    kind, decimals = column.kind, column.decimals
    if kind in (table_map.DATE, table_map.NEWDATE):
        return _ColumnReader("date", "3s", "F[{}]", uses=values.memo_of("date"))
    if kind == table_map.YEAR:
        return _ColumnReader("year", "B", "1900 + {0} if {0} else 0")
    if kind == table_map.TIMESTAMP:
        return _ColumnReader("timestamp", "I", "{} * 1000000")
    if kind == table_map.TIMESTAMP2 and not decimals:
        return _ColumnReader("timestamp", "4s", "F({}, 'big') * 1000000", uses=int.from_bytes)
    if kind == table_map.DATETIME:
        return _ColumnReader("datetime", "q", "F({})", uses=values.old_datetime)
    if kind == table_map.TIME:
        return _ColumnReader("time", "3s", "F({})", uses=values.old_time)
    sizes = {table_map.TIMESTAMP2: ("timestamp", 4), table_map.DATETIME2: ("datetime", 5), table_map.TIME2: ("time", 3)}
    if kind not in sizes or decimals > 6:
        raise BadTableMap(f"its column {column.name} has the unknown type {kind}")
    base, size = sizes[kind]
    # Times with milliseconds rarely repeat.
    call = "F[{}]" if decimals < 3 else "F({})"
    memo = values.memo_of(base, decimals)
    return _ColumnReader(
        base, f"{size + values.fraction_size(decimals)}s", call, uses=memo if decimals < 3 else memo.make
    )


def _text(column: ColumnLayout) -> _ColumnReader:
    length = _LENGTHS.get(column.size)
    if length is None:
        raise BadTableMap(f"its column {column.name} has a length of {column.size} bytes")
    compressed = column.kind in (table_map.VARCHAR_COMPRESSED, table_map.BLOB_COMPRESSED)
    if column.charset == BINARY:
        if column.kind == table_map.STRING:
            # Trailing zeros are not stored.
            return _ColumnReader("binary", length, f"{{}}.ljust({column.width}, b'\\0')", True)
        base = "blob" if column.kind in _BLOBS else "varbinary"
        return _ColumnReader(base, length, "F({})" if compressed else "{}", True, values.decompressed)
    base = "text" if column.kind in _BLOBS else "char" if column.kind == table_map.STRING else "varchar"
    decode = decoder(column.charset)
    if compressed:
        return _ColumnReader(base, length, "F({})", True, lambda stored: decode(values.decompressed(stored)))
    if is_utf8(column.charset):
        return _ColumnReader(base, length, "{}.decode()", True)
    return _ColumnReader(base, length, "F({})", True, decode)


def _decoded(column: ColumnLayout) -> tuple[str, ...]:
    if column.charset == BINARY:
        raise BadTableMap(f"its column {column.name} is an ENUM or SET with binary members")
    return tuple(map(decoder(column.charset), column.members))


def columns_of(table: TableMap) -> list[Column]:
    """Return the columns with the types of their values. Raises ``BadTableMap`` for one that cannot be relayed."""
    carried = []
    for column in (column for at, column in enumerate(table.columns) if at not in table.hidden):
        base = named(_column_reader(column).base)
        kind = base.carried(unsigned=column.unsigned, precision=column.precision, scale=column.decimals)
        carried.append(Column(column.name, kind, base.has_decimals))
    return carried


class RowDecoder:
    """Reads the row events of one layout. ``inserts``, ``deletes``, ``updates``: called with ``(buffer, start, end)``.

    They raise any exception on malformed bytes; ``explain`` then says which column is at fault.
    """

    def __init__(self, table: TableMap) -> None:
        self.table = table
        self.name = f"{table.database}.{table.table}"
        self.readers = [_column_reader(column) for column in table.columns]
        self.width = len(self.readers)
        # The places of the columns of a row.
        self._shown = [at for at in range(self.width) if at not in table.hidden]
        # Bytes of the bitmaps: which columns an event has, and which columns of a row are NULL.
        self.bitmap = (self.width + 7) // 8
        self._mask = (1 << self.width) - 1
        self.full = (self._mask.to_bytes(self.bitmap, "little"), b"\xff" * self.bitmap)
        self._variants: dict[int, Callable[[bytes, int], tuple[Row, int]]] = {}
        self._singles: dict[int, Callable[[bytes, int], tuple[Row, int]]] = {}
        self.inserts = self._compile_loop("(None, r0)", 1)
        self.deletes = self._compile_loop("(r0, None)", 1)
        self.updates = self._compile_loop("(r0, r1)", 2)

    def __repr__(self) -> str:
        return f"<RowDecoder[{self.name}: {self.width} columns]>"

    def is_full(self, bitmap: bytes) -> bool:
        """Whether an event with this bitmap has all columns. Bits past the last column have no meaning."""
        return bitmap in self.full or int.from_bytes(bitmap, "little") & self._mask == self._mask

    def explain(self, buffer: bytes, at: int, end: int, *, shows_values: bool = True) -> str:
        """Return which column of which row cannot be read, and why.

        Without ``shows_values``, nothing of the row: the bytes of a column may be followed by those of another.
        """
        row = 0
        while at < end:
            row += 1
            nulls = self._nulls(buffer, at)
            at += self.bitmap
            for number in range(self.width):
                if nulls >> number & 1:
                    continue
                start = at
                try:
                    _, at = self.single(number)(buffer, at)
                except Exception as fault:
                    where = f"column {self.table.columns[number].name} of image {row} of the event"
                    if not shows_values:
                        return f"{where}: {NOT_SHOWN}"
                    return f"{where}: {fault} ({buffer[start : start + 40]!r}...)"
        return f"the last row ends {at - end} bytes after the event" if at > end else "the event is malformed"

    def _nulls(self, buffer: bytes, at: int) -> int:
        return int.from_bytes(buffer[at : at + self.bitmap], "little") & self._mask

    def _with_nulls(self, buffer: bytes, at: int, nulls: int) -> tuple[Row, int]:
        variant = self._variants.get(nulls)
        if variant is None:
            if len(self._variants) >= _VARIANTS:
                return self._one_by_one(buffer, at + self.bitmap, nulls)
            present = [number for number in range(self.width) if not nulls >> number & 1]
            variant = self._variants[nulls] = self._compile_row(present, self.bitmap)
        return variant(buffer, at)

    def _one_by_one(self, buffer: bytes, at: int, nulls: int) -> tuple[Row, int]:
        row: list[Any] = []
        for number in range(self.width):
            if nulls >> number & 1:
                row.append(None)
            else:
                (value,), at = self.single(number)(buffer, at)
                row.append(value)
        return tuple(row[number] for number in self._shown), at

    def single(self, number: int) -> Callable[[bytes, int], tuple[Row, int]]:
        """Return the function that reads only the value of a column, which is not NULL."""
        single = self._singles.get(number)
        if single is None:
            single = self._singles[number] = self._compile_row([number], 0, only=True)
        return single

    # ------------------------------------------------------------------ source text

    def _compile_loop(self, change: str, images: int) -> Callable[[bytes, int, int], list[Change]]:
        """Compile the function that reads all rows of an event; a change has one or two ``images`` of a row."""
        everything = range(self.width)
        lines = ["def read(b, p, end):", " out = []", " add = out.append", " while p < end:"]
        names: dict[str, Any] = {"with_nulls": self._with_nulls, "from_bytes": int.from_bytes}
        for image in range(images):
            body, row = self._body(everything, self.bitmap, names)
            if self.bitmap == 1:
                lines.append(f"  n = b[p] & {self._mask}")
            else:
                lines.append(f"  n = from_bytes(b[p:p + {self.bitmap}], 'little') & {self._mask}")
            lines += ["  if n:", f"   r{image}, p = with_nulls(b, p, n)", "  else:"]
            lines += [f"   {line}" for line in body]
            lines.append(f"   r{image} = {row}")
        lines += [f"  add({change})", " if p != end:", "  raise ValueError('the last row does not end with the event')"]
        lines.append(" return out")
        return _compiled(lines, names)

    def _compile_row(
        self, present: Sequence[int], start: int, only: bool = False
    ) -> Callable[[bytes, int], tuple[Row, int]]:
        """Compile the function that reads one row in which only ``present`` columns are not NULL, and returns its end.

        ``start``: bytes before its first value. ``only``: leave the other columns out instead of returning None.
        """
        names: dict[str, Any] = {}
        body, row = self._body(present, start, names, only)
        return _compiled(["def read(b, p):", *(f" {line}" for line in body), f" return {row}, p"], names)

    def _body(
        self, present: Sequence[int], start: int, names: dict[str, Any], only: bool = False
    ) -> tuple[list[str], str]:
        """Return the lines that read the columns and move ``p`` to their end, and the row's expression.

        ``start``: bytes at ``p`` before the columns.
        """
        lines: list[str] = []
        run: list[tuple[str, str]] = []  # code of ``struct``, name of the variable
        shown: dict[int, str] = {}
        skipped = start

        def unpack() -> None:
            nonlocal skipped
            if run:
                codes = "".join(code for code, _ in run)
                size = struct.calcsize(f"<{codes}")
                at = f"p + {skipped}" if skipped else "p"
                if codes == "B":
                    lines.append(f"{run[0][1]} = b[{at}]")
                else:
                    names[f"unpack_{codes}"] = struct.Struct(f"<{codes}").unpack_from
                    variables = ", ".join(variable for _, variable in run)
                    lines.append(f"{variables}, = unpack_{codes}(b, {at})")
                skipped += size
                run.clear()

        for number in present:
            reader = self.readers[number]
            variable = f"c{number}"
            parts = [variable] if len(_split(reader.codes)) == 1 else [f"{variable}a", f"{variable}b"]
            run += zip(_split(reader.codes), parts, strict=True)
            if reader.uses is not None:
                names[f"f{number}"] = reader.uses
            make = reader.expression.replace("F", f"f{number}")
            if not reader.of_length:
                shown[number] = make.replace("{}", parts[0]).format(*parts)
                continue
            unpack()
            length = parts[0] if len(parts) == 1 else f"({parts[0]} | {parts[1]} << 16)"
            lines.append(f"p += {skipped}")
            lines.append(f"e = p + {length}")
            lines.append(f"{variable} = {make.replace('{}', 'b[p:e]')}")
            lines.append("p = e")
            skipped = 0
            shown[number] = variable
        unpack()
        if skipped:
            lines.append(f"p += {skipped}")
        wanted = present if only else self._shown
        return lines, f"({''.join(shown.get(number, 'None') + ', ' for number in wanted)})"


def _split(codes: str) -> list[str]:
    return [codes] if codes.endswith("s") else list(codes)


def _compiled(lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    # The source text contains nothing from the table: names and members are values in ``names``.
    exec(compile("\n".join(lines), "<row decoder>", "exec"), names)
    read: Callable[..., Any] = names["read"]
    return read

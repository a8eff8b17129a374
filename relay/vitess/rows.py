"""Decodes rows of VStream, the concatenated texts of their values, to the tuples that ``relay.mysql_dialect`` carries.

Each FIELD event gets a function of its own, generated and compiled, without a loop over the columns. A row must decode
to the same values, byte for byte, whether it comes from the binlog or from a copy (I8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, assert_never

from relay.config.protection import NOT_SHOWN
from relay.errors import RelayError
from relay.mysql_dialect import charsets
from relay.mysql_dialect.members import by_index, by_text, sets_by_index, sets_by_text
from relay.mysql_dialect.printed import MICROSECONDS, stored
from relay.mysql_dialect.tables import Row, Table
from relay.table import Column
from relay.types.sql import Defined, Form, defined
from relay.vitess.proto import vtgate_pb2 as pb

Layout = Callable[[str, Sequence[Column], Sequence[str]], Table | None]
"""Returns a table's layout by its name, its columns and its primary key; None if it is not wanted."""

_NOT_NULL = 1
_PRIMARY = 2  # the flag of a field that is part of the primary key
_VALUE = "v[s:e]"
# What the compiled core reads itself, by the expression that reads it here.
_CELLS = {
    f"int({_VALUE})": "integer",
    f"float({_VALUE})": "double",
    f"D(str({_VALUE}, 'ascii'))": "decimal",
    f"str({_VALUE}, 'utf_8')": "text",
    _VALUE: "bytes",
}


# What Go writes of characters that it does not print: \x01, \a, \U000e0001. Others are escaped as in JSON.
_GO_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|U([0-9a-f]{8})|([av])|.)", re.DOTALL)
_LETTERS = {"a": "07", "v": "0b"}


class PartialRow(Exception):
    """Some columns of a row were not logged."""


@dataclass(frozen=True, slots=True, eq=False)
class VStreamRowDecoder:
    """Decodes the rows that follow one FIELD event."""

    table: Table
    decode: Callable[[pb.Row], tuple[Any, ...]]
    """Raises ValueError, ArithmeticError or KeyError for a value that cannot be carried exactly."""
    before: Callable[[pb.Row], tuple[Any, ...]]
    """The same for a row before its change; `PartialRow` if columns were not logged: VStream sends them as NULL."""
    columns: tuple[tuple[str, Callable[[bytes], Any]], ...]
    """The name of each column, and what decodes a single value of it."""
    others: tuple[int, ...] = ()
    """The columns outside the primary key."""
    cells: tuple[str, ...] = ()
    """How the compiled core reads the text of each column."""
    doubtful: frozenset[int] = frozenset()
    """The columns that are NULL in a row before its change only if they were not logged, or altered since."""

    def may_lack_columns(self, row: Row) -> bool:
        """Whether an old row has NULL in each column outside the primary key: perhaps they were not logged (I8)."""
        return bool(self.others) and all(row[at] is None for at in self.others)

    def explain_change(self, change: pb.RowChange) -> str:
        """Return which column of a change cannot be decoded, and why."""
        why = self.explain(change.before if change.HasField("before") else change.after)
        if change.HasField("before") and change.HasField("after") and why.startswith("its values"):
            return self.explain(change.after)
        return why

    def explain(self, row: pb.Row) -> str:
        """Return which column of ``row`` cannot be decoded, and why."""
        at = 0
        if len(row.lengths) != len(self.columns):
            return f"it has {len(row.lengths)} values for {len(self.columns)} columns"
        for length, (name, decode) in zip(row.lengths, self.columns, strict=True):
            if length < 0:
                continue
            value = row.values[at : at + length]
            at += length
            try:
                decode(value)
            except (ValueError, ArithmeticError, KeyError) as error:
                if self.table.schema.protected:
                    return f"column {name}: {NOT_SHOWN}"
                shown = value if len(value) <= 60 else value[:60] + b"..."
                return f"column {name}: {shown!r} cannot be carried exactly: {error}"
        return f"its values have {len(row.values)} bytes, but their lengths add up to {at}"


def decoder(event: pb.FieldEvent, layout: Layout, *, copied: bool = False) -> VStreamRowDecoder | None:
    """Return the decoder of the rows that follow ``event``; None if ``layout`` does not want the table.

    ``copied``: the rows come from a SELECT, not from a binlog. Raises ``RelayError`` naming table and column.
    """
    name = event.table_name
    columns, values = [], []
    environment: dict[str, Any] = {"float": float, "int": int, "str": str, "D": Decimal, "ts": MICROSECONDS}
    for at, field in enumerate(event.fields):
        try:
            found = _defined(field)
            expression = _column(found, field, at, environment, copied=copied, as_text=event.enum_set_string_values)
            columns.append(Column(field.name, found.carried, found.type.has_decimals))
        except ValueError as error:
            raise RelayError(f"table {name}: column {field.name} {field.column_type}: {error}") from None
        values.append(expression)
    table = layout(name, columns, [field.name for field in event.fields if field.flags & _PRIMARY])
    if table is None:
        return None
    if table.names != tuple(column.name for column in columns):
        raise RelayError(f"table {name}: its layout has other columns than the stream")
    exec(compile(_source("decode", values), f"<rows of {name}>", "exec"), environment)
    before = decode = environment["decode"]
    required = {at for at, field in enumerate(event.fields) if field.flags & _NOT_NULL and not field.flags & _PRIMARY}
    if required and not copied:
        environment["decode_doubtful"] = _doubtful_decoder(event.fields, required, decode)
        exec(compile(_source("before", values, required), f"<old rows of {name}>", "exec"), environment)
        before = environment["before"]
    single = (eval(f"lambda x: {value.replace(_VALUE, 'x')}", environment) for value in values)
    others = tuple(at for at, field in enumerate(event.fields) if not field.flags & _PRIMARY)
    return VStreamRowDecoder(
        table,
        decode,
        before,
        tuple(zip(table.names, single, strict=True)),
        others,
        tuple(_CELLS.get(value, "other") for value in values),
        frozenset(required),
    )


def _doubtful_decoder(
    fields: Sequence[pb.Field], required: set[int], decode: Callable[[pb.Row], tuple[Any, ...]]
) -> Callable[[pb.Row], tuple[Any, ...]]:
    """Return what decodes a row that has NULL in a NOT NULL column, or raises `PartialRow`.

    The column may have been altered to NOT NULL since. If instead it was not logged, binlog_row_image left out every
    column outside the primary key (MINIMAL), or every BLOB, TEXT, JSON and geometry (NOBLOB).
    """
    others = {at for at, field in enumerate(fields) if not field.flags & _PRIMARY}
    blobs = {at for at in others if defined(fields[at].column_type).type.is_blob}

    def decode_doubtful(row: pb.Row) -> tuple[Any, ...]:
        absent = {at for at, length in enumerate(row.lengths) if length < 0}
        if others <= absent or (blobs <= absent and blobs & required):
            raise PartialRow
        return decode(row)

    return decode_doubtful


def _source(name: str, values: Sequence[str], required: Collection[int] = ()) -> str:
    """Return the source of the function that decodes a row: each value starts where the previous one ended."""
    lengths = ", ".join(f"n{at}" for at in range(len(values)))
    lines = [f"def {name}(row):", " v = row.values", f" {lengths}, = row.lengths", " e = 0"]
    for at, value in enumerate(values):
        lines += [
            f" if n{at} < 0: " + ("return decode_doubtful(row)" if at in required else f"c{at} = None"),
            " else:",
            f"  s = e; e += n{at}",
            f"  c{at} = {value}",
        ]
    lines += [
        " if e != len(v): raise ValueError('lengths and values differ')",
        f" return ({', '.join(f'c{at}' for at in range(len(values)))},)",
    ]
    return "\n".join(lines)


def _defined(field: pb.Field) -> Defined:
    """Return the type of a column. Raises ValueError if it is not known, or cannot be read."""
    if field.name.startswith("@"):
        raise ValueError(
            "Vitess does not know the columns that the table had when this row was written: run the tablets with "
            "--track-schema-versions, or reset the source to a later position"
        )
    if not field.column_type:
        raise ValueError("Vitess does not tell its type: the column may have been dropped or renamed since")
    found = defined(field.column_type)
    if "compressed" in found.attributes:
        raise ValueError("compressed columns cannot be read")
    return found


def _column(
    found: Defined, field: pb.Field, at: int, environment: dict[str, Any], *, copied: bool, as_text: bool
) -> str:
    """Return the expression that decodes the bytes ``v[s:e]`` of a column. Names in it are from ``environment``."""
    sql = found.type
    decode: Any
    match sql.form:
        case Form.INTEGER:
            return f"int({_VALUE})"
        case Form.FLOAT if copied:
            raise ValueError(
                "SELECT rounds a FLOAT, so it cannot be copied exactly: make it a DOUBLE, or use another `start`"
            )
        case Form.FLOAT | Form.DOUBLE:
            return f"float({_VALUE})"
        case Form.DECIMAL:
            return f"D(str({_VALUE}, 'ascii'))"
        case Form.TIMESTAMP:
            return f"ts[{_VALUE}]"
        case Form.TEXT if not charsets.is_utf8(charset := _charset(field.charset)):
            decode = charsets.decoder(charset)
        case Form.JSON if not copied:
            decode = _document
        case Form.TEXT | Form.TIME | Form.JSON:
            return f"str({_VALUE}, 'utf_8')"
        case Form.ENUM | Form.SET:
            environment[f"f{at}"] = _members(found, field.charset, copied=copied, as_text=as_text)
            return f"f{at}[{_VALUE}]"
        case Form.ADDRESS if copied:
            decode = stored(sql.name)
        # The binlog omits trailing zero bytes of types with a fixed length.
        case Form.ADDRESS | Form.PADDED:
            return f"{_VALUE}.ljust({sql.size or int(found.inside or 1)}, b'\\0')"
        case Form.BIT:
            return f"{_VALUE}.rjust({(int(found.inside or 1) + 7) // 8}, b'\\0')"
        case Form.BYTES | Form.OPAQUE:
            return _VALUE
        case _:
            assert_never(sql.form)
    environment[f"f{at}"] = decode
    return f"f{at}({_VALUE})"


def _document(raw: bytes) -> str:
    """Return a document of a binlog as JSON: Vitess quotes the texts in it as Go does."""
    text = str(raw, "utf_8")
    return _GO_ESCAPE.sub(_as_json, text) if "\\" in text else text  # I8


def _as_json(escape: re.Match[str]) -> str:
    code, wide, letter = escape.groups()
    if wide is not None:
        return chr(int(wide, 16))
    if code is None and letter is None:
        return escape[0]
    if code is not None and code > "7f":
        raise ValueError(f"a text in it has the byte {code}, which is no UTF-8")
    return f"\\u00{code or _LETTERS[letter]}"


def _charset(collation: int) -> str:
    """Return the character set of a collation, given by its id.

    0 is a collation that Vitess does not know and `Tables` has not found: UTF-8. Text in the binary collation arrives
    as UTF-8.
    """
    charset = charsets.charset(collation) if collation else "utf8mb4"
    return "utf8mb4" if charset == charsets.BINARY else charset


def _members(found: Defined, collation: int, *, copied: bool, as_text: bool) -> Any:
    # A copy has the stored bytes; for a binlog Vitess sends texts from the column's definition, in UTF-8.
    decode = charsets.decoder(_charset(collation) if copied else "utf8mb4")
    if found.type.form is Form.ENUM:
        return by_text(found.inside, decode) if as_text else by_index(found.inside)
    return sets_by_text(found.inside, decode, copied=copied) if as_text else sets_by_index(found.inside)

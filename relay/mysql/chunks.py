"""Reads a table in chunks of its primary key: the statements, and the decoding of what they select.

A row has the same values, byte for byte, as in the binlog (I8): ``relay.types.sql`` lists them. So a column is
selected in a form that loses nothing: text and bytes as they are stored, FLOAT as DOUBLE, TIMESTAMP in UTC.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from relay.avro.columns import shortest
from relay.config.protection import NOT_SHOWN
from relay.errors import RelayError
from relay.mysql.errors import NotCarried
from relay.mysql_dialect.compiled_changes import Cell
from relay.mysql_dialect.definitions import Definition, definitions, text_of
from relay.mysql_dialect.members import sets_by_text
from relay.mysql_dialect.printed import Printed, printed, printed_text
from relay.mysql_dialect.tables import Row
from relay.types.sql import Form, defined

SESSION = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', character_set_results = NULL",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
"""What the connection needs: times in UTC, and text in the character set of its column."""

COLUMNS = (
    "SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
"""Selects name, type, character set and collation of the columns of a table."""

KEY = (
    "SELECT COLUMN_NAME FROM information_schema.STATISTICS"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX"
)
"""Selects the columns of the primary key of a table."""

Raw = tuple[bytes | None, ...]
"""The values of one row as the server sends them."""

_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?", re.IGNORECASE)
_FLOAT = struct.Struct("<f")
_EXACT = "{} * 1E0"
_MEMBER = "CAST({} AS UNSIGNED)"


@dataclass(frozen=True, slots=True)
class _Selected:
    """A column in a SELECT.

    ``read``: how a value of it is read. ``literal``: what a value of it is compared with, made of ``compared`` as it is
    selected. ``{}`` in ``value`` and ``compared`` is the column's quoted name.
    """

    name: str
    read: Printed
    literal: Callable[[bytes], str]
    value: str = "{}"
    compared: str = "{}"


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table as ``information_schema`` describes it: its columns as `COLUMNS` selects them, and its primary key."""

    columns: tuple[tuple[str, str, str | None, str | None], ...]
    primary: tuple[str, ...]

    @classmethod
    def of(cls, columns: Iterable[Sequence[Any]], key: Iterable[Sequence[Any]]) -> TableDescription:
        """Make it of the rows that `COLUMNS` and `KEY` select."""
        return cls(
            tuple(
                (str(name), text_of(kind), _optional(charset), _optional(collation))
                for name, kind, charset, collation in columns
            ),
            tuple(str(name) for (name,) in key),
        )

    @property
    def order(self) -> str:
        """A hash of what the order of the primary key depends on: its columns, with their types and collations."""
        by_name = {name: (kind, collation) for name, kind, _, collation in self.columns}
        found = [(name, by_name[name]) for name in self.primary]
        return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()

    def definition(self, table: str) -> Definition:
        """Return its columns and key as the binlog has them. Raises ValueError for a type that cannot be carried."""
        columns = [(table, name, kind) for name, kind, *_ in self.columns]
        found = definitions(columns, [(table, name) for name in self.primary])[table]
        if found.problem:
            raise ValueError(f"the table {found.problem}")
        return found


class KeyMissing(RelayError):
    """The table has no primary key to read it by."""


class ChunkQuery:
    """The statements for one table of ``database``, and what decodes their rows.

    ``shows_values``: whether a message may show a value that is not of the key.
    Raises ``RelayError`` for a table without a primary key, or with a column that cannot be read exactly.
    """

    def __init__(self, database: str, table: str, description: TableDescription, *, shows_values: bool = True) -> None:
        if not description.primary:
            raise KeyMissing(
                f"the table {database}.{table} has no primary key, so a snapshot cannot read it in parts: add one, or "
                "leave the table out of `tables`"
            )
        self.table = f"{database}.{table}"
        self._shows_values = shows_values
        self._place = f"{quoted(database)}.{quoted(table)}"
        try:
            self._columns = [_selected(*column[:3]) for column in description.columns]
        except ValueError as error:
            raise NotCarried(f"the table {self.table} cannot be read: {error}") from None
        by_name = {column.name: column for column in self._columns}
        self._key = [by_name[name] for name in description.primary]
        # Where the key is in a raw row: among the columns, or selected once more in the form that is compared.
        names = [column.name for column in self._columns]
        selects = [column.value.format(quoted(column.name)) for column in self._columns]
        self._at = []
        for column in self._key:
            if column.compared == column.value:
                self._at.append(names.index(column.name))
            else:
                self._at.append(len(selects))
                selects.append(column.compared.format(quoted(column.name)))
        self._selects = ", ".join(selects)

    @property
    def cells(self) -> list[Cell]:
        """How the compiled core reads the columns."""
        return [(column.read.cell, column.read.decode, False, False) for column in self._columns]

    def statement(self, after: Sequence[bytes], limit: int) -> str:
        """Return the SELECT of the next ``limit`` rows. ``after``: the key of the last one, empty at the beginning.

        Raises ``RelayError`` if ``after`` is not a key of this table.
        """
        order = ", ".join(quoted(column.name) for column in self._key)
        return (
            f"SELECT {self._selects} FROM {self._place} FORCE INDEX (PRIMARY){self._where(after)}"
            f" ORDER BY {order} LIMIT {limit}"
        )

    def select(self, rest: str) -> str:
        """Return a SELECT of the table's rows that ends in ``rest``."""
        return f"SELECT {self._selects} FROM {self._place} {rest}"

    def _where(self, after: Sequence[bytes]) -> str:
        """Return the condition in the form that both servers read by index: (a > x) OR (a = x AND b > y)."""
        if not after:
            return ""
        if len(after) != len(self._key):
            raise RelayError(f"the primary key of {self.table} changed while its snapshot was read: begin another one")
        names = [quoted(column.name) for column in self._key]
        literals = [column.literal(value) for column, value in zip(self._key, after, strict=True)]
        ranges = []
        for last in range(len(names)):
            equal = [f"{name} = {literal}" for name, literal in zip(names[:last], literals, strict=False)]
            ranges.append(f"({' AND '.join([*equal, f'{names[last]} > {literals[last]}'])})")
        return f" WHERE {' OR '.join(ranges)}"

    def key_of(self, raw: Raw) -> list[bytes]:
        """Return the key of a raw row, for `statement`."""
        return [raw[at] or b"" for at in self._at]

    def row(self, raw: Raw) -> Row:
        """Decode a row. Raises ``NotCarried`` for a value that cannot be carried exactly (I8)."""
        values: list[Any] = []
        try:
            # What follows the columns is the key once more.
            for value, column in zip(raw[: len(self._columns)], self._columns, strict=True):
                values.append(None if value is None else column.read.decode(value))
        except (ValueError, ArithmeticError, KeyError) as error:
            raise NotCarried(self._explain(raw, len(values), error)) from None
        return tuple(values)

    def _explain(self, raw: Raw, at: int, error: Exception) -> str:
        """Return why a row is not carried: the first ``at`` columns of it are."""
        key = {column.name: raw[at] for column, at in zip(self._key, self._at, strict=True)}
        if at >= min(len(raw), len(self._columns)):
            return f"the table {self.table}, row {key}: it cannot be carried"
        place, value = f"the table {self.table}, row {key}, column {self._columns[at].name}", raw[at] or b""
        if not self._shows_values:
            return f"{place}: {NOT_SHOWN}"
        shown = value if len(value) <= 60 else value[:60] + b"..."
        return f"{place}: {shown!r} cannot be carried: {error}"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _selected(name: str, definition: str, charset: str | None) -> _Selected:
    """Return how a column is selected and decoded. Raises ValueError naming it if that is not possible exactly."""
    try:
        found = defined(definition)
        match found.type.form:
            case Form.FLOAT:
                exact = Printed(lambda raw: shortest(_FLOAT.pack(float(raw))))
                # I8: SELECT prints six digits of a FLOAT. As a DOUBLE it prints all.
                return _Selected(name, exact, _number, _EXACT, _EXACT)
            case Form.ENUM:
                return _Selected(name, printed_text(charset), _number, compared=_MEMBER)
            case Form.SET:
                members = sets_by_text(found.inside, printed_text(charset).decode, copied=True)
                return _Selected(name, Printed(members.__getitem__), _number, compared=_MEMBER)
        read = printed(found, charset)
        match found.type.form:
            case Form.DOUBLE:
                return _Selected(name, read, _number, _EXACT, _EXACT)
            case Form.INTEGER | Form.DECIMAL:
                return _Selected(name, read, _number)
            case Form.TIME | Form.TIMESTAMP | Form.ADDRESS:
                return _Selected(name, read, lambda raw: "'" + raw.decode("ascii").replace("'", "''") + "'")
            case Form.TEXT:
                return _Selected(name, read, lambda raw: f"_{charset} X'{raw.hex()}'")
            case Form.BIT:
                return _Selected(name, read, lambda raw: str(int.from_bytes(raw, "big")))
            case _:
                return _Selected(name, read, lambda raw: f"X'{raw.hex()}'")
    except ValueError as error:
        raise ValueError(f"column {name}: {error}") from None


def _number(raw: bytes) -> str:
    if not _NUMBER.fullmatch(raw):
        raise RelayError(f"{raw!r} is not a number: the primary key changed while its snapshot was read")
    return raw.decode("ascii")


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)


def limit_for(rows: int, size: int, most: int, page: int) -> int:
    """Return how many rows to ask for next, so that they have about ``page`` bytes, at most ``most`` rows.

    ``rows``, ``size``: how large the last chunk was, in rows and bytes.
    """
    fitting = page * rows // max(size, 1) if rows else most
    return max(1, min(most, fitting, 2 * rows if rows else most))

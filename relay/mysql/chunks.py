"""Reads a table in chunks of its primary key: the statements, and the decoding of what they select.

The server reads the rows of the chunk, not those before and behind it, whatever the key is of. So members of ENUM and
SET are listed, since it finds them by equality alone. It does not know that an index of first characters is in order,
so a chunk of such an index ends at a row that it is asked for first.

A row has the same values, byte for byte, as in the binlog (I8): ``relay.types.sql`` lists them. So a column is
selected in a form that loses nothing: text and bytes as they are stored, FLOAT as DOUBLE, TIMESTAMP in UTC.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relay.avro.columns import shortest
from relay.config.protection import NOT_SHOWN
from relay.errors import RelayError
from relay.mysql.errors import NotCarried
from relay.mysql.indexes import PRIMARY, Part, UniqueIndex, indexes_of
from relay.mysql_dialect.compiled_changes import Cell
from relay.mysql_dialect.definitions import Definition, definitions, text_of
from relay.mysql_dialect.members import members, sets_by_text
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

Raw = tuple[bytes | None, ...]
"""The values of one row as the server sends them."""

_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?", re.IGNORECASE)
_FLOAT = struct.Struct("<f")
_EXACT = "{} * 1E0"
_MEMBER = "CAST({} AS UNSIGNED)"
_BY_CHARACTER = re.compile("(.*_bin|.*_general_ci|latin1_swedish(_nopad)?_ci)?")
"""Collations that compare texts character by character, and the empty one of bytes."""
_MOST_LISTED = 4096  # values of an ENUM or a SET
_MOST_READS = 10**9  # of rows that are not of the chunk, some ten minutes


@dataclass(frozen=True, slots=True)
class _Selected:
    """A column in a SELECT.

    ``read``: how a value of it is read. ``literal``: what a value of it is compared with, made of ``compared`` as it is
    selected. ``tested``: what of it is compared. ``{}`` in these is the column's quoted name. ``members``: how many
    values an ENUM or a SET can have, numbered from 0; else 0.
    """

    name: str
    read: Printed
    literal: Callable[[bytes], str]
    value: str = "{}"
    compared: str = "{}"
    members: int = 0
    tested: str = "{}"

    @property
    def test(self) -> str:
        return self.tested.format(quoted(self.name))

    @property
    def is_listed(self) -> bool:
        return 0 < self.members <= _MOST_LISTED

    def equal(self, value: bytes) -> str:
        """Return the condition that it has a value."""
        literal = self.literal(value)
        if not self.is_listed:
            return f"{self.test} = {literal}"
        # MySQL, and MariaDB before 11, read all rows of a number that is alone. MySQL takes it twice for a list, and
        # MariaDB with a number of no member.
        return f"{self.test} IN ({literal}, /*!80000 {literal} *//*M! {self.members} */)"

    def behind(self, value: bytes, *, is_descending: bool) -> str:
        """Return the condition that it has a value that comes after another one in an index."""
        literal = self.literal(value)
        if not self.is_listed:
            return f"{self.test} {'<' if is_descending else '>'} {literal}"
        numbers = range(int(literal)) if is_descending else range(int(literal) + 1, self.members)
        return f"{self.test} IN ({', '.join(map(str, numbers))})" if numbers else "false"


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table as ``information_schema`` describes it: its columns as `COLUMNS` selects them, and its unique indexes."""

    columns: tuple[tuple[str, str, str | None, str | None], ...]
    indexes: tuple[UniqueIndex, ...]

    @classmethod
    def of(cls, columns: Iterable[Sequence[Any]], parts: Iterable[Sequence[Any]]) -> TableDescription:
        """Make it of the rows that `COLUMNS` and `INDEXES` select."""
        return cls(
            tuple(
                (str(name), text_of(kind), _optional(charset), _optional(collation))
                for name, kind, charset, collation in columns
            ),
            indexes_of(parts),
        )

    @property
    def primary(self) -> tuple[str, ...]:
        """The columns of its primary key."""
        return next((index.columns for index in self.indexes if index.name == PRIMARY), ())

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
        collations = {name: collation or "" for name, _, _, collation in description.columns}

        def in_index(part: Part) -> _Selected:
            column = by_name[str(part.column)]
            # I1: texts may be equal that do not begin equally, such as with a soft hyphen.
            if not part.first or _BY_CHARACTER.fullmatch(collations[column.name]):
                return column
            return replace(column, compared=f"LEFT({{}}, {part.first})", tested=f"LEFT({{}}, {part.first})")

        def is_seekable(index: UniqueIndex) -> bool:
            """Whether the server finds by it the rows behind a key."""
            columns = map(in_index, index.parts)
            return not any(part.is_hashed for part in index.parts) and all(
                column.members <= _MOST_LISTED and column.tested == "{}" for column in columns
            )

        primary, *others = description.indexes
        candidates = [primary, *(each for each in others if each.replaces_primary)]
        self._index = next((each for each in candidates if is_seekable(each)), primary)
        self._is_seekable = is_seekable(self._index)
        self._key = list(map(in_index, self._index.parts))
        by = [(name, kind, text) for name, kind, _, text in description.columns if name in self._index.columns]
        # A hash of what the order of the rows depends on: the index, and types and collations of its columns.
        self.order = hashlib.blake2b(repr((self._index, by)).encode(), digest_size=8).hexdigest()
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

    def require_cheap(self, rows: int, size: int, page: int) -> None:
        """Raise ``RelayError`` if the server would read a large table once for each chunk.

        ``size``: the bytes of its ``rows``. ``page``: those of a chunk.
        """
        reads = rows * (size // page) // 2
        if not self._is_seekable and reads > _MOST_READS:
            raise RelayError(
                f"a snapshot of the table {self.table} would read about {reads} rows to get {rows}: its primary key is "
                "a hash, has only the first characters of a text whose collation compares more than characters, or an "
                f"ENUM or a SET of more than {_MOST_LISTED} values, so the server cannot go on behind a row: add a "
                "UNIQUE index of whole NOT NULL columns, or leave the table out of `tables`"
            )

    def statement(self, after: Sequence[bytes], limit: int, ask: Callable[[str], Iterable[Raw]]) -> tuple[str, bool]:
        """Return the SELECT of the next ``limit`` rows, and whether rows follow even if it finds fewer.

        ``after``: the key of the last row, empty at the beginning. ``ask`` runs a statement and returns its rows.
        Raises ``RelayError`` if ``after`` is not a key of this table.
        """
        where, end = " OR ".join(self._behind(after)) if after else "true", list[Raw]()
        select = f"SELECT {self._selects} FROM {self._place} FORCE INDEX ({quoted(self._index.name)}) WHERE "
        if self._is_seekable and any(part.first for part in self._index.parts):
            end = list(ask(f"{select}{where} LIMIT {limit}, 1"))
            for last in map(self.key_of, end):
                # The server sorts the rows up to this one. Whichever it is, none is left out.
                where = f"({where}) AND ({' OR '.join([*self._behind(last, turned=True), self._equal(last)])})"
        order = ", ".join(
            column.test + " DESC" * part.is_descending
            for column, part in zip(self._key, self._index.parts, strict=True)
        )
        return f"{select}{where} ORDER BY {order} LIMIT {limit}", bool(end)

    def select(self, rest: str) -> str:
        """Return a SELECT of the table's rows that ends in ``rest``."""
        return f"SELECT {self._selects} FROM {self._place} {rest}"

    def _behind(self, key: Sequence[bytes], *, turned: bool = False) -> Iterator[str]:
        """Yield conditions of the rows behind a key, or before it if it is ``turned``: a > x, and a = x AND b > y.

        Both servers read by an index what meets one of them.
        """
        if len(key) != len(self._key):
            raise RelayError(f"the primary key of {self.table} changed while its snapshot was read: begin another one")
        for at, (column, part) in enumerate(zip(self._key, self._index.parts, strict=True)):
            behind = column.behind(key[at], is_descending=part.is_descending != turned)
            yield f"{self._equal(key[:at])} AND {behind}" if at else behind

    def _equal(self, key: Sequence[bytes]) -> str:
        """Return the condition of the rows whose key begins so."""
        return " AND ".join(column.equal(value) for column, value in zip(self._key, key, strict=False))

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
                count = len(members(found.inside)) + 1  # 0 is of a value that is not a member
                return _Selected(name, printed_text(charset), _number, compared=_MEMBER, members=count)
            case Form.SET:
                by_text, count = (
                    sets_by_text(found.inside, printed_text(charset).decode, copied=True),
                    len(members(found.inside)),
                )
                return _Selected(name, Printed(by_text.__getitem__), _number, compared=_MEMBER, members=1 << count)
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

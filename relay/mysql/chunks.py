"""Reads a table in chunks of its primary key: the statements, and the decoding of the rows they select.

Whatever the type of the key, the server reads only the rows of the chunk: members of ENUM and SET are listed, because
it finds them by equality alone, and a chunk of a prefix index, which it does not know to be ordered, ends at a row that
is selected first. Columns are selected in forms that lose nothing, so their values are the binlog's (I8).
"""

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from relay.avro.columns import shortest
from relay.config.protection import NOT_SHOWN
from relay.errors import RelayError
from relay.mysql.errors import NotCarried
from relay.mysql.text_rows import values_of
from relay.mysql_dialect.catalog import Definition, quoted, text_of
from relay.mysql_dialect.compiled_changes import Cell
from relay.mysql_dialect.printed import Printed, members, printed
from relay.mysql_dialect.tables import Row
from relay.types.sql import Form, defined

INDEXES = (
    "SELECT INDEX_NAME, COLUMN_NAME, COLLATION = 'D', SUB_PART, INDEX_TYPE <> 'BTREE', NULLABLE = 'YES'"
    " FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0"
    " /*!80000 AND IS_VISIBLE = 'YES' *//*M!100600 AND IGNORED = 'NO' */"
    " ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX"
)
"""Selects the parts of the unique indexes of a table that statements may use, the primary key first."""

PRIMARY = "PRIMARY"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an index. ``column``: None for an expression. ``first``: characters, or 0. ``is_hashed``: unordered."""

    column: str | None
    is_descending: bool = False
    first: int = 0
    is_hashed: bool = False
    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    name: str
    parts: tuple[Part, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(str(part.column) for part in self.parts)

    @property
    def replaces_primary(self) -> bool:
        """Whether a table can be read by this index instead, each row once."""
        return not any(part.column is None or part.is_nullable or part.first for part in self.parts)


SESSION = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', character_set_results = NULL, max_sort_length = 4096",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
"""Settings for the connection: times in UTC, text in its column's character set, and whole keys in sorts."""

COLUMNS = (
    "SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
"""Selects name, type, character set and collation of the columns of a table."""

Raw = tuple[bytes | None, ...]  # the values of one row as the server sends them

_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?", re.IGNORECASE)
_FLOAT = struct.Struct("<f")
_EXACT = "{} * 1E0"
_MEMBER = "CAST({} AS UNSIGNED)"
_BY_CHARACTER = re.compile("(.*_bin|.*_general_ci|latin1_swedish(_nopad)?_ci)?")
"""Collations that compare texts character by character, and the empty one for bytes."""
_MOST_LISTED = 4096  # values of an ENUM or a SET
_MOST_READS = 10**9  # rows outside the chunk, worth about ten minutes


@dataclass(frozen=True, slots=True)
class _Selected:
    """A column in a SELECT. ``{}`` in its expressions is its quoted name. ``read``: how its values are read.

    ``literal``: the form that a value is compared with, made from ``compared``, its selected form. ``tested``: the
    compared expression. ``members``: how many values an ENUM or a SET can have, numbered from 0; otherwise 0.
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
        literal = self.literal(value)
        if not self.is_listed:
            return f"{self.test} = {literal}"
        # MySQL, and MariaDB before 11, read all rows for a single number. The number twice makes MySQL treat it as a
        # list; a number of no member does so for MariaDB.
        return f"{self.test} IN ({literal}, /*!80000 {literal} *//*M! {self.members} */)"

    def after(self, value: bytes, *, is_descending: bool) -> str:
        """Return the condition that its value comes after another one in an index."""
        literal = self.literal(value)
        if not self.is_listed:
            return f"{self.test} {'<' if is_descending else '>'} {literal}"
        numbers = range(int(literal)) if is_descending else range(int(literal) + 1, self.members)
        return f"{self.test} IN ({', '.join(map(str, numbers))})" if numbers else "false"


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table by ``information_schema``: its columns, selected with `COLUMNS`, and its unique indexes."""

    columns: tuple[tuple[str, str, str | None, str | None], ...]
    indexes: tuple[UniqueIndex, ...]

    @classmethod
    def of(cls, columns: Iterable[Sequence[Any]], parts: Iterable[Sequence[Any]]) -> Self:
        """Make it from the rows that `COLUMNS` and `INDEXES` select."""
        found: dict[str, list[Part]] = {}
        for name, column, is_descending, first, is_hashed, is_nullable in parts:
            part = Part(column, bool(is_descending), int(first or 0), bool(is_hashed), bool(is_nullable))
            found.setdefault(str(name), []).append(part)
        indexes = tuple(UniqueIndex(name, tuple(each)) for name, each in found.items())
        return cls(tuple((name, text_of(kind), *texts) for name, kind, *texts in columns), indexes)

    @property
    def primary(self) -> tuple[str, ...]:
        return next((index.columns for index in self.indexes if index.name == PRIMARY), ())

    def definition(self, table: str) -> Definition:
        """Return its columns and key as the binlog has them. Raises ``NotCarried``, which names ``table``."""
        found = Definition.of({name: kind for name, kind, *_ in self.columns}, self.primary)
        if found.problem:
            raise NotCarried(f"the table {table} {found.problem}")
        return found


class KeyMissing(RelayError):
    """The table has no primary key by which to read it."""


class ChunkQuery:
    """The statements that read one table, and the decoders for their rows. ``shows_values``: whether messages do so.

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

        def is_seekable(index: UniqueIndex) -> bool:
            """Whether the server can seek the rows after a key in it."""
            return not any(
                part.is_hashed
                or by_name[str(part.column)].members > _MOST_LISTED
                # I1: texts may be equal although they begin differently, such as with a soft hyphen.
                or (part.first and not _BY_CHARACTER.fullmatch(collations[str(part.column)]))
                for part in index.parts
            )

        primary, *others = description.indexes
        candidates = [primary, *(each for each in others if each.replaces_primary)]
        self._index = next((each for each in candidates if is_seekable(each)), primary)
        self._is_seekable = is_seekable(self._index)
        self._key = []
        for part in self._index.parts:
            column = by_name[str(part.column)]
            is_sorted_text = not self._is_seekable and collations[column.name] and not column.members
            self._key.append(_by_bytes(column, part.first) if is_sorted_text else column)
        by = [(name, kind, text) for name, kind, _, text in description.columns if name in self._index.columns]
        # A hash of everything that decides the order of rows: the index, and types and collations of its columns.
        self.order = hashlib.blake2b(repr((self._index, by)).encode(), digest_size=8).hexdigest()
        # The places of the key in a raw row: among the columns, or selected again in the compared form.
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
        return [(column.read.cell, column.read.decode, False, False) for column in self._columns]

    def require_cheap(self, rows: int, size: int, page: int) -> None:
        """Raise ``RelayError`` if each chunk of ``page`` bytes would read a large table, of ``size`` bytes."""
        reads = rows * (size // page) // 2
        if not self._is_seekable and reads > _MOST_READS:
            raise RelayError(
                f"a snapshot of the table {self.table} would read about {reads} rows to get {rows}, because the server "
                "cannot seek the rows after a key: the primary key is a hash, has only the first characters of a text "
                "whose collation does not compare character by character, or has an ENUM or a SET of more than "
                f"{_MOST_LISTED} values. Add a UNIQUE index of whole NOT NULL columns, or leave the table out of "
                "`tables`"
            )

    def statement(self, after: Sequence[bytes], limit: int, ask: Callable[[str], Iterable[Raw]]) -> tuple[str, bool]:
        """Return the SELECT of the next ``limit`` rows, and whether rows follow even if it finds fewer.

        ``after``: the last key, or empty. ``ask``: runs a statement. Raises ``RelayError`` if ``after`` is not a key.
        """
        where, end = " OR ".join(self._after(after)) if after else "true", list[Raw]()
        select = f"SELECT {self._selects} FROM {self._place} FORCE INDEX ({quoted(self._index.name)}) WHERE "
        if self._is_seekable and any(part.first for part in self._index.parts):
            end = list(ask(f"{select}{where} LIMIT {limit}, 1"))
            for last in map(self.key_of, end):
                # The server sorts the rows up to this one. Whichever row it is, none is left out.
                where = f"({where}) AND ({' OR '.join([*self._after(last, turned=True), self._equal(last)])})"
        order = ", ".join(
            column.test + " DESC" * part.is_descending
            for column, part in zip(self._key, self._index.parts, strict=True)
        )
        return f"{select}{where} ORDER BY {order} LIMIT {limit}", bool(end)

    def select(self, rest: str) -> str:
        """Return a SELECT of the table's rows that ends in ``rest``."""
        return f"SELECT {self._selects} FROM {self._place} {rest}"

    def _after(self, key: Sequence[bytes], *, turned: bool = False) -> Iterator[str]:
        """Yield conditions, for which servers use an index, for the rows after a key, or before it if ``turned``."""
        if len(key) != len(self._key):
            raise RelayError(
                f"the primary key of {self.table} changed while its snapshot was being read: start a new snapshot"
            )
        for at, (column, part) in enumerate(zip(self._key, self._index.parts, strict=True)):
            following = column.after(key[at], is_descending=part.is_descending != turned)
            yield f"{self._equal(key[:at])} AND {following}" if at else following

    def _equal(self, key: Sequence[bytes]) -> str:
        return " AND ".join(column.equal(value) for column, value in zip(self._key, key, strict=False))

    def key_of(self, raw: Raw) -> list[bytes]:
        return [raw[at] or b"" for at in self._at]

    def row(self, raw: Raw) -> Row:
        """Decode a row. Raises ``NotCarried`` for a value that cannot be carried exactly (I8)."""
        values: list[Any] = []
        try:
            # After the columns, the key is selected again.
            for value, column in zip(raw[: len(self._columns)], self._columns, strict=True):
                values.append(None if value is None else column.read.decode(value))
        except (ValueError, ArithmeticError, KeyError) as error:
            raise NotCarried(self._explain(raw, len(values), error)) from None
        return tuple(values)

    def row_in(self, packet: bytes) -> Row:
        """Decode the row in a packet, as `row` does."""
        return self.row(values_of(packet))

    def _explain(self, raw: Raw, at: int, error: Exception) -> str:
        """Return why a row cannot be carried after its first ``at`` columns."""
        key = {column.name: raw[at] for column, at in zip(self._key, self._at, strict=True)}
        if at >= min(len(raw), len(self._columns)):
            return f"the table {self.table}, row {key}: it cannot be carried"
        place, value = f"the table {self.table}, row {key}, column {self._columns[at].name}", raw[at] or b""
        if not self._shows_values:
            return f"{place}: {NOT_SHOWN}"
        shown = value if len(value) <= 60 else value[:60] + b"..."
        return f"{place}: {shown!r} cannot be carried: {error}"


def _selected(name: str, definition: str, charset: str | None) -> _Selected:
    """Return how to select and decode a column. Raises ValueError, naming it, if it cannot be read exactly."""
    try:
        found = defined(definition)
        if found.type.name == "year" and found.inside == "2":
            raise ValueError("SELECT prints two digits of a YEAR(2): make it a YEAR")  # I8
        if found.type.form is Form.FLOAT:
            exact = Printed(lambda raw: shortest(_FLOAT.pack(float(raw))))
            # I8: SELECT prints six digits of a FLOAT. As a DOUBLE it prints all.
            return _Selected(name, exact, _number, _EXACT, _EXACT)
        read = printed(found, charset)
        match found.type.form:
            case Form.ENUM:
                count = len(members(found.inside)) + 1  # 0 stands for a value that is not a member
                return _Selected(name, read, _number, compared=_MEMBER, members=count)
            case Form.SET:
                return _Selected(name, read, _number, compared=_MEMBER, members=1 << len(members(found.inside)))
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


def _by_bytes(column: _Selected, first: int) -> _Selected:
    """Return how to compare a text of the key, its ``first`` characters or all, where the server has to sort it (I1).

    In some collations, such as cp1250_czech_cs, sorting and comparing put texts in different orders.
    """
    form = f"CAST(LEFT({{}}, {first}) AS BINARY)" if first else "CAST({} AS BINARY)"
    return replace(column, compared=form, tested=form, literal=lambda raw: f"X'{raw.hex()}'")


def _number(raw: bytes) -> str:
    if not _NUMBER.fullmatch(raw):
        raise RelayError(f"{raw!r} is not a number: the primary key changed while its snapshot was being read")
    return raw.decode("ascii")


def limit_for(rows: int, size: int, most: int, page: int) -> int:
    """Return how many rows, up to ``most``, to request for ``page`` bytes, after ``rows`` of ``size`` bytes."""
    fitting = page * rows // max(size, 1) if rows else most
    return max(1, min(most, fitting, 2 * rows if rows else most))

"""The columns of a table after ALTER TABLE or CREATE TABLE; None, not a guess, unless all of it is understood (I8).

The order is as in ``mysql_prepare_alter_table`` of MySQL's ``sql_table.cc``: columns are changed in their places first,
and then added, and columns with a place moved, in the order of the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from relay.mysql_dialect.alter_effects import INDEXES, type_of
from relay.mysql_dialect.statement_text import Token, after_table, closing, outside, parts_of, tokens, without_column
from relay.table import Column
from relay.types.columns import ColumnKind
from relay.types.sql import Form, defined

# fmt: off
# The beginnings of parts of a statement that concern neither columns nor the primary key.
_HARMLESS = (
    "ALTER", "ORDER", "ENGINE", "AUTO_INCREMENT", "COMMENT", "ALGORITHM", "LOCK", "FORCE", "ENABLE", "DISABLE",
    "ROW_FORMAT", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "AVG_ROW_LENGTH", "CHECKSUM", "PACK_KEYS",
    "STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES", "COMPRESSION", "ENCRYPTION", "PARTITION", "REMOVE",
    "REORGANIZE", "COALESCE", "ANALYZE", "CHECK", "OPTIMIZE", "REPAIR", "REBUILD",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table at its source, and its primary key.

    ``text``: whether text columns without a character set are text and not binary there, or None if unknown. ``types``:
    the defined types of columns by name, as far as known, and only of columns that no generated column uses.
    """

    columns: tuple[Column, ...]
    primary: tuple[str, ...]
    text: bool | None = None
    types: Mapping[str, str] = field(default_factory=dict, compare=False)


class _NotUnderstood(ValueError):
    """A part of a statement with an unknown effect on the columns."""


_FAILURES = (LookupError, ValueError, StopIteration)  # the errors raised when a statement has other parts than expected


def altered(before: Shape, sql: str, sql_mode: int) -> Shape | None:
    """Return a table after an ALTER TABLE, or None if the statement is not understood. A new name changes nothing."""
    try:
        words = _words(sql, sql_mode)
        return _Alteration(before, parts_of(after_table(words, "ALTER"))).result()
    except _FAILURES:
        return None


def created(sql: str, sql_mode: int, text: bool | None) -> Shape | None:
    """Return the table of a CREATE TABLE with columns, or None if not understood. ``text``: by default, see `Shape`."""
    try:
        words = after_table(_words(sql, sql_mode), "CREATE")
        if not words[0].is_sign("("):
            return None
        end = closing(words, 0)
        options = list(outside(words[end + 1 :]))
        if any(word.is_word("SELECT", "AS", "WITH", "TABLE", "VALUES", "UNION", "LIKE") for word in options):
            return None
        text = _text_default(options, text)
        empty = Shape((), (), text)
        # It has the same parts as ADD in an ALTER TABLE.
        parts = [[Token("ADD", True), *part] for part in parts_of(words[1:end])]
        shape = _Alteration(empty, parts).result()
    except _FAILURES:
        return None
    # MySQL may add a primary key of its own (sql_generate_invisible_primary_key).
    return shape if shape.primary else None


def _words(sql: str, sql_mode: int) -> Sequence[Token]:
    if "\\" in sql:  # I8: the session decides whether a literal ends after it, and so what belongs to the statement
        raise _NotUnderstood
    return list(tokens(sql, sql_mode))


def _text_default(options: Sequence[Token], otherwise: bool | None) -> bool | None:
    """Return whether text columns are text by the character set among a table's options."""
    found = otherwise
    for at, word in enumerate(options):
        is_set = word.is_word("SET") and at and options[at - 1].is_word("CHARACTER", "CHAR")
        if is_set or word.is_word("CHARSET", "COLLATE"):
            value = [each for each in options[at + 1 : at + 3] if not each.is_sign("=")]
            if not value or not value[0].is_name:  # quoted as text, so it is not among the tokens
                raise _NotUnderstood
            found = value[0].text.lower() != "binary"
    return found


@dataclass(frozen=True, slots=True)
class _Defined:
    """A column as a statement defines it. ``after``: the column before it, "" if it is first, None if not given."""

    column: Column
    type: str
    is_primary: bool
    after: str | None


def _defined(part: Sequence[Token], text: bool | None) -> _Defined:
    """Read ``name type attributes [FIRST | AFTER other]``."""
    if len(part) < 2 or not part[0].is_name or part[1].is_quoted:
        raise _NotUnderstood
    after: str | None = None
    if part[-1].is_word("FIRST"):
        part, after = part[:-1], ""
    elif len(part) > 3 and part[-2].is_word("AFTER"):
        part, after = part[:-2], part[-1].text
    words = list(outside(part[2:]))
    if any(word.is_word("AS", "GENERATED", "SERIAL", "WITH", "WITHOUT", "FIRST", "AFTER") for word in words):
        raise _NotUnderstood
    is_primary = any(
        word.is_word("PRIMARY") or (word.is_word("KEY") and not (at and words[at - 1].is_word("UNIQUE", "PRIMARY")))
        for at, word in enumerate(words)
    )
    type_, _ = type_of(part)
    return _Defined(_column(part[0].text, type_, words, text), type_, is_primary, after)


def _column(name: str, type_: str, words: Sequence[Token], text: bool | None) -> Column:
    """Return the column of a definition. ``words``: the words after the type's first word, without parentheses."""
    found = defined(type_)
    base = found.type
    if base.form is Form.TEXT:
        if words and words[0].is_word("VARYING", "BYTE") and base.name == "char":
            if words[0].is_word("BYTE"):
                return Column(name, ColumnKind.BYTES)
        elif any(word.is_word("BYTE") for word in words):
            raise _NotUnderstood
        named_set = base.is_national or any(word.is_word("ASCII", "UNICODE") for word in words)
        is_text = _text_default(words, True if named_set else text)
        if is_text is None:
            raise _NotUnderstood
        return Column(name, base.kind if is_text else ColumnKind.BYTES)
    if base.form is Form.FLOAT and found.inside.isdigit() and int(found.inside) > 24:
        return Column(name, ColumnKind.DOUBLE)
    return Column(name, found.carried, base.told)


class _Alteration:
    def __init__(self, before: Shape, parts: Sequence[Sequence[Token]]) -> None:
        self._before = before
        self._text = before.text
        self._dropped: set[str] = set()
        # The columns by their present name in lower case.
        self._changed: dict[str, _Defined] = {}
        self._renamed: dict[str, str] = {}
        self._placed: list[_Defined] = []  # columns to be placed after the others, in the order of the statement
        self._drops_primary = False
        self._primary: list[str] | None = None
        self._names = {column.name.lower() for column in before.columns}
        for part in [part for part in parts if not self._is_option(part)]:
            self._ACTIONS[part[0].text.upper()](self, part[1:])

    def _is_option(self, part: Sequence[Token]) -> bool:
        """Whether a part concerns only the table itself. Columns before it get its character set, too."""
        first = part[0]
        if first.is_word(*self._ACTIONS):
            return False
        if not first.is_word("DEFAULT", "CHARSET", "CHARACTER", "COLLATE", "CONVERT", *_HARMLESS):
            raise _NotUnderstood
        # Options follow each other without commas.
        self._text = _text_default(list(outside(part)), None if first.is_word("CONVERT") else self._text)
        if first.is_word("CONVERT") and not self._text:
            raise _NotUnderstood
        return True

    def _add(self, rest: Sequence[Token]) -> None:
        if rest[0].is_word("CONSTRAINT"):
            rest = rest[1:] if rest[1].is_word("PRIMARY", *INDEXES) else rest[2:]  # its name may be left out
        if rest[0].is_word("PRIMARY"):
            at = next(at for at, word in enumerate(rest) if word.is_sign("("))
            self._primary = [part[0].text for part in parts_of(rest[at + 1 : closing(rest, at)])]
            return
        if rest[0].is_word("PARTITION", *INDEXES):
            return
        if rest[0].is_word("PERIOD", "SYSTEM", "LIKE"):
            raise _NotUnderstood
        rest, is_conditional = without_column(rest)
        if rest[0].is_sign("("):
            for part in parts_of(rest[1 : closing(rest, 0)]):
                if part[0].is_sign("("):
                    raise _NotUnderstood
                self._add(part)
            return
        if is_conditional and rest[0].text.lower() in self._names:
            return
        added = _defined(rest, self._text)
        self._placed.append(added)
        if added.is_primary:
            self._primary = [added.column.name]

    def _modify(self, rest: Sequence[Token], definition: int = 0) -> None:
        rest, is_conditional = without_column(rest)
        old = rest[0].text.lower()
        if old not in self._names:
            if is_conditional:
                return
            raise _NotUnderstood
        now = _defined(rest[definition:], self._text)
        self._changed[old] = now
        if now.column.name.lower() != old:
            self._renamed[old] = now.column.name
        if now.after is not None:
            self._placed.append(now)
        if now.is_primary:
            self._primary = [now.column.name]

    def _drop(self, rest: Sequence[Token]) -> None:
        if rest[0].is_word("PRIMARY"):
            self._drops_primary = True
            return
        if rest[0].is_word("CONSTRAINT", "PARTITION", *INDEXES):
            names = [word.text.upper() for word in rest[1:] if not word.is_word("IF", "EXISTS")]
            self._drops_primary = self._drops_primary or names[:1] == ["PRIMARY"]
            return
        rest, is_conditional = without_column(rest)
        if rest[0].is_word("PERIOD", "SYSTEM"):
            raise _NotUnderstood
        name = rest[0].text.lower()
        if name in self._names:
            self._dropped.add(name)
        elif not is_conditional:
            raise _NotUnderstood

    def _rename(self, rest: Sequence[Token]) -> None:
        if not rest[0].is_word("COLUMN"):
            return  # the table, or an index
        rest, _ = without_column(rest)
        if rest[0].text.lower() not in self._names or not rest[1].is_word("TO"):
            raise _NotUnderstood
        self._renamed[rest[0].text.lower()] = rest[2].text

    # Declared here, because it refers to the functions above.
    _ACTIONS: ClassVar[dict[str, Callable[[_Alteration, Sequence[Token]], None]]] = {
        "ADD": _add,
        "MODIFY": _modify,
        "CHANGE": lambda alteration, rest: alteration._modify(rest, definition=1),
        "DROP": _drop,
        "RENAME": _rename,
    }

    def result(self) -> Shape:
        columns: list[Column] = []
        for column in self._before.columns:
            name = column.name.lower()
            if name in self._dropped:
                continue
            if name in self._changed:
                if self._changed[name].after is None:
                    columns.append(self._changed[name].column)
            else:
                columns.append(replace(column, name=self._renamed.get(name, column.name)))
        for placed in self._placed:
            names = [column.name.lower() for column in columns]
            if placed.after is None:
                columns.append(placed.column)
            elif placed.after == "":
                columns.insert(0, placed.column)
            elif placed.after.lower() in names:
                columns.insert(names.index(placed.after.lower()) + 1, placed.column)
            else:
                raise _NotUnderstood
        there = {column.name.lower(): column.name for column in columns}
        if len(there) != len(columns) or not columns:
            raise _NotUnderstood
        types = {name.lower(): type_ for name, type_ in self._before.types.items() if name.lower() not in self._dropped}
        types |= {name: each.type for name, each in self._changed.items() if name in types}
        types = {self._renamed.get(name, there.get(name, name)): type_ for name, type_ in types.items()}
        of_before = self._names.union(map(str.lower, self._renamed.values()))
        # I7: a generated column may use any column whose type was unknown, or another column with its name
        types |= {each.column.name: each.type for each in self._placed if each.column.name.lower() not in of_before}
        kept = {column.name: types[column.name] for column in columns if column.name in types}
        return Shape(tuple(columns), self._primary_of(there), self._text, kept)

    def _primary_of(self, there: dict[str, str]) -> tuple[str, ...]:
        if self._primary is not None:
            if not all(name.lower() in there for name in self._primary):
                raise _NotUnderstood
            return tuple(there[name.lower()] for name in self._primary)
        kept = () if self._drops_primary else self._before.primary
        left = [name for name in kept if name.lower() not in self._dropped]
        now = [self._renamed.get(name.lower(), name).lower() for name in left]
        return tuple(there[name] for name in now)

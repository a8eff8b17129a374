"""Which ALTER TABLE leaves the rows that are there as they are: its clauses are all known, and none changes a value.

An ALTER logs no rows. So what it converts, fills in, drops or renames is in no change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from relay.mysql_dialect.statement_text import (
    ANSI_QUOTES,
    MASKED,
    UNKNOWN_MODE,
    Token,
    after_table,
    closing,
    is_sign,
    outside,
    parts_of,
    tokens,
    without_column,
)
from relay.types.sql import TYPES

INDEXES = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")
_OPTIONS = (
    *("ALGORITHM", "LOCK", "AUTO_INCREMENT", "ROW_FORMAT"),
    *("STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES"),
)
# What is done with partitions whose names follow, between commas.
_OF_PARTITIONS = ("REORGANIZE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK")

_STRICT = 1 << 21 | 1 << 22  # bits of `sql_mode`: STRICT_TRANS_TABLES and STRICT_ALL_TABLES
_TYPE = re.compile(r"(\w+)(?:\((.*)\))?((?: unsigned)?)", re.DOTALL)
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint")
_DECIMALS = ("decimal", "numeric", "dec", "fixed")
# Each holds what the ones before it hold.
_GROWING = (("char",), ("varchar", "text", "mediumtext", "longtext"), ("varbinary", "blob", "mediumblob", "longblob"))
# What may follow the type of a column: where it is new, and gives rows nothing but NULL, and where it was there.
_TEXT = r"(?:CHARACTER SET|CHARSET|COLLATE) (?:= )?(?!BINARY|[='])\S+"
_ANY = rf"NULL|UNSIGNED|SIGNED|(?:IN)?VISIBLE|FIRST|(?:COMMENT|AFTER) \S+|{_TEXT}"
_NEW = re.compile(rf"(?:(?:{_ANY}|ZEROFILL|DEFAULT NULL)(?: |$))*")
_OLD = re.compile(rf"(?:(?:{_ANY}|NOT NULL|DEFAULT(?: (?:'|NULL|CURRENT_\w+|[0-9]\S*))?)(?: |$))*")
_CHARSET = re.compile(rf"(?:(?:DEFAULT )?{_TEXT}(?: |$))+")


def leaves_rows(sql: str) -> bool:
    """Whether an ALTER TABLE changes indexes, partitions or options alone; False if that is not certain."""
    # With protected columns, the text ends there.
    return not sql.endswith("...") and keeps_values(None, sql, ANSI_QUOTES)


def keeps_values(before: Mapping[str, str] | None, sql: str, sql_mode: int) -> bool:
    """Whether all rows have the same columns and values after an ALTER TABLE, or NULL in new columns.

    False if that is not certain. ``before``: the types of columns as far as they are known, by name, without those that
    a generated column may be made of; None: a statement about columns is not certain. ``sql_mode``: of its session,
    which decides whether a value that does not fit is an error.
    """
    if "\\" in sql:  # it depends on the session whether a literal ends after it
        return False
    words = list(tokens(sql, sql_mode, with_literals=True))
    if any(word.is_word("IGNORE") for word in words):  # which removes rows that a unique index has no place for
        return False
    try:
        parts = parts_of(after_table(words, "ALTER"))
        if not parts or _is_of_partitions(parts):
            return bool(parts)
        is_strict = sql_mode != UNKNOWN_MODE and bool(sql_mode & _STRICT)
        return all(_is_harmless(part) or _keeps(part, before, is_strict) for part in parts)
    except (LookupError, ValueError):
        return False


def type_of(definition: Sequence[Token]) -> tuple[str, Sequence[Token]]:
    """Return the type of a column, as ``information_schema`` shows most of them, and what follows it.

    ``definition``: begins with its name.
    """
    end = closing(definition, 2) + 1 if len(definition) > 2 and is_sign(definition[2], "(") else 2
    size = "".join(word.text for word in definition[2:end])
    rest = definition[end:]
    unsigned = " unsigned" if any(word.is_word("UNSIGNED", "ZEROFILL") for word in rest) else ""
    return f"{definition[1].text.lower()}{size}{unsigned}", rest


def _keeps(part: Sequence[Token], before: Mapping[str, str] | None, is_strict: bool) -> bool:
    if before is None:
        return False
    if part[0].is_word("ADD"):
        rest, _ = without_column(part[1:])
        added = parts_of(rest[1 : closing(rest, 0)]) if is_sign(rest[0], "(") else [rest]
        return all(map(_is_null, added))
    if part[0].is_word("MODIFY", "CHANGE"):
        rest, _ = without_column(part[1:])
        name, definition = rest[0].text, rest[1:] if part[0].is_word("CHANGE") else rest
        type_, rest = type_of(definition)
        # Whatever does not fit is an error then.
        is_fit = is_strict and definition[0].text == name and _OLD.fullmatch(_normal(list(outside(rest)))) is not None
        return is_fit and name in before and _holds(before[name], type_)
    if part[0].is_word("RENAME"):
        return not part[1].is_word("COLUMN")
    if part[0].is_word("PARTITION"):
        return part[1].is_word("BY")
    if part[0].is_word("REMOVE", "COALESCE"):
        return part[1].is_word("PARTITIONING", "PARTITION")
    return _CHARSET.fullmatch(_normal(part)) is not None


def _normal(words: Sequence[Token]) -> str:
    return " ".join("'" if word.is_quoted else word.text.upper() for word in words)


def _is_null(definition: Sequence[Token]) -> bool:
    """Whether a column that is added is NULL in the rows that are there."""
    attributes = _normal(type_of(definition)[1])
    # Without NULL, it may be the time of the statement.
    if definition[1].is_word("TIMESTAMP") and not attributes.startswith("NULL"):
        return False
    is_type = not definition[1].is_quoted and definition[1].text.lower() in TYPES
    return is_type and _NEW.fullmatch(attributes) is not None


def _holds(before: str, after: str) -> bool:
    """Whether a type has each value of another one, and the relay publishes it alike, unless there was an error."""
    old, new = _TYPE.fullmatch(before), _TYPE.fullmatch(after)
    if old is None or new is None:
        return False
    (name, size, _), (now, now_size, _) = old.groups(""), new.groups("")
    if name in _INTEGERS and now in _INTEGERS:
        return True
    if name in _DECIMALS and now in _DECIMALS:
        (digits, _, scale), (now_digits, _, now_scale) = size.partition(","), now_size.partition(",")
        return int(scale or 0) == int(now_scale or 0) and int(digits or 10) <= int(now_digits or 10)
    for names in _GROWING:
        if name in names and now in names:
            if (place := names.index(name)) != (now_place := names.index(now)):
                return place < now_place and not now_size
            return size == now_size or (now_size.isdigit() and int(size or 1) <= int(now_size))
    if name in ("enum", "set"):
        return name == now and f"{now_size},".startswith(f"{size},")
    return old.groups() == new.groups() and name != "timestamp"  # which takes NULL for the time of the statement


def _is_of_partitions(parts: Sequence[Sequence[Token]]) -> bool:
    first = parts[0]
    return first[0].is_word(*_OF_PARTITIONS) and first[1].is_word("PARTITION")


def _is_harmless(part: Sequence[Token]) -> bool:
    if any(word.text.upper() == "PRIMARY" for word in part):  # the key of the rows; `PRIMARY` is the name of its index
        return False
    if part[0].is_word("ADD") and part[1].is_word("CONSTRAINT"):
        # Its name may be left out.
        return any(word.is_word(*INDEXES) for word in part[2:4])
    if part[0].is_word("ADD") and part[1].is_word("PARTITION"):
        return is_sign(part[2], "(") or part[2].is_word("PARTITIONS")
    if part[0].is_word("ADD"):
        return part[1].is_word(*INDEXES)
    if part[0].is_word("DROP"):
        return part[1].is_word("CONSTRAINT", *INDEXES)
    if part[0].is_word("RENAME"):
        return part[1].is_word("INDEX", "KEY")
    if part[0].is_word("ALTER"):
        return _is_of_index_or_default(part[1:])
    if part[0].is_word("ENABLE", "DISABLE"):
        return part[1].is_word("KEYS") and len(part) == 2
    return _is_option(part)


def _is_of_index_or_default(words: Sequence[Token]) -> bool:
    """Whether an index is hidden or shown, or a column gets a default, which rows that are there do not take."""
    if words[0].is_word("INDEX", "KEY"):
        return words[2].is_word("VISIBLE", "INVISIBLE") and len(words) == 3
    of_column = words[2:] if words[0].is_word("COLUMN") else words[1:]
    if of_column[0].is_word("DROP"):
        return of_column[1].is_word("DEFAULT") and len(of_column) == 2
    value = [word for word in outside(of_column[2:]) if word.is_name]
    return of_column[0].is_word("SET") and of_column[1].is_word("DEFAULT") and len(value) <= 1


def _is_option(part: Sequence[Token]) -> bool:
    """Whether it is ``NAME [=] value`` and no more: options may follow each other without commas."""
    if part[0].is_word("FORCE"):
        return len(part) == 1
    value = part[2:] if len(part) > 1 and is_sign(part[1], "=") else part[1:]
    is_masked = "".join(word.text for word in value) == MASKED
    if part[0].is_word("COMMENT"):  # a text is not a token, or a name in double quotes
        return not value or is_masked or (len(value) == 1 and value[0].is_quoted)
    if part[0].is_word("ENGINE"):
        return len(value) == 1 and value[0].is_word("INNODB")
    return part[0].is_word(*_OPTIONS) and (is_masked or (len(value) == 1 and value[0].is_name))

"""Recognizes ALTER TABLE statements that add or remove rows, and those that leave all rows and values alone."""

import re
from collections.abc import Iterable, Mapping, Sequence

from relay.mysql_dialect.statement_text import (
    ANSI_QUOTES,
    END,
    MARIADB,
    StatementScanner,
    Token,
    after_table,
    closing,
    outside,
    parts_of,
    tokens,
    without_column,
)
from relay.types.sql import TYPES

# fmt: off
ENGINES = (
    "ARCHIVE", "ARIA", "COLUMNSTORE", "CSV", "HEAP", "INNOBASE", "INNODB", "MEMORY", "MROONGA", "MYISAM", "NDB",
    "NDBCLUSTER", "ROCKSDB", "S3", "TOKUDB",
)
"""With one of these engines, a table keeps its rows. With others it has none, or rows of other tables or servers."""
_OF_COLUMNS = ("ADD", "ALTER", "CHANGE", "DROP", "MODIFY", "RENAME")
# The beginnings of the other parts of an ALTER TABLE, except options and "=".
_PARTS = (
    "ALGORITHM", "ANALYZE", "AUTOEXTEND_SIZE", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHAR", "CHARACTER", "CHARSET",
    "CHECK", "CHECKSUM", "COALESCE", "COLLATE", "COMMENT", "COMPRESSION", "CONVERT", "DATA", "DEFAULT",
    "DELAY_KEY_WRITE", "DISABLE", "ENABLE", "ENCRYPTION", "ENGINE", "ENGINE_ATTRIBUTE", "FORCE", "INDEX",
    "INSERT_METHOD", "KEY_BLOCK_SIZE", "LOCK", "MAX_ROWS", "MIN_ROWS", "OPTIMIZE", "PACK_KEYS",
    "PAGE_CHECKSUM", "PARTITION", "REBUILD", "REMOVE", "REORGANIZE", "ROW_FORMAT", "SECONDARY_ENGINE",
    "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "STORAGE", "TABLESPACE", "TABLE_CHECKSUM", "TRANSACTIONAL", "UPGRADE", "WITH", "WITHOUT",
)
# fmt: on
# Parts that contain commas.
_LISTS = ("ANALYZE", "CHECK", "OPTIMIZE", "ORDER", "REBUILD", "REORGANIZE")
# With one of these, an ALTER IGNORE TABLE may remove rows: all but one of the rows that get the same key, and rows that
# no partition accepts or a condition excludes.
_DISCARDING = ("UNIQUE", "PRIMARY", "MODIFY", "CHANGE", "CONVERT", "PARTITION", "CHECK")

INDEXES = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")
_INDEX = "|".join(INDEXES)
_OPTION = "ALGORITHM|LOCK|AUTO_INCREMENT|ROW_FORMAT|STATS_PERSISTENT|STATS_AUTO_RECALC|STATS_SAMPLE_PAGES"
_MASK = r"\* \* \*"  # the tokens of `MASKED`
_HARMLESS = re.compile(
    "|".join(
        (
            rf"ADD (?:CONSTRAINT (?:\S+ )?)?(?:{_INDEX})(?: .*)?",  # the name of a constraint may be left out
            "ADD PARTITION(?: PARTITIONS .*)?",
            rf"DROP (?:CONSTRAINT|{_INDEX})(?: .*)?",
            "RENAME (?:INDEX|KEY) .*",
            r"ALTER (?:INDEX|KEY) \S+ (?:IN)?VISIBLE",
            # A default, which existing rows do not get.
            r"ALTER (?:COLUMN )?\S+ (?:DROP DEFAULT|SET DEFAULT(?: [-+])?(?: \w+)?(?: '| \* \* \*)?)",
            "(?:EN|DIS)ABLE KEYS",
            # Options may follow each other without commas, so each is `NAME [=] value` and no more.
            "FORCE",
            rf"COMMENT(?: =)?(?: '| {_MASK})?",
            "ENGINE(?: =)? INNODB",
            rf"(?:{_OPTION})(?: =)? (?:\w+|{_MASK})",
        )
    )
)
"""Clauses about indexes, partitions and options that leave the rows as they are, in the form of `_normal`."""
_OF_PARTITIONS = re.compile("(?:REORGANIZE|REBUILD|OPTIMIZE|ANALYZE|CHECK) PARTITION(?: .*)?")
"""A clause about partitions, followed by their names with commas."""

_STRICT = 1 << 21 | 1 << 22  # bits of `sql_mode`: STRICT_TRANS_TABLES and STRICT_ALL_TABLES
_TYPE = re.compile(r"(\w+)(?:\((.*)\))?((?: unsigned)?)", re.DOTALL)
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint")
_DECIMALS = ("decimal", "numeric", "dec", "fixed")
# Each type can hold every value of those before it.
_GROWING = (("char",), ("varchar", "text", "mediumtext", "longtext"), ("varbinary", "blob", "mediumblob", "longblob"))
# What may follow a column's type: if the column is new and existing rows get only NULL, and if it existed before.
_TEXT = r"(?:CHARACTER SET|CHARSET|COLLATE) (?:= )?(?!BINARY|[='])\S+"
_ANY = rf"NULL|UNSIGNED|SIGNED|(?:IN)?VISIBLE|FIRST|(?:COMMENT|AFTER) \S+|{_TEXT}"
_NEW = re.compile(rf"(?:(?:{_ANY}|ZEROFILL|DEFAULT NULL)(?: |$))*")
_OLD = re.compile(rf"(?:(?:{_ANY}|NOT NULL|DEFAULT(?: (?:'|NULL|CURRENT_\w+|[0-9]\S*))?)(?: |$))*")
_OF_TABLE = re.compile(
    "RENAME(?! COLUMN ) .*|PARTITION BY .*|(?:REMOVE|COALESCE) PARTITION(?:ING)?(?: .*)?"
    rf"|(?:(?:DEFAULT )?{_TEXT}(?: |$))+"
)


def part_of(first: Token, token: Token) -> Token:
    """Return the first token of the part that contains ``token``, or END for a comma between two parts."""
    if token.is_sign(",") and not first.is_word(*_LISTS):
        return END
    return token if first is END else first


def takes_rows(first: Token, before: Token, token: Token, reader: StatementScanner) -> bool:
    """Return whether ``token`` changes rows unlogged, after ``before`` in the part of ``first``. Skips its ``=``."""
    now = reader.now
    if now.is_word("PARTITION") and token.is_word("TRUNCATE", "DROP", "EXCHANGE", "CONVERT", "REPAIR"):
        return True
    if token.is_word("SYSTEM") and now.is_word("VERSIONING"):  # an option of the table, not of a column
        return before is first or not first.is_word(*_OF_COLUMNS)
    if first.is_word(*_OF_COLUMNS, "ORDER"):
        return False
    if (elsewhere := has_rows_elsewhere(token, reader)) is not None:
        return elsewhere
    return token is first and not (token.is_word(*_PARTS) or reader.at("="))  # I1: unknown here


def has_rows_elsewhere(token: Token, reader: StatementScanner) -> bool | None:
    """Return whether an option gives its table no rows of its own; None for other options. Skips the ``=`` after it."""
    if not (token.is_word("ENGINE", "UNION", "CONNECTION") or (token.is_word("TYPE") and reader.at("="))):
        return None
    if reader.at("="):
        reader.step()
    return not (token.is_word("ENGINE", "TYPE") and reader.now.text.strip("'\"").upper() in ENGINES)


def discards(token: Token, following: Token) -> bool:
    # A column may be called PERIOD.
    return token.is_word(*_DISCARDING) or (token.is_word("PERIOD") and following.is_word("FOR"))


def leaves_rows(sql: str) -> bool:
    """Whether an ALTER TABLE changes only indexes, partitions or options; False if that is uncertain."""
    # With protected columns, the text ends there. A text does not say which server has executed it.
    return not sql.endswith("...") and all(keeps_values(None, sql, ANSI_QUOTES | server) for server in (0, MARIADB))


def keeps_values(before: Mapping[str, str] | None, sql: str, sql_mode: int) -> bool:
    """Whether all rows keep their columns and values in an ALTER TABLE, with NULL in new columns; False if uncertain.

    ``before``: the known types of columns that no generated column may use; None: columns are uncertain. ``sql_mode``:
    its session's, which decides whether a value that does not fit is an error.
    """
    if "\\" in sql:  # the session decides whether a literal ends after it
        return False
    words = list(tokens(sql, sql_mode, with_literals=True))
    if any(word.is_word("IGNORE") for word in words):  # it removes rows that would violate a unique index
        return False
    try:
        parts = parts_of(after_table(words, "ALTER"))
        if not parts or _OF_PARTITIONS.fullmatch(_normal(outside(parts[0]))):
            return bool(parts)
        is_strict = bool(sql_mode & _STRICT)
        return all(_keeps(part, before, is_strict) for part in parts)
    except (LookupError, ValueError):
        return False


def type_of(definition: Sequence[Token]) -> tuple[str, Sequence[Token]]:
    """Return a column's type, as ``information_schema`` shows most, and what follows it, from its definition."""
    end = closing(definition, 2) + 1 if len(definition) > 2 and definition[2].is_sign("(") else 2
    size = "".join(word.text for word in definition[2:end])
    rest = definition[end:]
    unsigned = " unsigned" if any(word.is_word("UNSIGNED", "ZEROFILL") for word in outside(rest)) else ""
    return f"{definition[1].text.lower()}{size}{unsigned}", rest


def _keeps(part: Sequence[Token], before: Mapping[str, str] | None, is_strict: bool) -> bool:
    clause = _normal(outside(part))
    # `PRIMARY` is also the name of the index of the key, which tells the rows apart.
    if _HARMLESS.fullmatch(clause) and not any(word.text.upper() == "PRIMARY" for word in part):
        return True
    if before is None:
        return False
    if part[0].is_word("ADD"):
        rest, _ = without_column(part[1:])
        added = parts_of(rest[1 : closing(rest, 0)]) if rest[0].is_sign("(") else [rest]
        return all(map(_is_null, added))
    if part[0].is_word("MODIFY", "CHANGE"):
        rest, _ = without_column(part[1:])
        name, definition = rest[0].text, rest[1:] if part[0].is_word("CHANGE") else rest
        type_, rest = type_of(definition)
        # Then any value that does not fit is an error.
        is_fit = is_strict and definition[0].text == name and _OLD.fullmatch(_normal(outside(rest))) is not None
        return is_fit and name in before and _holds(before[name], type_)
    return _OF_TABLE.fullmatch(clause) is not None


def _normal(words: Iterable[Token]) -> str:
    """Return tokens as a text in which each quoted name, and each literal, is one quote."""
    return " ".join("'" if word.is_quoted else word.text.upper() for word in words)


def _is_null(definition: Sequence[Token]) -> bool:
    """Whether a new column is NULL in existing rows."""
    attributes = _normal(type_of(definition)[1])
    # Without NULL, it may be the time of the statement.
    if definition[1].is_word("TIMESTAMP") and not attributes.startswith("NULL"):
        return False
    is_type = not definition[1].is_quoted and definition[1].text.lower() in TYPES
    return is_type and _NEW.fullmatch(attributes) is not None


def _holds(before: str, after: str) -> bool:
    """Whether a type holds each value of another, and the relay publishes it alike, unless there was an error."""
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
    return old.groups() == new.groups() and name != "timestamp"  # it turns NULL into the time of the statement

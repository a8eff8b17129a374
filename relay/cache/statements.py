"""Which statements on ``<name>.ddl`` invalidate a cache: the ones that may leave a table with other rows.

They change rows without a change of each row: ALTER TABLE converts rows, and RENAME brings rows under a name.
"""

from collections.abc import Collection, Sequence

import orjson

from relay.mysql_dialect.statement_text import (
    ANSI_QUOTES,
    MASKED,
    Token,
    after_table,
    is_sign,
    outside,
    parts_of,
    tokens,
)

# Kinds of statements that leave rows as they are. A table that is created in place of another is emptied, too.
_LEAVES_ROWS = ("CREATE", "INDEX")
_INDEXES = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")
_OPTIONS = (
    *("ALGORITHM", "LOCK", "AUTO_INCREMENT", "ROW_FORMAT"),
    *("STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES"),
)
# What is done with partitions whose names follow, between commas.
_OF_PARTITIONS = ("REORGANIZE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK")


def statement_bump(record: bytes, tables: Collection[str]) -> str | None:
    """Return why a record of a statement invalidates the namespace; None if it leaves the rows of ``tables`` alone."""
    try:
        fields = orjson.loads(record)
        kind, text = fields["kind"], fields["statement"] or ""
        about = {name for table in fields["tables"] for name in (table["table"], table["renamed_to"])}
    except (ValueError, TypeError, KeyError):
        return "the record of a statement cannot be read"  # I6: it may be about any table
    concerned = sorted(about.intersection(tables))
    if not concerned or kind in _LEAVES_ROWS or (kind == "ALTER" and _leaves_rows(text)):
        return None
    return f"{', '.join(concerned)} may have other rows after a statement ({kind})"


def _leaves_rows(sql: str) -> bool:
    """Whether an ALTER TABLE changes indexes, partitions or options alone; False if that is not certain."""
    # It depends on the session whether a literal ends after a backslash. With protected columns, the text ends there.
    if "\\" in sql or sql.endswith("..."):
        return False
    words = list(tokens(sql, ANSI_QUOTES))
    if any(word.is_word("IGNORE") for word in words):  # which removes rows that a unique index has no place for
        return False
    try:
        parts = parts_of(after_table(words, "ALTER"))
        return bool(parts) and (_is_of_partitions(parts) or all(map(_is_harmless, parts)))
    except LookupError:
        return False


def _is_of_partitions(parts: Sequence[Sequence[Token]]) -> bool:
    first = parts[0]
    return first[0].is_word(*_OF_PARTITIONS) and first[1].is_word("PARTITION")


def _is_harmless(part: Sequence[Token]) -> bool:
    if any(word.text.upper() == "PRIMARY" for word in part):  # the key of the rows; `PRIMARY` is the name of its index
        return False
    if part[0].is_word("ADD") and part[1].is_word("CONSTRAINT"):
        # Its name may be left out.
        return any(word.is_word(*_INDEXES) for word in part[2:4])
    if part[0].is_word("ADD") and part[1].is_word("PARTITION"):
        return is_sign(part[2], "(") or part[2].is_word("PARTITIONS")
    if part[0].is_word("ADD"):
        return part[1].is_word(*_INDEXES)
    if part[0].is_word("DROP"):
        return part[1].is_word("CONSTRAINT", *_INDEXES)
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

"""Which statements on ``<name>.ddl`` invalidate a cache: those after which a table may have other rows.

They change rows that are in no change: those that ALTER TABLE converts, and those that RENAME brings under a name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import orjson

from relay.sql.statement_parts import after_table, outside, parts_of
from relay.sql.statement_text import Token, tokens

# Kinds of statements that leave rows as they are. A table that is created in place of another is emptied, too.
_LEAVES_ROWS = ("CREATE", "INDEX")
_INDEXES = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")
_OPTIONS = ("ALGORITHM", "LOCK", "COMMENT", "AUTO_INCREMENT")


def statement_bump(record: bytes, tables: Collection[str]) -> str | None:
    """Return why a record of a statement invalidates the namespace; None if it leaves the rows of ``tables`` alone."""
    try:
        fields = orjson.loads(record)
        kind, text = fields["kind"], fields["statement"] or ""
        about = {name for table in fields["tables"] for name in (table["table"], table["renamed_to"])}
    except (ValueError, TypeError, KeyError):
        return "the record of a statement cannot be read"  # I6: it may be about any table
    concerned = sorted(about.intersection(tables))
    if not concerned or kind in _LEAVES_ROWS or (kind == "ALTER" and _is_of_indexes(text)):
        return None
    return f"{', '.join(concerned)} may have other rows after a statement ({kind})"


def _is_of_indexes(sql: str) -> bool:
    """Whether an ALTER TABLE only adds, drops or renames indexes and the like; False if that is not certain."""
    # It depends on the session whether a literal ends after a backslash. With protected columns, the text ends there.
    if "\\" in sql or sql.endswith("..."):
        return False
    words = list(tokens(sql, ansi_quotes=True))
    if any(word.is_word("IGNORE") for word in words):  # which removes rows that a unique index has no place for
        return False
    try:
        parts = parts_of(after_table(words, "ALTER"))
        return bool(parts) and all(map(_is_of_index, parts))
    except LookupError:
        return False


def _is_of_index(part: Sequence[Token]) -> bool:
    if part[0].is_word("ADD") and part[1].is_word("CONSTRAINT"):
        # Its name may be left out.
        return any(word.is_word(*_INDEXES) for word in part[2:4])
    if part[0].is_word("ADD"):
        return part[1].is_word(*_INDEXES)
    if part[0].is_word("DROP"):
        return part[1].is_word("CONSTRAINT", *_INDEXES)
    if part[0].is_word("RENAME"):
        return part[1].is_word("INDEX", "KEY")
    # Options may follow each other without commas.
    return part[0].is_word(*_OPTIONS) and len(list(outside(part))) <= 3

"""Which parts of an ALTER TABLE add or remove rows that no row event shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.mysql_dialect.statement_text import END, Token, is_sign

if TYPE_CHECKING:
    from relay.mysql_dialect.statements import StatementScanner

# fmt: off
ENGINES = (
    "ARCHIVE", "ARIA", "COLUMNSTORE", "CSV", "HEAP", "INNOBASE", "INNODB", "MEMORY", "MROONGA", "MYISAM", "NDB",
    "NDBCLUSTER", "ROCKSDB", "S3", "TOKUDB",
)
"""A table keeps its rows when it gets one of these. With others it has none, or those of other tables or servers."""
_OF_COLUMNS = ("ADD", "ALTER", "CHANGE", "DROP", "MODIFY", "RENAME")
# How the other parts of an ALTER TABLE start, beside an option and "=".
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
# Those with commas of their own.
_LISTS = ("ANALYZE", "CHECK", "OPTIMIZE", "ORDER", "REBUILD", "REORGANIZE")
# With one of these an ALTER IGNORE TABLE may remove rows: all but one of the rows that get the same key, and rows that
# no partition takes or a condition excludes.
_DISCARDING = ("UNIQUE", "PRIMARY", "MODIFY", "CHANGE", "CONVERT", "PARTITION", "CHECK")


def part_of(first: Token, token: Token) -> Token:
    """Return the first token of the part that ``token`` is in, or END for a comma between two parts."""
    if is_sign(token, ",") and not first.is_word(*_LISTS):
        return END
    return token if first is END else first


def takes_rows(first: Token, before: Token, token: Token, reader: StatementScanner) -> bool:
    """Return whether a word adds or removes rows without a row event. It skips the ``=`` of an option.

    ``first``: the first token of its part. ``before``: the token before it.
    """
    now = reader.now
    if now.is_word("PARTITION") and token.is_word("TRUNCATE", "DROP", "EXCHANGE", "CONVERT", "REPAIR"):
        return True
    if token.is_word("SYSTEM") and now.is_word("VERSIONING"):  # of the table, and not of a column
        return before is first or not first.is_word(*_OF_COLUMNS)
    if first.is_word(*_OF_COLUMNS, "ORDER"):
        return False
    if (elsewhere := has_rows_elsewhere(token, reader)) is not None:
        return elsewhere
    return token is first and not (token.is_word(*_PARTS) or reader.at("="))  # I1: not known here


def has_rows_elsewhere(token: Token, reader: StatementScanner) -> bool | None:
    """Return whether an option says that the rows of its table are those of others, or none; None if it is another.

    ``token``: its first word. It skips the ``=`` behind it.
    """
    if not (token.is_word("ENGINE", "UNION", "CONNECTION") or (token.is_word("TYPE") and reader.at("="))):
        return None
    if reader.at("="):
        reader.step()
    return not (token.is_word("ENGINE", "TYPE") and reader.now.text.strip("'\"").upper() in ENGINES)


def discards(token: Token, following: Token) -> bool:
    # A column may be called PERIOD.
    return token.is_word(*_DISCARDING) or (token.is_word("PERIOD") and following.is_word("FOR"))

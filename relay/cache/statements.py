"""Which statements on ``<name>.ddl`` invalidate a cache: the ones that may leave a table with other rows.

They change rows without a change of each row: ALTER TABLE converts rows, and RENAME brings rows under a name.
"""

from collections.abc import Collection

import orjson

from relay.mysql_dialect.kept_values import leaves_rows

# Kinds of statements that leave rows as they are. A table that is created in place of another is emptied, too.
_LEAVES_ROWS = ("CREATE", "INDEX")


def statement_bump(record: bytes, tables: Collection[str]) -> str | None:
    """Return why a record of a statement invalidates the namespace; None if it leaves the rows of ``tables`` alone."""
    try:
        fields = orjson.loads(record)
        kind, text = fields["kind"], fields["statement"] or ""
        about = {name for table in fields["tables"] for name in (table["table"], table["renamed_to"])}
    except (ValueError, TypeError, KeyError):
        return "the record of a statement cannot be read"  # I6: it may be about any table
    concerned = sorted(about.intersection(tables))
    if not concerned or kind in _LEAVES_ROWS or (kind == "ALTER" and leaves_rows(text)):
        return None
    return f"{', '.join(concerned)} may have other rows after a statement ({kind})"

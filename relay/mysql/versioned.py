"""Finds tables of MariaDB with system versioning that cannot be relayed: their binlog has each version as a row."""

from collections.abc import Callable, Collection, Sequence

from relay.errors import RelayError
from relay.mysql.connection import ServerConnection

_ENDS = (
    "SELECT t.TABLE_NAME, c.COLUMN_NAME FROM information_schema.TABLES t LEFT JOIN information_schema.COLUMNS c"
    " ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME AND c.GENERATION_EXPRESSION = 'ROW END'"
    " WHERE t.TABLE_SCHEMA = %s AND t.TABLE_TYPE = 'SYSTEM VERSIONED'"
)
"""Selects the versioned tables of a database, each with the column that says when a version ends, if it is declared."""


def check_versioned(
    source: str, server: ServerConnection, database: str, tables: Collection[str], key: Callable[[str], Sequence[str]]
) -> dict[str, str]:
    """Return those of ``tables`` that cannot be relayed, with the reasons. Raises ``Unavailable``.

    ``key``: the columns that the config has for a table instead of its primary key. Raises ``RelayError`` if it takes
    the versions of a row for the row.
    """
    found: dict[str, str] = {}
    if not server.is_mariadb:
        return found
    # One table is asked for by its name, since the server looks into each that it is asked for.
    one = " AND t.TABLE_NAME = %s" if len(tables) == 1 else ""
    for table, end in server.execute(_ENDS + one, (database, *tables) if one else (database,)):
        if table not in tables:
            continue
        if key(table) and end not in key(table):  # I8: an old version would replace the row
            raise RelayError(
                f"source {source}: the table {database}.{table} has system versioning, and its binlog has each version "
                f"of a row, which `key: {{{table}: ...}}` takes for the row itself: leave it out"
                + (f", or add {end}" if end is not None else "")
            )
        if end is None:
            found[table] = (
                "has system versioning, and its binlog has each version of a row under a key with a hidden column: "
                "declare `PERIOD FOR SYSTEM_TIME`, or list the tables to relay in `tables`, without this one"
            )
    return found

"""Checks tables for problems that no layout shows: foreign keys, system versioning, and missing permissions.

I7: ``information_schema`` omits hidden tables like dropped ones, whose rows the end of a snapshot deletes from copies.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from relay.errors import RelayError, Unavailable
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Denied, Interrupted, NoTable
from relay.mysql_dialect.catalog import quoted

log = logging.getLogger(__name__)

# The form printed by SHOW CREATE TABLE. information_schema shows foreign keys only to users who may change the tables.
_NAME = r"`((?:[^`]|``)+)`"
_KEY = re.compile(rf"CONSTRAINT {_NAME} FOREIGN KEY \([^)]*\) REFERENCES {_NAME}(?:\.{_NAME})? \([^)]*\)(.*)")
_ACTION = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")

_CASCADES = (
    "source %s: changes by the foreign key %s to %s.%s are not relayed: when rows of %s change, InnoDB runs %s without "
    "logging it. Make these changes in the application, or upgrade to MySQL 9.6"
)
# Selects the versioned tables of a database, with the column for the end of a version, if it is declared.
_ENDS = (
    "SELECT t.TABLE_NAME, c.COLUMN_NAME FROM information_schema.TABLES t LEFT JOIN information_schema.COLUMNS c"
    " ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME AND c.GENERATION_EXPRESSION = 'ROW END'"
    " WHERE t.TABLE_SCHEMA = %s AND t.TABLE_TYPE = 'SYSTEM VERSIONED'"
)
# A table name. A user who may read all tables of a database learns that the table is missing; others are refused.
_NOBODYS = "relay asks for a table that nobody has"


def warn_of_cascades(
    source: str, server: ServerConnection, database: str, tables: Iterable[str], warned_of: set[tuple[str, str]]
) -> None:
    """Warn of foreign keys not in ``warned_of`` that change ``tables`` without logging it. Raises ``Interrupted``."""
    if server.logs_cascades:
        return
    for table in tables:
        try:
            ((_, definition, *_),) = server.execute(f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
        except Interrupted:
            raise
        except NoTable:  # the table no longer exists
            continue
        except Unavailable as error:  # I10: such as for a view. It would fail again; only the warning needs it
            log.warning("source %s: cannot look up the foreign keys of %s.%s: %s", source, database, table, error)
            continue
        for key, *referenced, rest in _KEY.findall(str(definition)):
            if (actions := _ACTION.findall(rest)) and (table, key) not in warned_of:
                warned_of.add((table, key))
                of, runs = referenced[1] or referenced[0], " and ".join(actions)
                log.warning(_CASCADES, source, key, database, table, of, runs)


def check_versioned(
    source: str, server: ServerConnection, database: str, tables: Collection[str], key: Callable[[str], Sequence[str]]
) -> dict[str, str]:
    """Return which ``tables`` cannot be relayed, with reasons. ``key``: the columns that the config names as a key.

    Raises ``Unavailable``, and ``RelayError`` if ``key`` would make the versions of a row look like the row itself.
    """
    found: dict[str, str] = {}
    if not server.is_mariadb:
        return found
    # A single table is looked up by its name, because the server opens each table in the result.
    one = " AND t.TABLE_NAME = %s" if len(tables) == 1 else ""
    for table, end in server.execute(_ENDS + one, (database, *tables) if one else (database,)):
        if table not in tables:
            continue
        if key(table) and end not in key(table):  # I8: an old version would replace the row
            raise RelayError(
                f"source {source}: the table {database}.{table} is system-versioned: its binlog has every version of a "
                f"row, and `key: {{{table}: ...}}` would treat them all as the same row: remove this `key`"
                + (f", or add {end} to it" if end is not None else "")
            )
        if end is None:
            found[table] = (
                "is system-versioned: its binlog has every version of a row, under a key with a hidden column: "
                "declare `PERIOD FOR SYSTEM_TIME`, or list the tables to relay in `tables`, without this one"
            )
    return found


def is_there(server: ServerConnection, database: str, table: str) -> bool:
    """Whether a table exists. Raises ``Denied`` if the user may not read it, existing or not."""
    try:
        server.execute(f"SELECT 1 FROM {quoted(database)}.{quoted(table)} LIMIT 0")
    except NoTable:
        return False
    except Denied:
        what = f"the table {database}.{table}, so it is unknown whether it was dropped"
        raise _denied(server, database, what) from None
    return True


def check_readable(server: ServerConnection, database: str, named: Collection[str]) -> None:
    """Raise ``Denied`` if the user may not read ``named`` tables, or any; ``NoTable`` for one that is being dropped."""
    if named:
        # SHOW CREATE TABLE of a view needs more than SELECT.
        wanted = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_TYPE <> 'VIEW'"
        shown = {str(name) for (name,) in server.execute(wanted, (database,))}
        for table in named:
            if table in shown:
                require_all_columns(server, database, table)  # I1
            else:
                is_there(server, database, table)
        return
    try:
        is_there(server, database, _NOBODYS)
    except Denied:
        what = f"all tables of {database}, and unreadable ones would count as dropped"
        raise _denied(server, database, what, ", or name tables in `tables`") from None


def require_all_columns(server: ServerConnection, database: str, table: str) -> None:
    """Raise ``Denied`` if the user may read only some columns of a table, ``NoTable`` without it. Waits for no lock."""
    try:
        server.execute(f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
    except Denied:
        raise _denied(server, database, f"all columns of the table {database}.{table}") from None


def _denied(server: ServerConnection, database: str, what: str, otherwise: str = "") -> Denied:
    """Return the error for a user who may not read ``what``. ``otherwise``: an alternative to the GRANT."""
    user, grant = server.account.user, f"GRANT SELECT ON {quoted(database)}.*"
    return Denied(f"{server.account.address}: {user} may not read {what}: run `{grant} TO {user}`{otherwise}")

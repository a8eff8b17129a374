"""Tells dropped tables from tables that the user may not read: ``information_schema`` leaves out both.

I7: the end of a snapshot deletes from copies what it has not read, so a table that is only hidden must not count as
dropped.
"""

from collections.abc import Collection

from relay.mysql.chunks import quoted
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Denied, NoTable

_NOBODYS = "relay asks for a table that nobody has"
"""The name of a table. A user who may read all tables of a database learns that there is none; others are refused."""


def is_there(server: ServerConnection, database: str, table: str) -> bool:
    """Whether a table exists. Raises ``Denied`` if the user may not read it, whether it does or not."""
    try:
        server.execute(f"SELECT 1 FROM {quoted(database)}.{quoted(table)} LIMIT 0")
    except NoTable:
        return False
    except Denied:
        raise Denied(
            f"{server.account.address}: {server.account.user} may not read the table {database}.{table}, so nobody can "
            f"say whether it was dropped: run `{_grant(server, database)}`"
        ) from None
    return True


def check_readable(server: ServerConnection, database: str, named: Collection[str]) -> None:
    """Raise ``Denied`` if the user may not read a table of ``named``, or without names any table of the database.

    Raises ``NoTable`` for one that is dropped at this moment.
    """
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
        raise Denied(
            f"{server.account.address}: {server.account.user} may not read all tables of {database}, and those "
            f"that it may not read would count as dropped: run `{_grant(server, database)}`, or name tables in "
            "`tables`"
        ) from None


def require_all_columns(server: ServerConnection, database: str, table: str) -> None:
    """Raise ``Denied`` if the user may read some columns of a table only: ``information_schema`` leaves out the others.

    Not by a SELECT, which would wait for a table that somebody has locked. Raises ``NoTable`` if there is none.
    """
    try:
        server.execute(f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
    except Denied:
        raise Denied(
            f"{server.account.address}: {server.account.user} may not read all columns of the table "
            f"{database}.{table}: run `{_grant(server, database)}`"
        ) from None


def _grant(server: ServerConnection, database: str) -> str:
    return f"GRANT SELECT ON {quoted(database)}.* TO {server.account.user}"

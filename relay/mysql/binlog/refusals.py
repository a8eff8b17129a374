"""Errors for binlog contents that cannot be relayed exactly (I8): the problem, the place, and what to do."""

from relay.mysql.binlog import events
from relay.mysql.binlog.known_tables import Wanted
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import NotCarried
from relay.mysql_dialect.statement_text import shown
from relay.mysql_dialect.statements import Classified

UNSEEN_TRIGGERS = (
    "%s: a change that names no relayed table is logged as a statement, so changes by a view, a function or triggers "
    "to relayed tables are not in the binlog: %r. Check sessions that set their own `binlog_format`"
)
# Databases whose changes, logged as statements, do not affect relayed tables; "" for a word without a database.
SYSTEM = ("", "mysql", "sys")
_ENGINE = (
    "SELECT ENGINE, TIMESTAMPDIFF(SECOND, '1970-01-01', CREATE_TIME) FROM information_schema.TABLES"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)


def unprepared_xa(place: events.BinlogPlace, table: str, most: int) -> NotCarried:
    """Return the error for XA rows that may not commit. ``most``: bytes of rows that are held until the commit."""
    return NotCarried(
        f"{place}: an XA transaction changes {table}: its rows are logged before it is known whether it commits, so "
        f"the relay cannot publish them in order. It supports XA COMMIT ... ONE PHASE with up to {most >> 20} MB of "
        "rows. Start after this transaction, or exclude the table"
    )


def rolled_back(place: events.BinlogPlace, table: str) -> NotCarried:
    return NotCarried(
        f"{place}: rows of {table} are logged and then rolled back. Rows of non-transactional tables are not rolled "
        "back, and the binlog does not say which tables are non-transactional. Start after this position"
    )


def touched(database: str, said: Classified, relayed: Wanted) -> str | None:
    """Return a relayed table that a statement in ``database`` may change without logging rows, or None."""
    if said.calls:  # I1: nothing says which tables the function changes
        schemas = (database, *(schema for schema, _ in said.names))
        return next((f"tables of {schema}" for schema in schemas if relayed(schema, "")), None)
    return next((f"{schema}.{table}" for schema, table in said.names if relayed(schema or database, table)), None)


def repairs_nothing(server: ServerConnection, database: str, said: Classified, relayed: Wanted, at: int) -> bool:
    """Whether each relayed table of a REPAIR TABLE has been InnoDB since ``at`` (seconds). Raises ``Unavailable``."""
    server.execute("SET SESSION time_zone = '+00:00'")  # the time zone for the times of tables
    for schema, table in said.tables:
        if relayed(schema or database, table):
            found = server.execute(_ENGINE, (schema or database, table))
            if [engine for engine, made in found if made is not None and float(made) < at] != ["InnoDB"]:  # I1
                return False
    return True


def statement(place: events.BinlogPlace, sql: str, said: Classified, table: str) -> NotCarried:
    """Return the error for a statement ``sql`` that changes rows of ``table`` without logging them."""
    if said.tables:  # such as an ALTER TABLE of partitions
        return NotCarried(
            f"{place}: a statement adds, removes or replaces rows of {table} without logging them: {shown(sql)!r}. "
            "Start after this position if consumers may keep those rows. To remove rows so that the relay sees it, use "
            "DELETE"
        )
    return NotCarried(
        f"{place}: a change that may affect {table} is logged as a statement, not as rows: {shown(sql)!r}. Run "
        "`SET GLOBAL binlog_format = 'ROW'`, check sessions that set their own, and start after this position"
    )


def event(place: events.BinlogPlace, kind: int, flags: int, table: str | None) -> NotCarried | None:
    """Return the error for an event of a type that is not read, or None. ``table``: the wanted table it concerns."""
    if kind == events.PARTIAL_UPDATE_ROWS:
        if table is None:
            return None
        return NotCarried(
            f"{place}: JSON of {table} is logged in parts: run `SET GLOBAL binlog_row_value_options = ''` and start "
            "after this position"
        )
    if kind == events.ANONYMOUS_GTID:
        return NotCarried(f"{place}: a transaction has no GTID: set gtid_mode to ON and start after this position")
    if kind == events.GTID_TAGGED:
        return NotCarried(f"{place}: a GTID has a tag, which the relay does not support: leave gtid_next at AUTOMATIC")
    if flags & events.IGNORABLE_FLAG:
        return None
    return NotCarried(f"{place}: an event has the unknown type {kind}: upgrade the relay if the server is newer")

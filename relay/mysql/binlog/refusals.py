"""What a binlog holds and cannot be given exactly (I8): errors that name the place, and say what to do.

May be changed here: the texts. ``place``: the server, its file and offset, and the GTID that was being read.
"""

from __future__ import annotations

from relay.mysql.binlog import events
from relay.mysql.errors import NotCarried
from relay.sql.statements import Classified

_SHOWN = 200


def unsure(place: str, table: str, most: int) -> NotCarried:
    """Of rows of an XA transaction whose end is not in sight. ``most``: bytes of rows that wait for it."""
    return NotCarried(
        f"{place}: an XA transaction changes {table}: its rows are logged before it is known whether it "
        f"commits, so they cannot be told in order; only those that end with COMMIT ONE PHASE after at most "
        f"{most >> 20} MB can. Begin after it, or leave the table out"
    )


def rolled_back(place: str, table: str) -> NotCarried:
    """Of rows that are undone after they were logged."""
    return NotCarried(
        f"{place}: rows of {table} are logged and then rolled back, except those of tables "
        "without transactions: which they are the binlog does not say. Begin after this position"
    )


def statement(place: str, sql: str, said: Classified, table: str) -> NotCarried:
    """Of a statement ``sql`` that changes rows of ``table`` which are not logged."""
    shown = sql if len(sql) <= _SHOWN else f"{sql[:_SHOWN]}..."
    if said.tables:  # an ALTER TABLE, of partitions
        return NotCarried(
            f"{place}: a statement removes or replaces rows of {table}, and which they are is not "
            f"logged: {shown!r}. Begin after this position if those rows are to stay: only a DELETE can be told"
        )
    return NotCarried(
        f"{place}: a change is logged as a statement, not as rows, and may be one of {table}: "
        f"{shown!r}. Set `SET GLOBAL binlog_format = 'ROW'` (sessions may have set their own) and begin after"
    )


def event(place: str, kind: int, flags: int, table: str | None) -> NotCarried | None:
    """Of an event of a kind that is not read, None if it may be passed. ``table``: the wanted one that it is of."""
    if kind == events.PARTIAL_UPDATE_ROWS:
        if table is None:
            return None
        return NotCarried(
            f"{place}: JSON of {table} is logged in parts: "
            "`SET GLOBAL binlog_row_value_options = ''` and begin after this position"
        )
    if kind == events.ANONYMOUS_GTID:
        return NotCarried(f"{place}: a transaction without a GTID: gtid_mode has to be ON")
    if kind == events.GTID_TAGGED:
        return NotCarried(f"{place}: a GTID with a tag, which is not supported: leave GTID_NEXT at AUTOMATIC")
    if kind in events.LOADS:
        return NotCarried(
            f"{place}: LOAD DATA is logged as a statement, not as rows: "
            "`SET GLOBAL binlog_format = 'ROW'` and begin after this position"
        )
    if flags & events.IGNORABLE_FLAG:
        return None
    return NotCarried(f"{place}: an event of type {kind}, which is not known: is the server newer than this?")

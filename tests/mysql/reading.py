"""Reads the stream of a real server, for tests: up to where the server stands now."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from relay.gtid import GtidSet, parse
from relay.mysql.binlog.events import BinlogEvent, Commit, Heartbeat, Rotate, Rows, Statement, TransactionBegin
from relay.mysql.binlog.rows import Change
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection, connect
from relay.services.sql_server import PASSWORD, USER
from relay.sql.tables import Row, Table, lay_out
from relay.table import Column

NUMBERS = "(WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s WHERE n < {}) SELECT n{} FROM s)"
"""A query for the numbers up to one, and what else is selected with each."""

Told = TransactionBegin | Rows | Statement | Commit


def layout(database: str, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table:
    return lay_out("s", table, columns, primary, key=() if primary else (columns[0].name,))


@contextmanager
def connected(server: Any, context: ssl.SSLContext | None = None) -> Iterator[ServerConnection]:
    with closing(connect(server.host, server.port, USER, PASSWORD, context)) as there:
        yield there


class Reader:
    """A stream of one database, from where the server stood when it was made, or ``start``."""

    def __init__(
        self, server: Any, database: str, start: GtidSet | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        self.server = server
        with connected(server, context) as there:
            self.stream = BinlogEvents(
                there, there.executed() if start is None else start, layout, lambda schema, _: schema == database
            )

    def close(self) -> None:
        self.stream.close()

    def each(self) -> Iterator[BinlogEvent]:
        """Yield what comes until all that is committed now has come."""
        goal = parse(self.server.gtid)
        while not self.stream.executed.contains(goal):
            yield from self.stream.read(10)

    def until_it_ends(self) -> None:
        """Read whatever comes, for as long as nothing is raised."""
        while True:
            self.stream.read(5)

    def told(self) -> list[Told]:
        return [event for event in self.each() if not isinstance(event, Heartbeat | Rotate)]

    def changes(self) -> list[Change]:
        return [change for event in self.each() if isinstance(event, Rows) for change in event.changes]

    def rows(self) -> list[Row | None]:
        return [after for _, after in self.changes()]


@contextmanager
def reading(server: Any, database: str, **settings: Any) -> Iterator[Reader]:
    reader = Reader(server, database, **settings)
    try:
        yield reader
    finally:
        reader.close()


Execute = Callable[..., Any]


@contextmanager
def session(server: Any, database: str) -> Iterator[Execute]:
    """Give one connection's ``execute``, in a database of the test's own; times in UTC, and no strict mode."""
    server.execute(f"CREATE DATABASE IF NOT EXISTS {database} CHARACTER SET utf8mb4")
    with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:

        def execute(statement: str, arguments: object = None) -> Any:
            cursor.execute(statement, arguments)
            return cursor.fetchall()

        execute("SET time_zone = '+00:00', sql_mode = ''")
        yield execute

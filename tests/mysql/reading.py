"""Reads the events of a real server up to its current position, for tests."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from relay.gtid import GtidSet, parse
from relay.mysql.binlog.events import BinlogEvent, Commit, Rows, Statement, TransactionBegin
from relay.mysql.binlog.rows import Change
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection, connect
from relay.mysql_dialect.tables import Row, Table, lay_out
from relay.services.mariadb import PASSWORD, USER
from relay.table import Column

NUMBERS = "(WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s WHERE n < {}) SELECT n{} FROM s)"
"""A query for the numbers up to one, and what else is selected with each."""


def is_mysql(server: Any) -> bool:
    """Whether an embedded server or a container is MySQL, not MariaDB."""
    return type(server).__name__ == "MySQL"


def position_of(server: Any, gtid: str | None = None) -> str:
    """Return the executed set of ``server``, or the set ``gtid``, in the form of positions."""
    return parse(f"{'MySQL56' if is_mysql(server) else 'MariaDB'}/{server.gtid if gtid is None else gtid}").position


def layout(database: str, table: str, columns: Sequence[Column], primary: Sequence[str]) -> Table:
    return lay_out("s", table, columns, primary, key=() if primary else (columns[0].name,))


@contextmanager
def connected(server: Any, context: ssl.SSLContext | None = None) -> Iterator[ServerConnection]:
    with closing(connect(server.host, server.port, USER, PASSWORD, context)) as connection:
        yield connection


class Reader:
    """The events of one database after ``start``, or after the server's position when it was made."""

    def __init__(
        self, server: Any, database: str, start: GtidSet | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        self.server = server
        with connected(server, context) as connection:
            self.stream = BinlogEvents(
                connection,
                connection.executed() if start is None else start,
                layout,
                lambda schema, _: schema == database,
            )

    def close(self) -> None:
        self.stream.close()

    def each(self) -> Iterator[BinlogEvent]:
        """Yield events until everything was read that is committed now."""
        goal = parse(self.server.gtid)
        while not self.stream.executed.contains(goal):
            yield from self.stream.read(10)

    def until_it_fails(self) -> None:
        """Read until an error is raised."""
        while True:
            self.stream.read(5)

    def transactions(self) -> list[TransactionBegin | Rows | Statement | Commit]:
        """Return all events but heartbeats and rotations."""
        return [event for event in self.each() if isinstance(event, TransactionBegin | Rows | Statement | Commit)]

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
    """Yield the ``execute`` of one connection, in a database of the test's own, in UTC and without strict mode."""
    server.execute(f"CREATE DATABASE IF NOT EXISTS {database} CHARACTER SET utf8mb4")
    with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:

        def execute(statement: str, arguments: object = None) -> Any:
            cursor.execute(statement, arguments)
            return cursor.fetchall()

        execute("SET time_zone = '+00:00', sql_mode = ''")
        yield execute

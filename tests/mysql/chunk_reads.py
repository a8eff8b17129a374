"""Reads a table of a real server in chunks."""

from __future__ import annotations

from relay.mysql.chunks import SESSION, ChunkQuery
from relay.mysql.connection import ServerConnection
from relay.mysql_dialect.tables import Row


def read_all(server: ServerConnection, query: ChunkQuery, limit: int) -> list[Row]:
    rows: list[Row] = []
    after: list[bytes] = []
    while True:
        statement, has_more = query.statement(after, limit, server.raw_rows)
        chunk = list(server.raw_rows(statement))
        assert len(chunk) <= limit
        rows += [query.row(raw) for raw in chunk]
        if len(chunk) < limit and not has_more:
            return rows
        after = query.key_of(chunk[-1])


def prepared(server: ServerConnection) -> ServerConnection:
    for statement in SESSION:
        server.execute(statement)
    return server

"""Binlogs that a scripted MySQL 8 server sends: transactions of one table, and a reader of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from relay.gtid import parse
from relay.mysql import connection
from relay.mysql.binlog.events import Commit, EventStream, Rows, Statement, TransactionBegin
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql_dialect.tables import Table, lay_out
from tests.mysql.encoder import (
    ColumnType,
    event,
    format_description,
    gtid,
    previous_gtids,
    query,
    rotate,
    rows,
    table_map,
)
from tests.mysql.scripted import Scripted, running

A, B = "24da167a-0c0c-11e8-8442-00059a3c7b00", "34da167a-0c0c-11e8-8442-00059a3c7b01"
GTID, QUERY, XID, TABLE_MAP, WRITE, UPDATE, DELETE, XA_PREPARE = 33, 2, 16, 19, 30, 31, 32, 38
INT = ColumnType(3, b"", struct.Struct("<i").pack)
BLOB = ColumnType(252, b"\x04", lambda value: struct.pack("<I", len(value)) + value, collation=63)
COLUMNS = [("id", INT), ("payload", BLOB)]

HEAD = [rotate("binlog.000001"), format_description(), event(35, previous_gtids((A, 1, 9)), 0)]


def layout(database: str, table: str, columns: Any, primary: Any) -> Table:
    return lay_out("s", f"{database}.{table}", columns, primary)


def transaction(number: int, *bodies: tuple[int, bytes], server: str = A, end: bytes | None = None) -> list[bytes]:
    return [
        event(GTID, gtid(server, number)),
        event(QUERY, query(b"BEGIN")),
        *(event(kind, body) for kind, body in bodies),
        event(XID, struct.pack("<Q", number)) if end is None else end,
    ]


def inserted(*ids: int, table: str = "orders", payload: bytes = b"x") -> list[tuple[int, bytes]]:
    body = table_map(7, "shop", table, COLUMNS)
    return [(TABLE_MAP, body), (WRITE, rows(7, COLUMNS, [(each, payload) for each in ids]))]


@contextmanager
def connected_to(script: Scripted) -> Iterator[connection.ServerConnection]:
    with running(script), closing(connection.connect("127.0.0.1", script.port, "relay", "secret")) as server:
        yield server


@contextmanager
def reading_events(
    events: Sequence[bytes], start: str = f"{A}:1-9", wanted: Any = None, **script: Any
) -> Iterator[tuple[BinlogEvents, Scripted]]:
    with (
        running(Scripted([*HEAD, *events], **script)) as scripted,
        closing(connection.connect("127.0.0.1", scripted.port, "relay", "secret")) as server,
        closing(BinlogEvents(server, parse(start), layout, wanted)) as stream,
    ):
        yield stream, scripted


def read_commits(stream: EventStream, commits: int) -> list[Any]:
    """Return the events up to so many commits."""
    found: list[Any] = []
    while sum(isinstance(each, Commit) for each in found) < commits:
        found += [each for each in stream.read(5) if isinstance(each, TransactionBegin | Rows | Statement | Commit)]
    return found

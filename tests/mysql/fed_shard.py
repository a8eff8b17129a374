"""The transactions of one shard, fed with events and read in pages, without a server."""

from __future__ import annotations

import time
from typing import Any

from relay.mysql.binlog.events import COMMIT, BinlogEvent, Rows, Statement, TransactionBegin
from relay.mysql.positions import BinlogPosition
from relay.mysql.relayed_tables import Layouts
from relay.mysql.transactions import Consumed, ShardTransactions
from relay.mysql_dialect.tables import Table
from relay.table import Column
from tests.mysql.shards import config

Page = tuple[list[tuple[str, list[str]]], dict[str, list[str]]]
"""Operation and columns of each change; the columns of each table of the page."""


class Shard:
    """The transactions of one shard, and the pages that a reader makes of them."""

    def __init__(self, position: str = "MariaDB/0-1-100", **more: Any) -> None:
        self.layouts = Layouts(config("d", {"-": ["localhost:3306"]}))
        self.local = ""
        self.transactions = ShardTransactions(
            "-",
            self.layouts,
            BinlogPosition.from_json({"gtid": position, **more}),
            0,
            lambda gtid: bool(self.local) and gtid.startswith(self.local),
            time.time,
        )

    def layout(self, *columns: str) -> Table:
        """The layout of ``t``, known from now on: a stream decodes events before they are consumed."""
        table = self.layouts("d", "t", [Column(name, "int") for name in columns], ["id"])
        assert table is not None
        return table

    def consume(self) -> Consumed:
        """Read what was fed as a reader does, which goes on after each statement."""
        while (consumed := self.transactions.consume()).defined and not consumed.is_full:
            continue
        return consumed

    def pages(self, *events: BinlogEvent) -> list[Page]:
        self.transactions.feed(events)
        found = []
        while True:
            is_full = self.consume().is_full
            changes, _, tables, _ = self.transactions.take()
            if changes:
                columns = {table.table: [column.name for column in table.row or ()] for table in tables}
                found.append(([(each.operation.value, list(each.new or {})) for each in changes], columns))
            if not is_full:
                return found


def begin(number: int, server: int = 1) -> TransactionBegin:
    return TransactionBegin(f"0-{server}-{number}", f"MariaDB/0-{server}-{number}", 1000 + number, None)


def inserted(number: int, table: Table, size: int = 10) -> list[BinlogEvent]:
    return [begin(number), Rows(table, [(None, tuple(range(len(table.names))))], size), COMMIT]


def stated(number: int, sql: str) -> list[BinlogEvent]:
    return [begin(number), Statement(sql, "d", 1000 + number, 0), COMMIT]

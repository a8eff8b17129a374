"""Events of a binlog that a test gives to a reader, without a server."""

from __future__ import annotations

from collections.abc import Iterator

from relay.gtid import GtidSet
from relay.mysql.binlog.events import COMMIT, BinlogEvent, Rows, TransactionBegin
from relay.mysql.connection import ServerConnection
from relay.mysql_dialect.tables import lay_out
from relay.table import Column

TABLE = lay_out("shop", "t", [Column("id", "int")], ["id"])


class Binlog:
    """Returns the events of a test, whatever server and position it is opened for."""

    def __init__(self, events: Iterator[list[BinlogEvent]]) -> None:
        self.events = events

    def __call__(self, server: ServerConnection, executed: GtidSet) -> Binlog:
        return self

    def read(self, timeout: float) -> list[BinlogEvent]:
        return next(self.events, [])

    def close(self) -> None:
        """Nothing is open."""


def transaction(gtid: str, position: str, at: int = 1_700_000_000) -> list[BinlogEvent]:
    row = int(gtid.replace(":", "-").rpartition("-")[2])
    return [TransactionBegin(gtid, position, at, None), Rows(TABLE, [(None, (row,))], 10), COMMIT]

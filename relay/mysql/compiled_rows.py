"""Whole transactions of a binlog whose changes the compiled core makes. `transactions` makes all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relay import native
from relay.avro.compiled_fields import compiled_fields
from relay.mysql.binlog.events import BinlogEvent, Commit, Rows, TransactionBegin
from relay.mysql.binlog.rows import Change
from relay.sql.compiled_changes import Cell, change_maker, compiled_rows
from relay.sql.tables import Table

if TYPE_CHECKING:
    from relay.native._core import CompiledRows

_KEPT = 1000  # tables
_AS_IT_IS: Cell = ("other", lambda value: value, False, False)  # rows are decoded before


@dataclass(slots=True)
class WholeTransaction:
    """``rows``: of each event with rows, how the core takes them, and the rows. ``tables``: by name.

    ``size``: roughly the bytes of the rows. ``events``: how many events the transaction has.
    """

    rows: list[tuple[CompiledRows, list[Change]]]
    tables: dict[str, Table]
    size: int
    events: int


class CompiledTables:
    """The tables of a shard as the core takes their rows. ``shard``: globally qualified."""

    def __init__(self, source: str, shard: str) -> None:
        self.source = source
        self.shard = shard
        self._rows: dict[Table, CompiledRows | None] = {}

    @classmethod
    def of(cls, source: str, shard: str) -> CompiledTables | None:
        """Return them; None if the installation has no compiled core."""
        return None if native.block_builder() is None else cls(source, shard)

    def whole(self, events: Sequence[BinlogEvent]) -> WholeTransaction | None:
        """Return the transaction at the beginning of ``events``; None if the core does not read it."""
        if type(events[0]) is not TransactionBegin:  # with an origin it is another type
            return None
        found = WholeTransaction([], {}, 0, 0)
        for at in range(1, len(events)):
            event = events[at]
            if type(event) is not Rows:
                found.events = at + 1
                return found if type(event) is Commit and found.rows else None
            table, rows = event.table, self.rows(event.table)
            if rows is None or found.tables.setdefault(table.name, table) is not table:
                return None
            found.rows.append((rows, event.changes))
            count = len(event.changes)
            found.size += (event.size // (count or 1) + 1) * count
        return None  # its end has not come

    def rows(self, table: Table) -> CompiledRows | None:
        """Return how the core takes the rows of ``table``; None if it does not."""
        if table not in self._rows:
            if len(self._rows) >= _KEPT:
                self._rows.clear()
            self._rows[table] = self._made(table)
        return self._rows[table]

    def _made(self, table: Table) -> CompiledRows | None:
        change = change_maker(table, self.source, self.shard)
        cells, fields = [_AS_IT_IS] * len(table.names), compiled_fields(table.schema)
        return compiled_rows(table, self.source, self.shard, cells, fields, change)

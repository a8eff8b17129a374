"""Makes changes from the rows of one shard's transactions: tokens, event ids, keys, places in the transaction.

A transaction that is read again, from any server, must give the same changes; otherwise an event id would name two
(I3). Changes are made as rows arrive, without waiting for the end of the transaction, so memory is bounded (I11).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from relay import native
from relay.change import Change, ChangeParts, SchemaChange, event_id
from relay.errors import RelayError
from relay.mysql_dialect.followed_tables import AppliedStatement
from relay.mysql_dialect.makers import PlainMaker
from relay.mysql_dialect.streamed_transaction import Origin, PublishedRows, StreamedTransaction, Tally
from relay.mysql_dialect.tables import Table
from relay.token import EventToken

if TYPE_CHECKING:
    from relay.native._core import BlockBuilder, ChangeBlock, CompiledRows, ScannedTransactions

log = logging.getLogger(__name__)

_UNSEEN = (
    "source %s: table %s %s, which no change shows: %s at %s, %s. Unless copies have the same rows, as after some "
    "online schema changes, read the table again with `relay snapshot CONFIG %s %s`; `on_alter: resnapshot` does so if "
    "it is certain that a snapshot can"
)


class TransactionChanges:
    """Makes the changes of one shard: call ``begin``, ``rows`` or ``row_of``, ``end``, and ``take`` for the result.

    The core begins a transaction, if it can; Python may take over once. ``floor``: the lowest timestamp, in seconds.
    """

    def __init__(self, source: str, shard: str, floor: int = 0) -> None:
        self.source = source
        self.shard = shard
        self.floor = floor
        self.tally = Tally()
        self._plain = PlainMaker(source, self.tally)
        core = native.core()
        self._compiled = None if core is None else core.BlockBuilder(shard)
        # The open transaction, and the maker of its changes, which is None before its first row.
        self._transaction: StreamedTransaction | None = None
        self._maker: BlockBuilder | PlainMaker | None = None
        # Changes finished before those that the makers now hold, the core first and then the plain one.
        self._parts: list[list[Change] | ChangeBlock] = []
        self._schema_changes: list[SchemaChange] = []

    @property
    def size(self) -> int:
        """Estimated bytes of the changes that `take` would return, more than 0 if there are any."""
        return self.tally.size

    def begin(
        self,
        gtid: str,
        position: str,
        timestamp: int,
        *,
        committed_at: int | None = None,
        origin: Origin | None = None,
        skip: PublishedRows | None = None,
    ) -> None:
        """Begin the transaction ``gtid``. ``position``: the executed set with it. ``timestamp``: the time, in seconds.

        ``committed_at``: microseconds, if known more exactly. ``skip``: its rows that were already published.
        ``origin``: where it was first made; its changes then have the same event ids as there.
        """
        self.tally.rows_of = {}
        self.tally.held_size = 0  # left by a transaction without an end
        is_behind = timestamp < self.floor
        # Timestamps never decrease along a lineage, so a shard whose clock is behind cannot make newer look older.
        self.floor = max(self.floor, timestamp)
        token = EventToken(self.floor, self.shard, position, None if origin is None else origin.token)
        at, skips = timestamp * 1_000_000 if committed_at is None else committed_at, dict(skip or {})
        shard, id_position = (self.shard, gtid) if origin is None else (origin.token.shard, origin.gtid)
        self._transaction = StreamedTransaction(gtid, token, at, shard, id_position, is_behind, skips)
        self._maker = None

    def rows(self, rows: CompiledRows, operation: str, buffer: bytes, start: int, end: int) -> bool:
        """Make the changes of all rows of an event. If the core makes none, return False: `row_of` makes the rest."""
        compiled, transaction = self._compiled, self._transaction
        if compiled is None or transaction is None:
            return False
        if self._maker is None and not transaction.skips and transaction.token.origin is None:
            self._end_part()
            token = transaction.token
            if compiled.begin(transaction.gtid, token.position, token.timestamp, transaction.committed_at):
                self._maker = compiled
        made = compiled.rows(rows, operation, buffer, start, end) if self._maker is compiled else None
        if made is None:
            return False
        count, changes = made
        if count:
            tally = self.tally
            tally.release_held(transaction.token)
            tally.held_table, tally.held_size = rows.table, (end - start) // count + 1
            if count > 1:
                tally.count(rows.table, count - 1)
                tally.size += tally.held_size * (count - 1)
                tally.token = transaction.token
            transaction.order += changes
            tally.behind += changes if transaction.is_behind else 0
        return True

    def row_of(self, table: Table) -> Callable[..., None]:
        """Return `PlainMaker.row` for ``table``, until the next call. Raises ``RelayError`` outside a transaction."""
        return self._in_python(table).row_of(table)

    def truncate(self, table: Table) -> None:
        self._in_python(table).truncate(table)

    def _in_python(self, table: Table) -> PlainMaker:
        if self._maker is not self._plain:
            if self._transaction is None:
                raise RelayError(f"{self.shard}: the stream sent a row of {table.name} outside of any transaction")
            self._plain.begin(self._transaction, None if self._maker is None else self._compiled)
            self._maker = self._plain
        return self._plain

    def statement(self, database: str, applied: AppliedStatement) -> None:
        """Make the record of a statement of the open transaction, after everything else in it was read."""
        transaction = self._transaction
        assert transaction is not None
        # Different from the id of a TRUNCATE, which has a table and no key.
        name = event_id(transaction.id_shard, transaction.id_position, "", b"statement", transaction.statements)
        transaction.statements += 1
        token, gtid, committed_at = transaction.token, transaction.gtid, transaction.committed_at
        for table, why in applied.unseen.items():
            if table not in applied.reread:  # I7
                log.warning(_UNSEEN, self.source, table, why, applied.kind, self.shard, gtid, self.source, table)
        what = (applied.kind, self.source, database, applied.sql, applied.text, applied.tables)
        made = SchemaChange(name, *what, token, gtid, committed_at, applied.unseen, applied.reread, applied.shown)
        self._schema_changes.append(made)
        self.tally.token = token
        self.tally.size += applied.size

    def take_schema_changes(self) -> list[SchemaChange]:
        """Return, and remove, the statements that are ready. Call it with `take`."""
        ready, self._schema_changes = self._schema_changes, []
        return ready

    def end(self) -> None:
        """End the transaction. The change held back is its last."""
        if self._maker is not None:
            self._maker.end()
        if (transaction := self._transaction) is not None:
            self.tally.release_held(transaction.token)
            if self.tally.token is None or transaction.order:
                self.tally.token = transaction.token
        self._maker = self._transaction = None

    def leave(self) -> None:
        """Leave the open transaction: its rest, including the row held back, is read again."""
        self._end_part()
        self._take_compiled()
        self._plain.leave()
        self.tally.held_size = 0
        self._maker = self._transaction = None

    def whole(
        self, scanned: ScannedTransactions, tables: Sequence[CompiledRows | None], room: int
    ) -> tuple[str, str, int] | None:
        """Make the changes of whole transactions without an origin, of up to ``room`` bytes.

        Return GTID, position and timestamp of the last that the core took; None if it leaves the first to `begin`.
        """
        if self._compiled is None or self._transaction is not None:
            return None
        self._end_part()
        made = self._compiled.whole(scanned, tables, self.floor, room)
        if made is None:
            return None
        gtid, timestamp, executed, size, behind, floor, position = made
        self._add(size, behind, floor, position)
        return gtid, executed, timestamp

    def add(self, blocks: Sequence[ChangeBlock], position: str, floor: int, size: int, behind: int) -> None:
        """Add whole transactions that are blocks already. ``position``, ``floor``: those in the last token."""
        self._end_part()
        self._parts += blocks
        self._add(size, behind, floor, position)

    def _add(self, size: int, behind: int, floor: int, position: str | None) -> None:
        self.floor = floor
        self.tally.size += size
        self.tally.behind += behind
        if position is not None:
            self.tally.token = EventToken(floor, self.shard, position)

    def _end_part(self) -> None:
        """Close the present part, so that later changes follow it."""
        if self._plain:
            self._take_compiled()
            self._parts.append(self._plain.take())

    def _take_compiled(self) -> None:
        if self._compiled is not None:
            self._parts += self._compiled.take()

    def take(self) -> list[Change] | ChangeParts:
        """Return, and remove, the finished changes."""
        self._take_compiled()
        ready, self.tally.size = self._plain.take(), 0
        if not self._parts:
            return ready
        parts, self._parts = self._parts, []
        return ChangeParts([*parts, ready] if ready else parts)

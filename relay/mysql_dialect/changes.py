"""Makes changes of the rows of one shard's transactions: tokens, event ids, keys, places in the transaction.

A transaction that is read again, from whatever server, must give the same changes, or an event id would name two (I3).
Changes are made as rows arrive, without waiting for the end of the transaction, so memory is bounded (I11).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from relay import native
from relay.change import Change, ChangeParts, SchemaChange, event_id
from relay.errors import RelayError
from relay.mysql_dialect.followed_tables import AppliedStatement
from relay.mysql_dialect.makers import CompiledMaker, PlainMaker
from relay.mysql_dialect.streamed_transaction import Origin, PublishedRows, StreamedTransaction, Tally
from relay.mysql_dialect.tables import Table
from relay.token import EventToken

if TYPE_CHECKING:
    from relay.native._core import ChangeBlock, CompiledRows, ScannedTransactions

log = logging.getLogger(__name__)

_UNSEEN = (
    "source %s: table %s %s, and no change shows them: %s at %s, %s. Unless copies have the same ones, as after some "
    "online schema changes, read the table again with `relay snapshot CONFIG %s %s`; `on_alter: resnapshot` does so if "
    "it is certain that a snapshot can"
)


class TransactionChanges:
    """Makes the changes of one shard: call ``begin``, ``rows`` or ``row_of``, ``end``, and ``take`` for what is ready.

    The compiled maker begins a transaction, if it can, and the plain one may take over once. ``shard``: globally
    qualified. ``floor``: the lowest timestamp of a token, in seconds. ``tally``: what was made.
    """

    def __init__(self, source: str, shard: str, floor: int = 0) -> None:
        self.source = source
        self.shard = shard
        self.floor = floor
        self.tally = Tally()
        self._plain = PlainMaker(source, self.tally)
        core = native.core()
        self._compiled = None if core is None else CompiledMaker(core.BlockBuilder(shard), self.tally)
        # The open transaction, and what makes its changes: nothing before its first row.
        self._transaction: StreamedTransaction | None = None
        self._maker: CompiledMaker | PlainMaker | None = None
        # What became ready before what the makers have now, the compiled maker first and then the plain one.
        self._parts: list[list[Change] | ChangeBlock] = []
        self._schema_changes: list[SchemaChange] = []

    @property
    def size(self) -> int:
        """Estimated bytes of the changes that `take` would return: more than 0 if there are any."""
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
        """Begin the transaction ``gtid``.

        ``position``: the executed set up to and including it, flavour in front. ``timestamp``: its GTID or BEGIN
        event's, in seconds. ``committed_at``: microseconds, if known more exactly. ``skip``: its rows that were
        published before. ``origin``: where it was first made; its changes then have the same event ids as there.
        """
        self.tally.rows_of = {}
        self.tally.held_size = 0  # left by a transaction that had no end
        is_behind = timestamp < self.floor
        # Timestamps never decrease along a lineage, so a shard whose clock is behind cannot make newer look older.
        self.floor = max(self.floor, timestamp)
        token = None if origin is None else origin.token
        shard, id_position = (self.shard, gtid) if origin is None else (origin.token.shard, origin.gtid)
        self._transaction = StreamedTransaction(
            gtid,
            EventToken(self.floor, self.shard, position, token),
            timestamp * 1_000_000 if committed_at is None else committed_at,
            shard,
            id_position,
            is_behind,
            dict(skip or {}),
        )
        self._maker = None

    def rows(self, rows: CompiledRows, operation: str, buffer: bytes, start: int, end: int) -> bool:
        """Make the changes of all rows of an event at once. Return whether the compiled core made them.

        If not, it made none, and `row_of` makes the changes of the rest of the transaction. ``rows``: how the core
        takes them; the other parameters say how and where a binlog has them.
        """
        compiled, transaction = self._compiled, self._transaction
        if compiled is None or transaction is None:
            return False
        if self._maker is None and not transaction.skips and transaction.token.origin is None:
            self._end_part()
            if compiled.begin(transaction):
                self._maker = compiled
        return self._maker is compiled and compiled.rows(rows, operation, buffer, start, end)

    def row_of(self, table: Table) -> Callable[..., None]:
        """Return a function that makes the changes of a row of ``table``: see `PlainMaker.row`. Each call replaces it.

        Raises ``RelayError`` outside a transaction.
        """
        return self._in_python(table).row_of(table)

    def truncate(self, table: Table) -> None:
        """Make the change of a TRUNCATE of ``table``, between ``begin`` and ``end``."""
        self._in_python(table).truncate(table)

    def _in_python(self, table: Table) -> PlainMaker:
        """Let Python make what comes next in this transaction."""
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
        # Not the id of a TRUNCATE, which has a table and no key.
        name = event_id(transaction.id_shard, transaction.id_position, "", b"statement", transaction.statements)
        transaction.statements += 1
        token, gtid, committed_at = transaction.token, transaction.gtid, transaction.committed_at
        for table, why in applied.unseen.items():
            if table not in applied.reread:  # I7
                log.warning(_UNSEEN, self.source, table, why, applied.kind, self.shard, gtid, self.source, table)
        self._schema_changes.append(applied.published(name, self.source, database, token, gtid, committed_at))
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
        if self._transaction is not None and (self.tally.token is None or self._transaction.order):
            self.tally.token = self._transaction.token
        self._maker = self._transaction = None

    def leave(self) -> None:
        """Leave the open transaction: the rest of it, with the row that is held back, is read again."""
        self._end_part()
        self._take_compiled()
        self._plain.leave()
        self.tally.held_size = 0
        self._maker = self._transaction = None

    def whole(
        self, scanned: ScannedTransactions, tables: Sequence[CompiledRows | None], room: int
    ) -> tuple[str, str, int] | None:
        """Make the changes of whole transactions without an origin, of up to ``room`` bytes.

        Return GTID, position and timestamp of the last one that the compiled core has made, and taken from ``scanned``;
        None if it leaves the first to `begin`, `rows` and `end`. ``tables``: how it takes the rows of theirs.
        """
        if self._compiled is None or self._transaction is not None:
            return None
        self._end_part()
        made = self._compiled.builder.whole(scanned, tables, self.floor, room)
        if made is None:
            return None
        gtid, timestamp, executed, size, behind, floor, position = made
        self._add(size, behind, floor, position)
        return gtid, executed, timestamp

    def add(self, blocks: Sequence[ChangeBlock], position: str, floor: int, size: int, behind: int) -> None:
        """Add the changes of whole transactions, which others have made into blocks.

        ``position``, ``floor``: the last token's. ``size``: bytes of the rows. ``behind``: as in `Tally`.
        """
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
        """Let what comes next be behind what is ready."""
        if self._plain:
            self._take_compiled()
            self._parts.append(self._plain.take())

    def _take_compiled(self) -> None:
        if self._compiled is not None:
            self._parts += self._compiled.take()

    def take(self) -> list[Change] | ChangeParts:
        """Return, and remove, the changes that are ready."""
        self._take_compiled()
        ready, self.tally.size = self._plain.take(), 0
        if not self._parts:
            return ready
        parts, self._parts = self._parts, []
        return ChangeParts([*parts, ready] if ready else parts)

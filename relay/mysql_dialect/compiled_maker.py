"""Makes changes with the compiled core from the rows of a binlog. The changes are blocks, not objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.mysql_dialect.streamed_transaction import StreamedTransaction, Tally

if TYPE_CHECKING:
    from relay.native._core import BlockBuilder, ChangeBlock, CompiledRows


class CompiledMaker:
    """A maker that may leave the rest of a transaction to the other one."""

    def __init__(self, builder: BlockBuilder, tally: Tally) -> None:
        self.builder = builder
        self._tally = tally
        self._transaction: StreamedTransaction | None = None

    def begin(self, transaction: StreamedTransaction) -> bool:
        """Take over a transaction before its first change. Return whether the core can."""
        self._transaction = transaction
        token = transaction.token
        return self.builder.begin(transaction.gtid, token.position, token.timestamp, transaction.committed_at)

    def rows(self, rows: CompiledRows, operation: str, buffer: bytes, start: int, end: int) -> bool:
        """Make the changes of all rows of an event. Return whether the core did; if not, it has made none of them."""
        made = self.builder.rows(rows, operation, buffer, start, end)
        transaction, tally = self._transaction, self._tally
        if made is None or transaction is None:
            return False
        count, changes = made
        if not count:
            return True
        if tally.held_size:
            tally.release(transaction.token)
        tally.held_table, tally.held_size = rows.table, (end - start) // count + 1
        if count > 1:
            tally.count(rows.table, count - 1)
            tally.size += tally.held_size * (count - 1)
            tally.token = transaction.token
        transaction.order += changes
        tally.behind += changes if transaction.is_behind else 0
        return True

    def leave(self) -> list[tuple[str, bytes, int]]:
        """Leave the rest of the transaction to another maker. Return how often each key was changed in it."""
        counts = self.builder.leave()
        self._release()
        return counts

    def end(self) -> None:
        self.builder.end()
        self._release()

    def _release(self) -> None:
        if self._tally.held_size and self._transaction is not None:
            self._tally.release(self._transaction.token)

    def take(self) -> list[ChangeBlock]:
        """Return, and remove, what is ready, as blocks."""
        return self.builder.take()

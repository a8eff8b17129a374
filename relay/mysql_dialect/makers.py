"""The two makers of changes: the compiled core, from the rows of a binlog, and plain Python, from rows as tuples.

Python makes what the core leaves, or all if it is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.change import Change, Images, Operation, Transaction
from relay.mysql_dialect.counts import KeyCounts
from relay.mysql_dialect.row_functions import RowMapper
from relay.mysql_dialect.streamed_transaction import StreamedTransaction, Tally
from relay.mysql_dialect.tables import Row, Table

if TYPE_CHECKING:
    from relay.native._core import BlockBuilder, ChangeBlock, CompiledRows

_NO_ATTRIBUTES: dict[str, str] = {}


class CompiledMaker:
    """A maker that may leave the rest of a transaction to the other one. Its changes are blocks, not objects."""

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
        return self.builder.take()


class PlainMaker:
    """A maker that takes any row."""

    def __init__(self, source: str, tally: Tally) -> None:
        self._source = source
        self._tally = tally
        self._counts = KeyCounts()
        self._mappers: dict[tuple[str, Table], RowMapper] = {}
        self._mapper: RowMapper | None = None
        self._ready: list[Change] = []
        # How many changes at the end of `_ready` are held back.
        self._held = 0
        # By table, the rows after the one held back that are not published.
        self._left_out: dict[str, int] = {}
        self._transaction: StreamedTransaction
        # What has made the transaction's changes so far, until this maker makes its first one.
        self._before: CompiledMaker | None = None

    def __len__(self) -> int:
        return len(self._ready)

    def begin(self, transaction: StreamedTransaction, before: CompiledMaker | None = None) -> None:
        """Make the changes of a transaction from here on. ``before``: the maker of its earlier changes, if any."""
        self._transaction = transaction
        self._before = before
        self._mapper = None
        self._counts.clear()
        self._left_out.clear()

    def _take_over(self, before: CompiledMaker) -> None:
        self._counts.load(before.leave())
        self._before = None

    def row_of(self, table: Table) -> Callable[..., None]:
        """Return `row`, or what does the same for a table whose rows are not all published."""
        return self.row if table.wanted is None else self._wanted_row

    def row(
        self, table: Table, before: Row | None, after: Row | None, size: int = 0, *, only_key_is_sure: bool = False
    ) -> None:
        """Make the changes of one row: an insert has no ``before``, a delete no ``after``. ``size``: roughly its bytes.

        ``only_key_is_sure``: the other columns of a deleted row may not have been logged (I8). An update of the key
        becomes a delete and an insert, so each change has its own key and partition. Raises ``RelayError`` for a value
        that cannot be part of a key.
        """
        tally = self._tally
        if self._before is not None:
            self._take_over(self._before)
        elif self._held and not self._transaction.skips:
            self._held = 0  # it is not the last one, even if this row is refused
            tally.release(self._transaction.token)
        mapper = self._mapper
        if mapper is None or mapper.table is not table:
            mapper = self._switch_to(table)
        gone: Change | None = None
        if before is None:
            if after is None:
                raise ValueError(f"{self._transaction.token.shard}: a row event of {table.name} has no row")
            made = self._change(Operation.INSERT, mapper, after, None, mapper.image(after))
        elif after is None:
            made = self._change(
                Operation.DELETE, mapper, before, None if only_key_is_sure else mapper.image(before), None
            )
            if only_key_is_sure:
                made.images = Images.KEYS_ONLY
        elif all(before[at] == after[at] for at in table.key):
            made = self._change(Operation.UPDATE, mapper, after, mapper.image(before), mapper.image(after))
        else:
            gone = self._change(Operation.DELETE, mapper, before, mapper.image(before), None)
            made = self._change(Operation.INSERT, mapper, after, None, mapper.image(after))
        if self._transaction.skips and self._is_skipped(table.name):
            return
        if self._held:
            tally.release(self._transaction.token)
        self._held = 1
        tally.held_size = size or 1
        tally.held_table = table.name
        if gone is not None:
            self._ready.append(gone)
            self._held = 2
        self._ready.append(made)

    def _wanted_row(self, table: Table, before: Row | None, after: Row | None, size: int = 0, **options: Any) -> None:
        """Make the changes of one row that is published before or after. If it is only one of both, its key changed."""
        wanted = table.wanted or bool
        before, after = (None if row is None or not wanted(row) else row for row in (before, after))
        name = table.name
        if before is not None or after is not None:
            self.row(table, before, after, size, **options)
            # I3: counted once the row of the table before them is, which is no longer held back now.
            if left_out := self._left_out.pop(name, 0):
                self._tally.count(name, left_out)
        elif not (self._transaction.skips and self._is_skipped(name)):
            self._left_out[name] = self._left_out.get(name, 0) + 1

    def truncate(self, table: Table) -> None:
        if self._before is not None:
            self._take_over(self._before)
        transaction, schema = self._transaction, table.schema
        change = Change(
            self._switch_to(table).event_id(transaction.id_position, b""),
            Operation.TRUNCATE,
            schema.source,
            schema.table,
            None,
            None,
            None,
            Images.NEW_AND_OLD,
            transaction.token,
            transaction.committed_at,
            transaction=Transaction(transaction.gtid, transaction.order, False),
        )
        transaction.order += 1
        if self._held:
            self._tally.release(transaction.token)
        self._ready.append(change)
        self._held = self._tally.held_size = 1
        self._tally.held_table = table.name

    def end(self) -> None:
        transaction = self._transaction
        if self._before is not None:
            self._before.end()
        if self._held:
            self._ready[-1].transaction = Transaction(transaction.gtid, transaction.order - 1, True)
            self._held = 0
            self._tally.release(transaction.token)
        self._counts.clear()

    def take(self) -> list[Change]:
        ready, held = self._ready, self._held
        self._ready = ready[len(ready) - held :]
        if held:
            del ready[-held:]
        return ready

    def leave(self) -> None:
        """Leave the rest of the transaction, also the row that is held back. Call it after `take`."""
        self._ready, self._held = [], 0

    def _is_skipped(self, table: str) -> bool:
        skips = self._transaction.skips
        left = skips.get(table, 0)
        if not left:
            return False
        if left > 1:
            skips[table] = left - 1
        else:
            del skips[table]
        self._tally.count(table)
        return True

    def _change(self, operation: Operation, mapper: RowMapper, row: Row, old: Any, new: Any) -> Change:
        table, identity, transaction = mapper.table, mapper.identity(row), self._transaction
        name, order = table.schema.table, transaction.order
        transaction.order = order + 1
        self._tally.behind += transaction.is_behind
        return Change(
            mapper.event_id(transaction.id_position, identity, self._counts.next(name, identity)),
            operation,
            self._source,
            name,
            mapper.key(row),
            old,
            new,
            Images.NEW_AND_OLD,
            transaction.token,
            transaction.committed_at,
            0,
            0,
            None,
            Transaction(transaction.gtid, order, False),
            table.keyspace_id(row) if table.keyspace_id else None,
            _NO_ATTRIBUTES,
        )

    def _switch_to(self, table: Table) -> RowMapper:
        """Return the functions for rows of ``table``, and keep them for the next rows."""
        place = self._transaction.id_shard, table
        mapper = self._mappers.get(place)
        if mapper is None:
            if len(self._mappers) > 1000:  # I11
                self._mappers.clear()
            mapper = self._mappers[place] = RowMapper.of(table, place[0], self._source)
        self._mapper = mapper
        return mapper

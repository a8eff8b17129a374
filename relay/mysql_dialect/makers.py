"""Makes changes in plain Python, from rows as tuples: those that the compiled core leaves, or all if there is none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from relay.change import Change, Images, Operation, Transaction
from relay.errors import RelayError
from relay.mysql_dialect.row_functions import RowMapper, require_carried
from relay.mysql_dialect.streamed_transaction import StreamedTransaction, Tally
from relay.mysql_dialect.tables import Row, Table

if TYPE_CHECKING:
    from relay.native._core import BlockBuilder

_NO_ATTRIBUTES: dict[str, str] = {}


class PlainMaker:
    """A maker that takes any row."""

    def __init__(self, source: str, tally: Tally) -> None:
        self._source = source
        self._tally = tally
        self._counts = KeyCounts()
        self._mapper = lru_cache(1000)(partial(RowMapper, source=source))  # I11
        self._ready: list[Change] = []
        self._held = 0  # how many changes at the end of `_ready` are held back
        self._left_out: dict[str, int] = {}  # by table, the rows after the one held back that are not published
        self._transaction: StreamedTransaction
        # The core, if it has made the transaction's changes so far, until this maker makes its first one.
        self._before: BlockBuilder | None = None

    def __len__(self) -> int:
        return len(self._ready)

    def begin(self, transaction: StreamedTransaction, before: BlockBuilder | None = None) -> None:
        """Make the changes of a transaction from here on. ``before``: what made its earlier changes, if any."""
        self._transaction = transaction
        self._before = before
        self._counts.clear()
        self._left_out.clear()

    def _take_over(self, before: BlockBuilder) -> None:
        self._counts.load(before.leave())
        self._tally.release_held(self._transaction.token)
        self._before = None

    def row_of(self, table: Table) -> Callable[..., None]:
        """Return `row`, or its equivalent for a table whose rows are not all published."""
        return self.row if table.wanted is None else self._wanted_row

    def row(
        self, table: Table, before: Row | None, after: Row | None, size: int = 0, *, only_key_is_sure: bool = False
    ) -> None:
        """Make the changes of one row: an insert has no ``before``, a delete no ``after``. ``size``: roughly its bytes.

        ``only_key_is_sure``: other columns of a deleted row may not be logged (I8). An update of the key becomes a
        delete and an insert, each with its own partition. Raises ``RelayError`` for a value that cannot be part of a
        key.
        """
        tally = self._tally
        if self._before is not None:
            self._take_over(self._before)
        elif self._held and not self._transaction.skips:
            self._held = 0  # it is not the last one, even if this row is refused
            tally.release(self._transaction.token)
        mapper = self._mapper(table, self._transaction.id_shard)
        gone: Change | None = None
        if before is None:
            if after is None:
                raise ValueError(f"{self._transaction.token.shard}: a row event of {table.name} has no row")
            made = self._change(Operation.INSERT, mapper, after, None, mapper.image(after))
        elif after is None:
            old = None if only_key_is_sure else mapper.image(before)
            made = self._change(Operation.DELETE, mapper, before, old, None)
            if only_key_is_sure:
                made.images = Images.KEYS_ONLY
        elif all(before[at] == after[at] for at in table.key):
            made = self._change(Operation.UPDATE, mapper, after, mapper.image(before), mapper.image(after))
        else:
            gone = self._change(Operation.DELETE, mapper, before, mapper.image(before), None)
            made = self._change(Operation.INSERT, mapper, after, None, mapper.image(after))
        if self._transaction.skips and self._is_skipped(table.name):
            return
        for change in (made,) if gone is None else (gone, made):
            require_carried(table, change)  # I12: ends only the shard
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
        """Make the changes of a row that is published before or after. If only one of both is, its key changed."""
        wanted = table.wanted or bool
        before, after = (None if row is None or not wanted(row) else row for row in (before, after))
        name = table.name
        if before is not None or after is not None:
            self.row(table, before, after, size, **options)
            # I3: counted only once the table's row before them is, which is now no longer held back.
            if left_out := self._left_out.pop(name, 0):
                self._tally.count(name, left_out)
        elif not (self._transaction.skips and self._is_skipped(name)):
            self._left_out[name] = self._left_out.get(name, 0) + 1

    def truncate(self, table: Table) -> None:
        if self._before is not None:
            self._take_over(self._before)
        transaction, schema = self._transaction, table.schema
        change = Change(
            self._mapper(table, transaction.id_shard).event_id(transaction.id_position, b""),
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
        """Leave the rest of the transaction, including the row held back. Call it after `take`."""
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
        table, transaction = mapper.table, self._transaction
        try:
            identity = mapper.identity(row)
        except RelayError as error:
            raise RelayError(f"{transaction.token.shard}: {transaction.gtid}: {error}") from None
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


class KeyCounts:
    """Counts the changes of each key in a transaction: up to ``in_memory`` keys in memory, more in a file (I11)."""

    def __init__(self, in_memory: int = 200_000) -> None:
        self._in_memory = in_memory
        self._counts: dict[tuple[str, bytes], int] = {}
        self._file: sqlite3.Connection | None = None

    def next(self, table: str, key: bytes) -> int:
        if self._file is not None:
            return self._next_in_file(table, key)
        place = table, key
        self._counts[place] = n = self._counts.get(place, 0) + 1
        if len(self._counts) > self._in_memory:
            self._move_to_file()
        return n - 1

    def load(self, counts: Sequence[tuple[str, bytes, int]]) -> None:
        """Begin with keys counted by another maker: table, key, and count."""
        self._counts = {(table, key): count for table, key, count in counts}
        if len(self._counts) > self._in_memory:
            self._move_to_file()

    def clear(self) -> None:
        self._counts.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _move_to_file(self) -> None:
        # A database without a name is a temporary file that is removed when it is closed, even by a kill.
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._file.executescript(
            "pragma journal_mode = off; pragma synchronous = off; pragma cache_size = -16384; begin;"
            "create table counts (t text, k blob, n integer not null, primary key (t, k)) without rowid;"
        )
        rows = ((table, key, n) for (table, key), n in self._counts.items())
        self._file.executemany("insert into counts values (?, ?, ?)", rows)
        self._counts.clear()

    def _next_in_file(self, table: str, key: bytes) -> int:
        assert self._file is not None
        add = "insert into counts values (?, ?, 1) on conflict (t, k) do update set n = n + 1 returning n"
        with closing(self._file.execute(add, (table, key))) as answer:
            return int(answer.fetchone()[0]) - 1

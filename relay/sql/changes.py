"""Makes changes of the rows of one shard's transactions: tokens, event ids, keys, places in the transaction.

A transaction that is read again, from whatever server, must give the same changes, or an event id would name two (I3).
Changes are made as rows arrive, without waiting for the end of the transaction, so memory is bounded (I11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relay import native
from relay.change import (
    Change,
    ChangeParts,
    Images,
    Operation,
    SchemaChange,
    Snapshot,
    Transaction,
    event_id,
)
from relay.errors import RelayError
from relay.sql.counts import KeyCounts
from relay.sql.followed_tables import AppliedStatement
from relay.sql.published_rows import ANY_TABLE, PublishedRows
from relay.sql.row_functions import RowMapper
from relay.sql.tables import Row, Table
from relay.token import EventToken, OriginToken

if TYPE_CHECKING:
    from relay.native._core import BlockBuilder, ChangeBlock, CompiledRows, ScannedTransactions

_NO_ATTRIBUTES: dict[str, str] = {}


class TransactionChanges:
    """Makes the changes of one shard: call ``begin``, ``row`` for each row, ``end``, and ``take`` for what is ready.

    ``shard``: globally qualified. ``floor``: the lowest timestamp of a token, in seconds. The changes of the last row
    are held back until the next row or the end, because each says whether it is the last of its transaction.
    """

    def __init__(self, source: str, shard: str, floor: int = 0) -> None:
        self.source = source
        self.shard = shard
        self.floor = floor
        # By table, the rows of the open transaction that were taken or skipped, without the one held back.
        self.rows_of: dict[str, int] = {}
        # By table, the rows after the one held back that are not published.
        self._left_out: dict[str, int] = {}
        # Changes whose own time was before the floor; the reader resets it.
        self.behind = 0
        # The last token made.
        self.token: EventToken | None = None
        # Estimated bytes of the changes that `take` would return: more than 0 if there are any.
        self.size = 0
        self._counts = KeyCounts()
        self._mappers: dict[tuple[str, Table], RowMapper] = {}
        self._mapper: RowMapper | None = None
        # The shard in event ids: that of the origin, if there is one.
        self._id_shard = shard
        self._ready: list[Change] = []
        # What is ready before them, in parts.
        self._parts: list[list[Change] | ChangeBlock] = []
        # Makes changes of rows as a binlog has them, and has those between the parts and `_ready`; whether it has made
        # all of the open transaction, and holds back the last row.
        core = native.core()
        self._builder = None if core is None else core.BlockBuilder(shard)
        self._is_built = False
        self._schema_changes: list[SchemaChange] = []
        # How many statements of the open transaction are among them.
        self._statements = 0
        # How many at the end of `_ready` are held back, the bytes of the row that is, 0 if none is, and its table.
        self._held = 0
        self._held_size = 0
        self._held_table = ""
        # By table, the rows still to skip, since they were published before.
        self._skips: dict[str, int] = {}
        self._is_open = False

    def __repr__(self) -> str:
        return f"<TransactionChanges[{self.shard}: {sum(map(len, self._parts)) + len(self._ready)} ready]>"

    def begin(
        self,
        gtid: str,
        position: str,
        timestamp: int,
        *,
        committed_at: int | None = None,
        origin: OriginToken | None = None,
        origin_gtid: str | None = None,
        skip: PublishedRows | None = None,
    ) -> None:
        """Begin the transaction ``gtid``.

        ``position``: the executed set up to and including it, flavour in front. ``timestamp``: seconds, of its GTID
        or BEGIN event. ``committed_at``: microseconds, if known more exactly. ``skip``: its rows that were published
        before. ``origin`` and ``origin_gtid``: where it was first made, and its GTID there; its changes then have the
        same event ids as there. Raises ValueError for one without the other.
        """
        if (origin is None) != (origin_gtid is None):
            raise ValueError("give origin and origin_gtid together")
        self._counts.clear()
        self._is_open = True
        self.rows_of = {}
        self._left_out.clear()
        self._gtid = gtid
        self._committed_at = timestamp * 1_000_000 if committed_at is None else committed_at
        self._is_behind = timestamp < self.floor
        self._skips = dict(skip or {})
        self._order = self._statements = 0
        self._origin = origin
        shard, self._id_position = (self.shard, gtid) if origin is None else (origin.shard, origin_gtid or "")
        if shard != self._id_shard:
            self._id_shard, self._mapper = shard, None
        # Timestamps never decrease along a lineage, so a shard whose clock is behind cannot make newer look older.
        self.floor = max(self.floor, timestamp)
        self._token = EventToken(self.floor, self.shard, position, origin)
        if self._is_built:
            self._is_built, self._held_size = False, 0  # the one before had no end

    def rows(self, rows: CompiledRows, operation: str, buffer: bytes, start: int, end: int) -> bool:
        """Make the changes of all rows of an event at once, as `row` does. Return whether the compiled core made them.

        If not, none is made, and `row` makes those of the rest of the transaction. The last row is held back as
        there. ``rows``: how the core takes them; the others say how and where a binlog has them.
        """
        if self._builder is None or not (self._is_built or self._begin_built(self._builder)):
            return False
        made = self._builder.rows(rows, operation, buffer, start, end)
        if made is None:
            return False
        count, changes = made
        if not count:
            return True
        if self._held_size:
            self._release()
        self._held_table, self._held_size = rows.table, (end - start) // count + 1
        if count > 1:
            self.rows_of[rows.table] = self.rows_of.get(rows.table, 0) + count - 1
            self.size += self._held_size * (count - 1)
            self.token = self._token
        self._order += changes
        self.behind += changes if self._is_behind else 0
        return True

    def whole(
        self, scanned: ScannedTransactions, tables: Sequence[CompiledRows | None], room: int
    ) -> tuple[str, str, int] | None:
        """Make the changes of whole transactions without an origin, of up to ``room`` bytes.

        Return GTID, position and timestamp of the last one that the compiled core has made, and taken from ``scanned``;
        None if it leaves the first to `begin`, `rows` and `end`. ``tables``: how it takes the rows of theirs.
        """
        if self._builder is None or self._is_open:
            return None
        self._end_part()
        made = self._builder.whole(scanned, tables, self.floor, room)
        if made is None:
            return None
        gtid, timestamp, executed, size, behind, self.floor, position = made
        self.size += size
        self.behind += behind
        if position is not None:
            self.token = EventToken(self.floor, self.shard, position)
        return gtid, executed, timestamp

    def _begin_built(self, builder: BlockBuilder) -> bool:
        """Whether the compiled core makes the changes of the open transaction, of which none was made yet."""
        if self._order or self._skips or self._origin is not None:
            return False
        self._end_part()
        self._is_built = builder.begin(self._gtid, self._token.position, self.floor, self._committed_at)
        return self._is_built

    def _leave_built(self) -> None:
        """Let Python make what comes next in this transaction."""
        self._is_built = False
        if self._builder is not None:
            self._counts.load(self._builder.leave())
        if self._held_size:
            self._release()

    def _take_built(self) -> None:
        """Put what the builder has among the parts."""
        if self._builder is not None:
            self._parts += self._builder.take()

    def _end_part(self) -> None:
        """Let what comes next be behind what is ready."""
        if self._ready:
            self._take_built()
            self._parts.append(self._ready)
            self._ready = []

    def row(
        self, table: Table, before: Row | None, after: Row | None, size: int = 0, *, only_key_is_sure: bool = False
    ) -> None:
        """Make the changes of one row: an insert has no ``before``, a delete no ``after``. ``size``: roughly its bytes.

        ``only_key_is_sure``: of a deleted row, whose other columns may not have been logged (I8). An update of the key
        becomes a delete and an insert, so each change has its own key and partition. Raises ``RelayError`` for a row
        outside a transaction, and for a value that cannot be part of a key.
        """
        if not self._is_open:
            raise RelayError(f"{self.shard}: the stream sent a row of {table.name} outside of any transaction")
        if self._is_built:
            self._leave_built()
        mapper = self._mapper
        if mapper is None or mapper.table is not table:
            mapper = self._switch_to(table)
        gone: Change | None = None
        if before is None:
            if after is None:
                raise ValueError(f"{self.shard}: a row event of {table.name} has no row")
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
        if self._skips and self._is_skipped(table.name):
            return
        if self._held:
            self._release()
        self._held = 1
        self._held_size = size or 1
        self._held_table = table.name
        if gone is not None:
            self._ready.append(gone)
            self._held = 2
        self._ready.append(made)

    def row_of(self, table: Table) -> Callable[..., None]:
        """Return `row`, or what does the same for a table of which not all rows are published."""
        return self.row if table.wanted is None else self._wanted_row

    def _wanted_row(self, table: Table, before: Row | None, after: Row | None, size: int = 0, **options: Any) -> None:
        """Make the changes of one row that is published before or after. If it is only one of both, its key changed."""
        wanted = table.wanted or bool
        before, after = (None if row is None or not wanted(row) else row for row in (before, after))
        name = table.name
        if before is not None or after is not None:
            self.row(table, before, after, size, **options)
            # I3: counted once the row of the table before them is, which is no longer held back now.
            if left_out := self._left_out.pop(name, 0):
                self.rows_of[name] = self.rows_of.get(name, 0) + left_out
        elif not (self._skips and self._is_skipped(name)):
            self._left_out[name] = self._left_out.get(name, 0) + 1

    def truncate(self, table: Table) -> None:
        """Make the change of a TRUNCATE of ``table``, between ``begin`` and ``end``."""
        if self._is_built:
            self._leave_built()
        name = self._switch_to(table).event_id(self._id_position, b"")
        schema = table.schema
        change = Change(
            name,
            Operation.TRUNCATE,
            schema.source,
            schema.table,
            None,
            None,
            None,
            Images.NEW_AND_OLD,
            self._token,
            self._committed_at,
            transaction=Transaction(self._gtid, self._order, False),
        )
        self._order += 1
        if self._held:
            self._release()
        self._ready.append(change)
        self._held = self._held_size = 1
        self._held_table = table.name

    def statement(self, database: str, applied: AppliedStatement) -> None:
        """Make the record of a statement of the open transaction, of which everything else was read."""
        # Not the id of a TRUNCATE, which has a table and no key.
        name = event_id(self._id_shard, self._id_position, "", b"statement", self._statements)
        self._statements += 1
        self._schema_changes.append(
            applied.published(name, self.source, database, self._token, self._gtid, self._committed_at)
        )
        self.token = self._token
        self.size += applied.size

    def take_schema_changes(self) -> list[SchemaChange]:
        """Return, and remove, the statements that are ready. Call it with `take`."""
        ready, self._schema_changes = self._schema_changes, []
        return ready

    def end(self) -> None:
        """End the transaction. The change held back is its last."""
        if self._is_built and self._builder is not None:
            self._builder.end()
            self._is_built = False
            if self._held_size:
                self._release()
        if self._held:
            self._ready[-1].transaction = Transaction(self._gtid, self._order - 1, True)
            self._release()
        self._is_open = False
        self._counts.clear()
        self.token = self._token if self.token is None or self._order else self.token

    def add(self, blocks: Sequence[ChangeBlock], position: str, floor: int, size: int, behind: int) -> None:
        """Add the changes of whole transactions, of which others have made blocks.

        ``position``, ``floor``: of the last token. ``size``: bytes of the rows. ``behind``: as the attribute.
        """
        self._end_part()
        self._parts += blocks
        self.token = EventToken(floor, self.shard, position)
        self.floor = floor
        self.size += size
        self.behind += behind

    def take(self) -> list[Change] | ChangeParts:
        """Return, and remove, the changes that are ready."""
        self._take_built()
        ready, self.size = self._ready, 0
        self._ready = ready[len(ready) - self._held :]
        if self._held:
            del ready[-self._held :]
        if not self._parts:
            return ready
        parts, self._parts = self._parts, []
        return ChangeParts([*parts, ready] if ready else parts)

    @property
    def rows_done(self) -> int:
        """The number of rows of the open transaction that were taken or skipped."""
        return sum(self.rows_of.values())

    def read(self, table: Table, row: Row, snapshot: Snapshot, now: float) -> None:
        """Make the READ of one copied row, between transactions. ``now``: seconds, when its page was requested."""
        if self._held:
            raise RelayError(f"{self.shard}: the stream sent a copied row of {table.name} inside a transaction")
        mapper = self._mapper
        if mapper is None or mapper.table is not table:
            mapper = self._switch_to(table)
        self._ready.append(
            Change(
                mapper.read_id(f"snapshot/{snapshot.id}", mapper.identity(row)),
                Operation.READ,
                self.source,
                table.name,
                mapper.key(row),
                None,
                mapper.image(row),
                Images.NEW,
                None,
                int(now * 1_000_000),
                snapshot=snapshot,
                keyspace_id=table.keyspace_id(row) if table.keyspace_id else None,
            )
        )

    def _release(self) -> None:
        self.size += self._held_size
        self._held = self._held_size = 0
        done, table = self.rows_of, self._held_table
        done[table] = done.get(table, 0) + 1  # `_count` inlined: this runs for every row
        self.token = self._token

    def _count(self, table: str) -> None:
        self.rows_of[table] = self.rows_of.get(table, 0) + 1

    def _is_skipped(self, table: str) -> bool:
        name = ANY_TABLE if ANY_TABLE in self._skips else table
        left = self._skips.get(name, 0)
        if not left:
            return False
        if left > 1:
            self._skips[name] = left - 1
        else:
            del self._skips[name]
        self._count(table)
        return True

    def _change(self, operation: Operation, mapper: RowMapper, row: Row, old: Any, new: Any) -> Change:
        table, identity, order = mapper.table, mapper.identity(row), self._order
        name = table.schema.table
        self._order = order + 1
        self.behind += self._is_behind
        return Change(
            mapper.event_id(self._id_position, identity, self._counts.next(name, identity)),
            operation,
            self.source,
            name,
            mapper.key(row),
            old,
            new,
            Images.NEW_AND_OLD,
            self._token,
            self._committed_at,
            0,
            0,
            None,
            Transaction(self._gtid, order, False),
            table.keyspace_id(row) if table.keyspace_id else None,
            _NO_ATTRIBUTES,
        )

    def _switch_to(self, table: Table) -> RowMapper:
        """Return the functions for rows of ``table``, and keep them for the next rows."""
        mapper = self._mappers.get((self._id_shard, table))
        if mapper is None:
            if len(self._mappers) > 1000:  # I11
                self._mappers.clear()
            mapper = RowMapper.of(table, self._id_shard, self.source)
            self._mappers[self._id_shard, table] = mapper
        self._mapper = mapper
        return mapper

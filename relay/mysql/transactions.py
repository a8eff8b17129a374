"""What a server sends becomes the changes of a shard, a page at a time, with the place where each page ends.

Knows no server. A page may end anywhere: what is said of a place in the middle of a transaction has to lead back there
from whatever server the transaction is read again (I3, I4).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from relay.change import Change
from relay.gtid import GtidSet, parse
from relay.lineage import StreamId
from relay.mysql.binlog.events import BinlogEvent, Commit, Heartbeat, Rows, Statement, TransactionBegin
from relay.mysql.errors import NotCarried
from relay.mysql.layouts import Layouts
from relay.mysql.origins import OriginBegin
from relay.mysql.positions import TimestampMap
from relay.source import STREAMED_PAGE
from relay.sql.changes import TransactionChanges
from relay.sql.done import Done, further, of_position, to_position
from relay.sql.statements import classify
from relay.sql.tables import Table
from relay.table import TableSchema

log = logging.getLogger(__name__)


class ShardTransactions:
    """The transactions of one shard. ``feed`` it what has come, ``consume`` that, and ``take`` what is ready.

    ``position``: of the last transaction that was read whole, flavour in front. ``progress``: seconds up to which the
    shard was read. ``on_beat``: called with the time of a heartbeat between two transactions.
    """

    def __init__(
        self,
        stream: StreamId,
        shard: str,
        layouts: Layouts,
        position: Mapping[str, Any],
        floor: int,
        times: TimestampMap,
        on_beat: Callable[[int], None],
    ) -> None:
        self.source = stream.source
        self.layouts = layouts
        self.position: str = position["gtid"]
        self.progress: float | None = None
        # Transactions that a replica made itself, which no other server has; and what tells them.
        self.local: GtidSet = parse(position.get("local", ""))
        self.is_local: Callable[[str], bool] | None = None
        self._on_beat = on_beat
        self._executed: tuple[str, GtidSet] = ("", parse(""))
        # Of transactions that were published in part: how many rows.
        self._partly: dict[str, Done] = of_position(position)
        # MariaDB: the last GTID of each server in each domain, since they were last taken.
        self.last: dict[str, str] = {}
        self._times = times
        self._noted = 0
        self._changes = TransactionChanges(stream.source, stream.qualified(shard), floor)
        # Made before a server was lost in the middle of their transaction.
        self._saved: list[Change] = []
        self._saved_size = 0
        self._tables: dict[str, Table] = {}
        # The open transaction, whether it has begun for ``_changes``, and what it empties.
        self._begun: TransactionBegin | None = None
        self._is_open = False
        self._emptied: list[Table] = []
        self._waiting: deque[BinlogEvent] = deque()
        self._row = 0  # of the first event that waits

    def __repr__(self) -> str:
        return f"<ShardTransactions[{self._changes.shard} after {self.position}]>"

    @property
    def executed(self) -> GtidSet:
        """What was read whole."""
        if self._executed[0] != self.position:
            self._executed = self.position, parse(self.position)
        return self._executed[1]

    @property
    def waits(self) -> bool:
        """Whether something was fed and not consumed."""
        return bool(self._waiting)

    @property
    def has_changes(self) -> bool:
        return bool(self._changes.size or self._saved)

    @property
    def is_between(self) -> bool:
        """Whether nothing was read, or published, of a transaction that was not read whole and may yet be."""
        return self._begun is None and not self.partly

    @property
    def partly(self) -> tuple[str, ...]:
        """The transactions that were published in part; not those that a replica alone has."""
        if not self._partly:
            return ()
        return tuple(gtid for gtid in self._partly if not self.local.contains(parse(gtid)))

    def where(self) -> dict[str, Any]:
        """Return the position after all changes that were taken."""
        position: dict[str, Any] = {"gtid": self.position}
        partly = dict(self._partly)
        if self._is_open and self._begun is not None:
            done = further(self._changes.rows_of, partly.pop(self._begun.gtid, {}))
            if done:
                partly = {self._begun.gtid: done, **partly}
        position |= to_position(partly)  # several: servers may have committed in another order
        if self.local:
            position["local"] = self.local.position
        return position

    def take(self) -> tuple[list[Change], int, tuple[TableSchema, ...], int]:
        """Return the changes that are ready, their bytes, the tables they are of, and how many of them were late."""
        changes, size = self._taken()
        tables = tuple(table.schema for table in self._tables.values())
        # What is held back comes with the next page.
        self._tables = dict(self._tables) if self._is_open else {}
        behind, self._changes.behind = self._changes.behind, 0
        return changes, size, tables, behind

    def _taken(self) -> tuple[list[Change], int]:
        size = self._saved_size + self._changes.size
        changes = self._changes.take()
        if self._saved:
            changes = self._saved + changes
            self._saved, self._saved_size = [], 0
        return changes, size

    def abort(self) -> None:
        """Forget what was fed and not consumed: it is read again, from another server perhaps."""
        self._waiting.clear()
        self._row = 0
        if self._is_open and self._begun is not None:
            if done := further(self._changes.rows_of, self._partly.get(self._begun.gtid, {})):
                self._partly[self._begun.gtid] = done
            self._saved, self._saved_size = self._taken()
            # The row that is held back is read again, too.
            left, self._changes = (
                self._changes,
                TransactionChanges(self.source, self._changes.shard, self._changes.floor),
            )
            self._changes.behind, self._changes.token = left.behind, left.token
        self._is_open = False
        self._begun = None
        self._emptied = []

    def jump(self, to: GtidSet) -> None:
        """Go on after ``to``, with what lies before it lost."""
        self._partly.clear()
        self.position = to.position
        self.local = parse("")

    # ------------------------------------------------------------------ events

    def feed(self, events: Iterable[BinlogEvent]) -> None:
        self._waiting.extend(events)

    def consume(self) -> bool:
        """Take what waits; return whether the page has to end before all is taken."""
        waiting = self._waiting
        while waiting:
            event = waiting[0]
            kind = type(event)
            if kind is Rows:
                if not self._rows(event):  # type: ignore[arg-type]
                    return True
            elif kind is Commit:
                self._commit()
            elif isinstance(event, TransactionBegin):
                self._begun = event
                self._is_open = False
                self._emptied = []
            elif isinstance(event, Statement):
                self._statement(event)
            elif isinstance(event, Heartbeat) and self._begun is None:
                self._on_beat(event.timestamp)
            waiting.popleft()
            if self._changes.size >= STREAMED_PAGE:
                return True
        return False

    def _rows(self, event: Rows) -> bool:
        """Take rows; return whether all of them were."""
        table = event.table
        known = self._tables.get(table.name)
        if known is not table:
            if known is not None and self.has_changes:
                return False
            self._tables[table.name] = table
        if self._emptied:
            # Where such a transaction is cut, its rows could not be counted from.
            raise NotCarried(
                f"{self._changes.shard}: {self._begun.gtid if self._begun else self.position} replaces the table "
                f"{self._emptied[0].name} and fills it at once: begin after it, or leave the table out"
            )
        if not self._is_open:
            self._open()
        changes, rows = self._changes, event.changes
        each = event.size // (len(rows) or 1) + 1
        row = changes.row
        if not self._row and changes.size + event.size < STREAMED_PAGE:
            for before, after in rows:
                row(table, before, after, each)
            return True
        for at in range(self._row, len(rows)):
            if changes.size >= STREAMED_PAGE:
                self._row = at
                return False
            row(table, *rows[at], each)
        self._row = 0
        return True

    def _open(self) -> None:
        begun = self._begun
        if begun is None:
            raise NotCarried(f"{self._changes.shard}: rows after {self.position} without a GTID")
        if self.is_local is not None and self.is_local(begun.gtid):
            # Now, so that no other server is asked for the rest of it.
            self.local = self.local | parse(begun.gtid)
        origin = begun.origin if isinstance(begun, OriginBegin) else None
        self._changes.begin(
            begun.gtid,
            self._shared(begun),
            begun.timestamp,
            committed_at=begun.committed_at,
            origin=origin.token if origin else None,
            origin_gtid=origin.gtid if origin else None,
            skip=self._partly.get(begun.gtid),
        )
        self._is_open = True

    def _shared(self, begun: TransactionBegin) -> str:
        """Return the position that a token carries: what other servers of the shard come to have as well.

        A set with a replica's own transactions in it could not be compared with one of another server (I5).
        """
        if not self.local or (self.is_local is not None and self.is_local(begun.gtid)):
            return begun.position
        return (parse(begun.position) - self.local).position

    def _commit(self) -> None:
        begun = self._begun
        if begun is None:
            return
        for table in self._emptied:
            # Only now, so that no page ends between two of them.
            if not self._is_open:
                self._open()
            self._changes.truncate(table)
            # Rows of an older layout may be in the page: a TRUNCATE fits into any.
            self._tables.setdefault(table.name, table)
        self._emptied = []
        if self._is_open:
            self._changes.end()
            self._is_open = False
        if begun.timestamp > self._noted:
            self._noted = begun.timestamp
            self._times.note(begun.timestamp, self.executed)
        if self.is_local is not None and self.is_local(begun.gtid):
            self.local = self.local | parse(begun.gtid)
        if self._partly:
            self._partly.pop(begun.gtid, None)
        if ":" not in begun.gtid:
            self.last[begun.gtid.rpartition("-")[0]] = begun.gtid
        self.position = begun.position
        self.progress = float(begun.timestamp)
        self._begun = None

    def _statement(self, event: Statement) -> None:
        said = classify(event.sql, event.database, event.ansi_quotes)
        if said.temporary:
            return
        self._empty(self.layouts.emptied(said))
        for (database, old), (_, new) in said.renamed:
            if self.layouts.wanted(database, old):
                log.warning(
                    "source %s: %s is called %s from here on: what was published of it stays under its old name",
                    self.source,
                    old,
                    new,
                )

    def _empty(self, names: Iterable[str]) -> None:
        for name in names:
            table = self.layouts.last(name)
            if table is not None:
                self._emptied.append(table)
                continue
            # There is no layout to tell it by.
            log.warning(
                "source %s: THAT %s.%s WAS EMPTIED at %s IS NOT RELAYED: no row of it was read, and it is gone",
                self.source,
                self.layouts.database,
                name,
                self._begun.gtid if self._begun else self.position,
            )

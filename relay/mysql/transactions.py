"""Makes pages of changes from events. A page may end inside a transaction, and any server may continue (I3, I4)."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from relay.change import Change, ChangeParts
from relay.errors import RelayError
from relay.gtid import GtidSet, parse
from relay.mysql.binlog.events import (
    BinlogEvent,
    Commit,
    Heartbeat,
    KeyLost,
    RawRows,
    RawTransactions,
    Rows,
    Statement,
    TransactionBegin,
)
from relay.mysql.binlog.rows import rows_of
from relay.mysql.errors import NotCarried
from relay.mysql.positions import BinlogPosition, PartlyRead
from relay.mysql.relayed_tables import REMOVED_UNSEEN, Layouts, LoggedStatements
from relay.mysql.servers import LOST
from relay.mysql_dialect.changes import TransactionChanges
from relay.mysql_dialect.layout_cache import lost_rows
from relay.mysql_dialect.snapshot_times import latest_timestamp
from relay.mysql_dialect.tables import Table
from relay.source import STREAMED_PAGE
from relay.table import TableSchema

_LAYOUTS_KEPT = 1000


@dataclass(slots=True)
class Consumed:
    is_full: bool = False  # the page must end before the remaining events
    committed: int | None = None  # seconds: the timestamp of the last transaction that ended
    # Seconds by the server's clock: the last heartbeat between transactions, unless one ended after it.
    heartbeat: int | None = None
    defined: Sequence[str] = ()  # tables that the last statement defined, to be checked before the next events
    # A table's rows are lost from here on, or were until here, or rows were published of a transaction that never
    # committed: the position before, and the reason.
    lost: tuple[BinlogPosition, str] | None = None
    error: RelayError | None = None  # why the first remaining event cannot be read


class ShardTransactions:
    """One shard's transactions: ``feed``, ``consume``, ``take``. ``is_local``: whether only the server read has one."""

    def __init__(
        self,
        shard: str,
        layouts: Layouts,
        position: BinlogPosition,
        floor: int,
        is_local: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        self.executed_position = position.gtid
        self.local = position.local
        self._left_out = set(position.left_out)  # see ``BinlogPosition``
        self._is_local = is_local
        self._clock = clock
        self._parsed = lru_cache(maxsize=1)(parse)
        self.partial = PartlyRead(position)
        # MariaDB: the last GTID of each server in each domain since ``take_last_gtids``.
        self._last_gtids: dict[str, str] = {}
        self.changes = TransactionChanges(layouts.source, layouts.stream.qualified(shard), floor)
        self._tables: dict[str, Table] = {}
        self._compiled = lru_cache(_LAYOUTS_KEPT)(partial(rows_of, self.changes.source, self.changes.shard))
        # The open transaction, whether ``changes`` has begun it, and its statements.
        self._begun: TransactionBegin | None = None
        self._is_open = False
        self.statements = LoggedStatements(layouts)
        self._events: deque[BinlogEvent] = deque()

    @property
    def executed(self) -> GtidSet:
        return self._parsed(self.executed_position)

    @property
    def has_events(self) -> bool:
        """Whether there are events that were fed but not consumed."""
        return bool(self._events)

    @property
    def has_changes(self) -> bool:
        return bool(self.changes.size)

    @property
    def is_between_transactions(self) -> bool:
        """Whether no transaction is open, or published in part with its rest still to come."""
        return self._begun is None and not self.position.unfinished

    @property
    def position(self) -> BinlogPosition:
        """The position after all changes that were taken."""
        begun = self._begun.gtid if self._is_open and self._begun is not None else None
        found = self.partial.position(self.executed_position, self.local, begun, self.changes.tally.rows_of)
        return replace(found, left_out=tuple(sorted(self._left_out))) if self._left_out else found

    def take(self) -> tuple[list[Change] | ChangeParts, int, tuple[TableSchema, ...], int]:
        """Return the finished changes, their bytes, their tables, and how many of them were late."""
        size, changes = self.changes.size, self.changes.take()
        tables = tuple(table.schema for table in self._tables.values())
        self._tables = dict(self._tables) if self._is_open else {}  # the row held back comes with the next page
        behind, self.changes.tally.behind = self.changes.tally.behind, 0
        return changes, size, tables, behind

    def take_last_gtids(self) -> list[str]:
        """MariaDB: return the last GTID of each server in each domain since the last call."""
        gtids = list(self._last_gtids.values())
        self._last_gtids.clear()
        return gtids

    def drop_events(self) -> None:
        """Forget unconsumed events and the open transaction: another server may send them again."""
        self._events.clear()
        self._compiled.cache_clear()  # it decodes by the tables of the server
        if self._is_open and self._begun is not None:
            self.partial.leave(self._begun.gtid, self.changes.tally.rows_of)
            self.changes.leave()
        self._is_open = False
        self._begun = None
        self.statements.begin()
        self.statements.followed.undo()

    def skip_to(self, executed: GtidSet) -> None:
        """Continue after ``executed``: everything unread before it is lost."""
        self.partial.clear()
        self.statements.followed.forget()  # I9: the gap may lack the DROP of a table
        self.executed_position = executed.position
        self.local = parse("")

    def feed(self, events: Iterable[BinlogEvent]) -> None:
        self._events.extend(events)

    def consume(self) -> Consumed:
        """Read the events that were fed, until the page is full or a table was defined."""
        consumed = Consumed()
        try:
            consumed.is_full = self._consume(consumed)
        except RelayError as error:
            consumed.error = error
        return consumed

    def _consume(self, consumed: Consumed) -> bool:
        events = self._events
        while events:
            event = events[0]
            kind = type(event)
            if kind is RawRows or kind is Rows:
                if self._loses(event.table.name, False, consumed) or not self._rows(event):  # type: ignore[arg-type, union-attr]
                    return True
            elif isinstance(event, KeyLost):
                if self._loses(event.table, True, consumed):
                    return True
            elif kind is Commit:
                self._commit(consumed)
            elif isinstance(event, RawTransactions):
                if self._whole(event, consumed):
                    return True
                continue
            elif isinstance(event, TransactionBegin):
                if self.partial.begin(event):
                    if not self.has_changes:
                        consumed.lost = self.position, LOST  # I9
                        self.partial.forget(event.gtid)
                    return True
                if self._begun is not None:
                    self.statements.followed.undo()
                # I7: it would become the floor of all later tokens, and no READ would ever replace their changes.
                event.timestamp = min(event.timestamp, latest_timestamp(self._clock()))
                self._begun = event
                self._is_open = False
                self.statements.begin()
            elif isinstance(event, Statement):
                gtid = self._begun.gtid if self._begun else self.executed_position
                said = event.classified
                self.statements.read(event, said, self.executed, gtid)
                consumed.defined = self.statements.layouts.altered(said)
            elif isinstance(event, Heartbeat) and self._begun is None:
                consumed.heartbeat = event.timestamp
            events.popleft()
            if self.changes.size >= STREAMED_PAGE:
                return True
            if consumed.defined:  # I1
                return False
        return False

    def _loses(self, table: str, is_left: bool, consumed: Consumed) -> bool:
        """Whether the page ends because a table loses its key here, or has one again: that is a gap (I9)."""
        skipped = self.statements.layouts.skipped
        if (table in self._left_out) == is_left or (is_left and not skipped.was_relayed(table)):  # I9
            return False
        if not self.has_changes:
            consumed.lost = self.position, lost_rows(table, is_left=is_left)
            self._left_out ^= {table}
            if not is_left:
                skipped.take_back(table, has_gap=True)
        return True

    def _whole(self, event: RawTransactions, consumed: Consumed) -> bool:
        """Read whole transactions, or make events of one that the core leaves. Return whether the page is full."""
        scanned = event.scanned
        if not len(scanned):
            self._events.popleft()
            return False
        tables, last, room = {known.table for known in scanned.tables}, None, STREAMED_PAGE - self.changes.size
        has_others = any(self._tables.get(table.name, table) is not table for table in tables)
        if self.has_changes and (has_others or scanned.size > room):
            return True
        # A page has only one layout of a table, even if the table was altered without a statement in the binlog.
        has_one_of_each = len({table.name for table in tables}) == len(tables)
        layouts = self.statements.layouts
        is_fit = (layouts.unfit | self._left_out).isdisjoint(table.name for table in tables)
        has_known_keys = has_one_of_each and is_fit and not any(map(layouts.has_other_key, tables))
        # Their tokens have the positions of the stream.
        is_ordinary = self._begun is None and not self.partial and not self.local
        is_past = scanned.latest <= latest_timestamp(self._clock())
        if has_known_keys and is_ordinary and is_past and not self._is_local(scanned.gtids):
            compiled = [self._compiled(known.table, known.decoder) for known in scanned.tables]
            last = self.changes.whole(scanned, compiled, room)
        if last is None:
            self._events.extendleft(reversed(event.pop()))
            return False
        for table in tables:
            self._use(table)
        gtid, position, timestamp = last
        self._ended(TransactionBegin(gtid, position, timestamp, None), consumed)
        return self.changes.size >= STREAMED_PAGE

    def _rows(self, event: Rows | RawRows) -> bool:
        """Read rows; return whether all of them fit into the page."""
        table = event.table
        layouts = self.statements.layouts
        if table.name in layouts.unfit:
            return True
        known = self._tables.get(table.name)
        is_other = known is not table if known is not None else layouts.has_other_key(table)
        if is_other and self.has_changes:  # I12: a page that is refused for its key must contain no earlier changes
            return False
        self._use(table)
        if self.statements.emptied:
            # The rows after a page that ends inside such a transaction could not be counted.
            name = self.statements.emptied[0].name
            unseen = f", and {REMOVED_UNSEEN}" if name in self.statements.gone else ""
            raise NotCarried(
                f"{self.changes.shard}: {self._begun.gtid if self._begun else self.executed_position} replaces the "
                f"table {name} and fills it in one transaction{unseen}: start after it and take a snapshot of the "
                "table, or exclude the table"
            )
        if not self._is_open:
            self._open()
        if isinstance(event, RawRows):
            # Python divides larger ones among pages.
            core = self._compiled(event.table, event.decoder) if event.size <= STREAMED_PAGE else None
            if core is not None and self.changes.rows(core, event.operation, event.buffer, event.start, event.end):
                return True
            event = self._events[0] = event.decoded()
        changes, rows = self.changes, event.changes
        each = event.size // (len(rows) or 1) + 1
        row = changes.row_of(table)
        for at, (before, after) in enumerate(rows):
            if changes.size >= STREAMED_PAGE:
                self._events[0] = Rows(table, rows[at:], each * (len(rows) - at))
                return False
            row(table, before, after, each)
        return True

    def _use(self, table: Table) -> None:
        self._tables[table.name] = table
        if self.statements.followed.layouts.get(table.name) is not table:
            self.statements.layouts.skipped.take_back(table.name)
            self.statements.layouts.skipped.keep((table.name,))
            self.statements.followed.read(table)

    def _open(self) -> None:
        begun = self._begun
        if begun is None:
            raise NotCarried(f"{self.changes.shard}: rows without a GTID after {self.executed_position}")
        if self._is_local(begun.gtid):
            self.local = self.local | parse(begun.gtid)  # done now, so that no other server is asked for the rest of it
        position, skip = self._shared_position(begun), self.partial.rows(begun.gtid)
        at, origin = begun.committed_at, begun.origin
        self.changes.begin(begun.gtid, position, begun.timestamp, committed_at=at, origin=origin, skip=skip)
        self._is_open = True

    def _shared_position(self, begun: TransactionBegin) -> str:
        """Return the position for tokens, without a replica's own transactions, which no other server has (I5)."""
        if not self.local or self._is_local(begun.gtid):
            return begun.position
        return (parse(begun.position) - self.local).position

    def _commit(self, consumed: Consumed) -> None:
        begun = self._begun
        if begun is None:
            return
        statements = self.statements
        # Only now, so that no page ends between two of them, or between them and the position after them.
        if (statements.emptied or statements.published) and not self._is_open:
            self._open()
        for table in statements.emptied:
            self.changes.truncate(table)
            self._left_out.discard(table.name)
            statements.layouts.skipped.forget(table.name)
            # The page may contain rows of an older layout: a TRUNCATE fits any.
            self._tables.setdefault(table.name, table)
        for applied in statements.published:
            self.changes.statement(statements.layouts.database, applied)
        statements.begin()
        if self._is_open:
            self.changes.end()
            self._is_open = False
        if self._is_local(begun.gtid):
            self.local = self.local | parse(begun.gtid)
        self.partial.forget(begun.gtid)
        self._ended(begun, consumed)

    def _ended(self, begun: TransactionBegin, consumed: Consumed) -> None:
        self.statements.followed.keep()
        if ":" not in begun.gtid:
            self._last_gtids[begun.gtid.rpartition("-")[0]] = begun.gtid
        self.executed_position = begun.position
        self._begun = None
        consumed.committed, consumed.heartbeat = begun.timestamp, None

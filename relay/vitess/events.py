"""Turns the events of one shard's stream into changes, and into a position to resume at after any of them.

It has no connection: a caller applies what vtgate sends, event by event. vstreamer.go, uvstreamer.go and
vstream_manager.go (Vitess v0.23) define the order of events.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from relay.errors import RelayError
from relay.gtid import GtidError, parse
from relay.mysql_dialect.followed_tables import AppliedStatement
from relay.mysql_dialect.layout_cache import lost_rows
from relay.mysql_dialect.snapshot_times import latest_timestamp
from relay.mysql_dialect.streamed_transaction import PublishedRows, furthest
from relay.mysql_dialect.tables import Table
from relay.records import ReshardJournal
from relay.vitess.client import EventKind
from relay.vitess.failures import BrokenStream
from relay.vitess.position import VitessShard, VStreamPosition, added, canonical, including, position_in
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.server_starts import StreamEnd
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard_rows import PageMustEnd, ShardRows
from relay.vitess.statements import LoggedStatement
from relay.vitess.tables import Tables


class ShardEvents:
    """Applies the events of one stream. Used by one thread.

    ``position``: where the stream was opened. ``floor``: the earliest time of a token, in seconds. ``end``: where
    another stream has to continue. ``clock``: seconds since the epoch. ``heard``: is told vtgate's time, in seconds.
    """

    def __init__(
        self,
        shard: VitessShard,
        settings: VStreamSettings,
        tables: Tables,
        position: VStreamPosition,
        *,
        floor: int,
        end: StreamEnd | None = None,
        clock: Callable[[], float],
        heard: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._clock = clock
        self._heard = heard
        self._end = end or StreamEnd()
        self.shard = shard
        self.settings = settings
        self.position = position  # the position after the last transaction that ended
        self.rows = ShardRows(shard, tables, floor)
        self.changes = self.rows.changes
        # Seconds: the time of the last transaction that ended, or None if none did since the last page.
        self.progress: float | None = None
        self._read = 0  # seconds: the time of the last transaction of the stream
        self.journal: ReshardJournal | None = None  # the journal that ends the shard, once its transaction has ended
        # The table whose rows are left out from here on, or are relayed again: the reader calls `leave_out`.
        self.lost: str | None = None
        self.is_active = False  # whether any event came from the shard itself, not only from vtgate
        self.bytes_in = 0  # the bytes of all answers so far; the reader counts them
        self._transaction = VStreamTransaction()

    # ------------------------------------------------------------------ pages

    @property
    def is_between_transactions(self) -> bool:
        """Whether no token belongs to a transaction that is still open."""
        return not self._transaction.has_changes

    def resume_position(self) -> VStreamPosition:
        """Return the position to resume at once the changes that are ready are published."""
        transaction = self._transaction
        if transaction.has_changes and (done := furthest(self.changes.tally.rows_of, self._published_rows())):
            return replace(self.position, transaction=transaction.gtid, done=done)
        return self.position

    def _published_rows(self) -> PublishedRows:
        """Return how many rows of the open transaction are already published."""
        return self.position.done if self.position.transaction == self._transaction.gtid else {}

    # ------------------------------------------------------------------ events

    def read_whole(self, answers: bytes) -> int:
        """Read whole transactions at the beginning of ``answers``, until there are enough changes for a page.

        Return how many bytes these have. The rest is for `apply`, which is everything without the compiled core.
        """
        position, room, moves = self.position, self.settings.page_bytes - self.changes.size, self.rows.tables.moves
        if self.rows.compiled is None or room <= 0 or moves.found is not None:
            return 0
        if self._transaction != VStreamTransaction() or position.transaction:  # some of its rows are published
            return 0
        if self._end.is_reached or self._end.may_be_in(answers, self.shard):
            return 0
        now = self._clock()
        latest = int(min(latest_timestamp(now), self._end.latest(self._read, now)))
        whole = self.rows.read_whole(answers, room, latest)
        if whole.executed is None:
            return 0
        self.is_active = True
        self.position = replace(position, executed=whole.executed)
        self.progress = float(whole.timestamp)
        self._read = whole.timestamp
        moves.is_due |= whole.has_empty
        return whole.consumed

    def apply(self, event: pb.VEvent) -> None:
        """Apply one event.

        Raises `PageMustEnd` if the page has to end first: then apply the event again. Raises `BrokenStream`,
        `ServerStarted`, and ``RelayError`` if no retry can help.
        """
        handler = _HANDLERS.get(event.type)
        if handler is not None:  # others: heartbeats, schema versions, and kinds that later versions of vtgate add
            if not self._transaction.is_open and self.rows.tables.moves.is_reached(self.position):
                raise PageMustEnd  # I3: later rows may be replicated back from the keyspace that has their tables now
            if not self._transaction.is_open:
                self._end.check(event.timestamp, self._clock())
            self.is_active = True
            handler(self, event)
        elif event.type == EventKind.HEARTBEAT and event.timestamp:
            self._heard(event.timestamp)

    def _begin(self, event: pb.VEvent) -> None:
        if self._transaction.has_changes:
            raise BrokenStream("a transaction began inside another")
        self._transaction = VStreamTransaction()  # vtgate sends a cut-off transaction again
        self._transaction.begin(event, self.bytes_in)

    def _row(self, event: pb.VEvent) -> None:
        rows = event.row_event
        if rows.is_internal_table:
            return
        if rows.table_name in self.rows.keyless:  # I1: another shard may have relayed the table meanwhile
            self._require_key(rows.table_name)
        transaction = self._transaction
        if not transaction.is_open:
            transaction.begin(event, self.bytes_in)
        if not transaction.timestamp:
            transaction.timestamp = event.timestamp
        if transaction.emptied:
            # A position inside the transaction could not count its rows.
            name = f"transaction {transaction.gtid or f'after {self.position.executed}'}"
            raise RelayError(
                f"shard {self.shard.qualified}: {name} replaces the table {transaction.emptied[0].name} and fills it "
                "in one transaction, which cannot be relayed: reset the source to a position after it, or leave the "
                "table out of `tables`"
            )
        if transaction.has_changes:
            self.rows.stream(rows, transaction.gtid)
            return
        transaction.waiting.append(rows)
        waiting = self.bytes_in - transaction.begun_at  # usually 0: the GTID comes in the same answer
        if waiting and transaction.is_ready(waiting, self.position, self.shard, self.settings):
            self._start_changes(transaction.gtid, transaction.end_after(self.position.executed))

    def _vgtid(self, event: pb.VEvent) -> None:
        transaction = self._transaction
        _, transaction.executed = position_in(event.vgtid, self.shard)
        if transaction.waiting:
            self._start_changes(transaction.name_after(self.position.executed), transaction.executed)

    def _start_changes(self, gtid: str, executed: str) -> None:
        """Turn the waiting rows of the transaction, and later ones, into changes. ``executed``: the set at its end."""
        transaction = self._transaction
        if not gtid:
            raise BrokenStream(f"rows came after {self.position.executed}, but their position {executed} adds no GTID")
        self.position.check_history(gtid, executed, self.shard)
        transaction.gtid = gtid
        # I7: no later token is earlier than this.
        transaction.timestamp = min(transaction.timestamp, latest_timestamp(self._clock()))
        self.changes.begin(gtid, executed, transaction.timestamp, skip=self._published_rows())
        transaction.has_changes = True
        waiting, transaction.waiting = transaction.waiting, []
        for rows in waiting:
            self.rows.stream(rows, gtid)

    def _commit(self, event: pb.VEvent) -> None:
        transaction, executed = self._transaction, self.position.executed
        if transaction.waiting:
            transaction.gtid = transaction.gtid or event.event_gtid
            if not transaction.gtid:
                raise RelayError(
                    f"shard {self.shard.qualified}: rows of {transaction.waiting[0].table_name} after {executed} have "
                    "no GTID: check that the table's storage engine is transactional"
                )
            self._start_changes(transaction.gtid, transaction.end_after(executed))
        if transaction.emptied or transaction.statements:
            # Now, so that no page ends between two statements, or between a statement and the position after it.
            if not transaction.has_changes:
                self._start_changes(transaction.name_after(executed), transaction.end_after(executed))
            for table in transaction.emptied:
                self.rows.truncate(table)
                self.rows.tables.skipped.forget(table.name)
            for applied in transaction.statements:
                self.changes.statement(self.shard.keyspace, applied)
        if transaction.has_changes:
            self.changes.end()
        elif event.type == EventKind.COMMIT:
            self.rows.tables.moves.is_due = True  # I3: a journal may have been written
        after = transaction.position_after(self.position)
        self.position.check_history(transaction.gtid, after.executed, self.shard)
        self.position = after
        self._end.note(self.position.executed)
        if seconds := transaction.timestamp or event.timestamp:
            self._read = min(seconds, latest_timestamp(self._clock()))
            self.progress = float(self._read)
        self.journal = self.journal or transaction.journal
        self._transaction = VStreamTransaction()

    def _rollback(self, event: pb.VEvent) -> None:
        if self._transaction.has_changes:
            raise BrokenStream("a transaction was rolled back after its rows had come")
        if self._transaction.statements:
            self.rows.tables.followed.forget()
        self._transaction = VStreamTransaction()

    def _statement(self, event: pb.VEvent) -> None:
        transaction = self._transaction
        # CREATE TABLE ... SELECT comes inside a transaction: its rows and the COMMIT follow.
        is_inside = transaction.is_open and event.event_gtid == transaction.gtid
        if not is_inside and (transaction.has_changes or transaction.waiting):
            raise BrokenStream("a statement came inside a transaction that has rows")
        if event.type == EventKind.DDL:
            self._define(event)
        if not is_inside:
            transaction.gtid, transaction.timestamp = event.event_gtid, event.timestamp
            self._commit(event)

    def _define(self, event: pb.VEvent) -> None:
        transaction, tables = self._transaction, self.rows.tables
        tables.altered()
        at = transaction.executed or event.event_gtid or f"the position after {self.position.executed}"
        executed = parse(transaction.executed or self.position.executed)
        statement = LoggedStatement(self.shard, tables, self.settings, event.statement, at, executed)
        if (refusal := statement.refusal()) is not None:
            if self.changes.size:
                raise PageMustEnd  # so that a reset to the position after it loses no change before it
            raise refusal
        transaction.remade = {**self.position.remade, **transaction.remade}
        emptied, is_relayed = statement.emptied(transaction.remade), tables.skipped.was_relayed
        if gone := [name for name in statement.moved if is_relayed(name) and name not in self.position.left_out]:
            self.lost = None if self.changes.size else gone[0]
            raise PageMustEnd  # I9: the changes of the table are read up to here
        statement.warn_of_moved()
        transaction.emptied += emptied
        statement.note_remade(transaction.remade)
        if (applied := tables.followed.apply(statement.parsed, statement.sql, 0)) is not None:
            transaction.statements.append(applied.noting_only(tables.is_relayed))

    def _fields(self, event: pb.VEvent) -> None:
        if event.field_event.is_internal_table:
            return
        self.rows.set_layout(event.field_event, inside_transaction=self._transaction.has_changes)
        self._require_key(event.field_event.table_name)

    def _require_key(self, name: str) -> None:
        """Raise `PageMustEnd` where a table loses its key, or gets one again: that is a gap (I9)."""
        lost = self.rows.keyless.get(name)
        table = lost or name.removeprefix(f"{self.shard.keyspace}.")
        is_gap = not lost or self.rows.tables.skipped.was_relayed(table)
        if is_gap and (table in self.position.left_out) != bool(lost):
            self.lost = None if self.changes.size else table
            raise PageMustEnd

    def leave_out(self, table: str) -> str:
        """Leave out a table from here on, or stop leaving it out. Return the reason of the gap (I9)."""
        left = {*self.position.left_out} ^ {table}
        is_moved = table in {**self.position.remade, **self._transaction.remade}
        self.position, self.lost = replace(self.position, left_out=tuple(sorted(left))), None
        if table not in left:
            self.rows.tables.skipped.take_back(table, has_gap=True)
        return lost_rows(table, is_left=table in left, is_moved=is_moved)

    def _changed_by_statement(self, event: pb.VEvent) -> None:
        raise RelayError(
            f"shard {self.shard.qualified}: a change after {self.position.executed} is logged as a statement, so its "
            "rows are unknown: set binlog_format to ROW on the database, and reset the source to a later position"
        )

    def _reshard(self, event: pb.VEvent) -> None:
        journal, name_of = event.journal, self.settings.name_of
        if not self.shard.is_ended_by(journal):
            return
        participants = tuple(name_of(each.keyspace, each.shard) for each in journal.participants)
        tables = replace(self.settings.portion, moves=()).to_json()
        try:
            targets = {
                name_of(each.keyspace, each.shard): {"gtid": canonical(each.gtid), **tables}
                for each in journal.shard_gtids
            }
            self._transaction.journal = ReshardJournal(str(journal.id), participants, targets)
        except GtidError as error:
            raise BrokenStream(f"a position in journal {journal.id} cannot be read: {error}") from None  # I4


_HANDLERS: dict[int, Callable[[ShardEvents, pb.VEvent], None]] = {
    EventKind.BEGIN: ShardEvents._begin,
    EventKind.COMMIT: ShardEvents._commit,
    EventKind.ROLLBACK: ShardEvents._rollback,
    EventKind.DDL: ShardEvents._statement,
    **dict.fromkeys(range(EventKind.INSERT, EventKind.DELETE + 1), ShardEvents._changed_by_statement),
    EventKind.OTHER: ShardEvents._statement,
    EventKind.ROW: ShardEvents._row,
    EventKind.FIELD: ShardEvents._fields,
    EventKind.VGTID: ShardEvents._vgtid,
    EventKind.JOURNAL: ShardEvents._reshard,
}


@dataclass(slots=True)
class VStreamTransaction:
    """One transaction of a shard's stream. Its rows wait until the position at its end has come.

    The position is usually in the same answer of vtgate. Then neither it nor the GTID has to be computed.
    """

    is_open: bool = False  # whether BEGIN or a row has come
    gtid: str = ""  # "" until vtgate or a position names it
    timestamp: int = 0  # seconds
    begun_at: int = 0  # bytes of the stream before it
    has_changes: bool = False  # whether its rows have started to become changes; before that they are ``waiting``
    waiting: list[pb.RowEvent] = field(default_factory=list)
    emptied: list[Table] = field(default_factory=list)  # the tables that its statements empty
    statements: list[AppliedStatement] = field(default_factory=list)  # its published statements
    executed: str = ""  # the set at its end in canonical form, or "" until that has come
    remade: dict[str, str] = field(default_factory=dict)  # as in the position, once it has statements
    journal: ReshardJournal | None = None  # if it ends the shard

    def begin(self, event: pb.VEvent, bytes_in: int) -> None:
        self.is_open = True
        self.gtid = event.event_gtid
        self.timestamp = event.timestamp
        self.begun_at = bytes_in

    def end_after(self, executed: str) -> str:
        """Return the executed set at its end, even before that has come. ``executed``: the set before it."""
        try:
            return self.executed or including(executed, self.gtid)
        except (GtidError, ValueError) as error:
            raise BrokenStream(f"cannot add transaction {self.gtid!r} to {executed}: {error}") from None

    def name_after(self, executed: str) -> str:
        """Return its GTID, or the GTID that its end adds to ``executed``; "" without either."""
        return self.gtid or added(executed, self.end_after(executed))

    def position_after(self, position: VStreamPosition) -> VStreamPosition:
        """Return the position at its end. ``position``: the position before it."""
        executed = self.end_after(position.executed) if self.executed or self.gtid else position.executed
        if position.transaction and (not position.done or self.gtid == position.transaction):
            position = replace(position, transaction="", done={})
        left_out = tuple(each for each in position.left_out if each not in {table.name for table in self.emptied})
        return replace(position, executed=executed, left_out=left_out, remade=self.remade or position.remade)

    def is_ready(self, waiting: int, position: VStreamPosition, shard: VitessShard, settings: VStreamSettings) -> bool:
        """Whether ``waiting`` bytes of rows need not wait for its end. ``RelayError`` if they are too many (I11)."""
        if self.gtid:
            return waiting > settings.page_bytes
        if waiting > settings.largest_unnamed:
            raise RelayError(
                f"shard {shard.qualified}: a transaction after {position.executed} exceeds "
                f"{settings.largest_unnamed >> 20} MiB, and this vtgate sends its GTID only at the end: upgrade to "
                "Vitess v23 or later, or split the transaction and reset the source to a position after this one"
            )
        return False

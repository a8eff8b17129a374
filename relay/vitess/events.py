"""The events of one shard's stream become changes, and a position to resume at after any of them.

It has no connection: what vtgate sends is applied event by event. vstreamer.go, uvstreamer.go and vstream_manager.go
(Vitess v0.23) define the order of events.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum

from relay.errors import RelayError
from relay.gtid import GtidError, parse
from relay.mysql_dialect.followed_tables import AppliedStatement
from relay.mysql_dialect.layouts import lost_rows
from relay.mysql_dialect.snapshot_times import latest_timestamp
from relay.mysql_dialect.statements import classify
from relay.mysql_dialect.streamed_transaction import PublishedRows, furthest
from relay.mysql_dialect.tables import Table
from relay.records import ReshardJournal
from relay.table import TableSchema
from relay.vitess.failures import BrokenStream
from relay.vitess.journals import ends_shard, journal_of
from relay.vitess.position import VStreamPosition, added, including, position_in
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard import VitessShard
from relay.vitess.shard_rows import PageMustEnd, ShardRows
from relay.vitess.statements import emptied_tables, here, note_remade, partly_emptied, refilled, refusal
from relay.vitess.stream_end import ServerStarted, StreamEnd
from relay.vitess.tables import Tables


class EventKind(IntEnum):
    """The kinds of events that are handled or refused: VEventType in Vitess' binlogdata.proto."""

    BEGIN = 2
    COMMIT = 3
    ROLLBACK = 4
    DDL = 5
    INSERT = 6  # this and the next three are changes logged as statements
    REPLACE = 7
    UPDATE = 8
    DELETE = 9
    OTHER = 11
    ROW = 12
    FIELD = 13
    HEARTBEAT = 14
    VGTID = 15
    JOURNAL = 16
    COPY_COMPLETED = 20  # of the copy of a table, see `relay.vitess.table_copy`


class ShardEvents:
    """Applies the events of one stream. Used by one thread.

    ``position``: where the stream was opened. ``floor``: seconds, no token is earlier. ``end``: where another stream
    has to go on. ``clock``: seconds since the epoch. ``heard``: is told the time of vtgate, in seconds.
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
        # After the last transaction that ended.
        self.position = position
        self.rows = ShardRows(shard, tables, floor)
        self.changes = self.rows.changes
        # Seconds: the time of the last transaction that ended, None before the first.
        self.progress: float | None = None
        # Seconds: the time of the last transaction of the stream.
        self._read = 0
        # Set where the shard ends, once the transaction of the journal has ended.
        self.journal: ReshardJournal | None = None
        # The table whose rows are left out from here on, or were up to here: `leave_out` comes next.
        self.lost: str | None = None
        # Whether the shard sent anything, and not only vtgate.
        self.is_active = False
        # Bytes of the answers that the events so far came in; the reader counts them.
        self.bytes_in = 0
        self._transaction = VStreamTransaction()
        self._pending_journal: ReshardJournal | None = None

    # ------------------------------------------------------------------ pages

    def end_page(self) -> list[TableSchema]:
        """Return the schemas of the tables that the page has changes of, and start the next page."""
        return self.rows.end_page(inside_transaction=self._transaction.has_changes)

    @property
    def is_between_transactions(self) -> bool:
        """Whether no token is made of a transaction that has not ended."""
        return not self._transaction.has_changes

    def raise_floor(self, timestamp: int) -> None:
        """Give no token an earlier timestamp from here on, in seconds. Call it between transactions."""
        self.changes.floor = max(self.changes.floor, timestamp)

    def resume_position(self) -> VStreamPosition:
        """Return where reading resumes once the changes that are ready are published."""
        transaction = self._transaction
        if transaction.has_changes and (done := furthest(self.changes.tally.rows_of, self._published_rows())):
            return replace(self.position, transaction=transaction.gtid, done=done)
        return self.position

    def _published_rows(self) -> PublishedRows:
        """Return how many rows of the open transaction were published when it was read before."""
        return self.position.done if self.position.transaction == self._transaction.gtid else {}

    # ------------------------------------------------------------------ events

    def read_whole(self, answers: bytes) -> int:
        """Read whole transactions at the beginning of ``answers``, until there are enough changes for a page.

        Return how many bytes they have. What follows is for `apply`: not all transactions can be read this way, and
        none where the compiled core is missing.
        """
        position, room = self.position, self.settings.page_bytes - self.changes.size
        if room <= 0 or self._pending_journal is not None or self._transaction != VStreamTransaction():
            return 0
        if position.transaction:  # some of its rows are published
            return 0
        if self.rows.compiled is None or self._end.is_reached or self._end.may_be_in(answers, self.shard):
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
        return whole.consumed

    def apply(self, event: pb.VEvent) -> None:
        """Apply one event.

        Raises `PageMustEnd` if the page has to end first: then apply the event again. Raises `BrokenStream`,
        `ServerStarted`, and ``RelayError`` for what no retry can change.
        """
        handler = _HANDLERS.get(event.type)
        if handler is not None:  # others: heartbeats, versions of schemas, and kinds that a later vtgate adds
            if not self._transaction.is_open and self._end.is_passed(event.timestamp, now := self._clock()):
                raise ServerStarted(self._end.passed_by(event.timestamp, latest_timestamp(now)))
            self.is_active = True
            handler(self, event)
        elif event.type == EventKind.HEARTBEAT and event.timestamp:
            self._heard(event.timestamp)

    def _begin(self, event: pb.VEvent) -> None:
        if self._transaction.has_changes:
            raise BrokenStream("a transaction began inside another")
        self._transaction = VStreamTransaction()  # what was cut off comes again
        self._transaction.begin(event, self.bytes_in)

    def _row(self, event: pb.VEvent) -> None:
        rows = event.row_event
        if rows.is_internal_table:
            return
        if rows.table_name in self.rows.keyless:  # I1: another shard may have relayed it meanwhile
            self._require_key(rows.table_name)
        transaction = self._transaction
        if not transaction.is_open:
            transaction.begin(event, self.bytes_in)
        if not transaction.timestamp:
            transaction.timestamp = event.timestamp
        if transaction.emptied:
            name = transaction.gtid or f"the transaction after {self.position.executed}"
            raise refilled(self.shard, name, transaction.emptied[0].name)
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
        """Make changes of the waiting rows of the transaction, and of later ones. ``executed``: at its end."""
        transaction = self._transaction
        if not gtid:
            raise BrokenStream(f"rows came after {self.position.executed}, and their position {executed} adds nothing")
        transaction.gtid = gtid
        # I7: later tokens have it at least.
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
            # At the end, so that no page ends between two of them, or between them and the position after them.
            if not transaction.has_changes:
                self._start_changes(transaction.name_after(executed), transaction.end_after(executed))
            for table in transaction.emptied:
                self.rows.truncate(table)
                self.rows.tables.skipped.forget(table.name)
            for applied in transaction.statements:
                self.changes.statement(self.shard.keyspace, applied)
        if transaction.has_changes:
            self.changes.end()
        self.position = transaction.position_after(self.position)
        self._end.note(self.position.executed)
        if seconds := transaction.timestamp or event.timestamp:
            self._read = min(seconds, latest_timestamp(self._clock()))
            self.progress = float(self._read)
        self._transaction = VStreamTransaction()
        if self._pending_journal is not None:
            self.journal, self._pending_journal = self._pending_journal, None

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
        transaction, statement, tables = self._transaction, event.statement, self.rows.tables
        tables.altered()
        parsed = here(classify(statement, ""))
        at = transaction.executed or event.event_gtid or f"the position after {self.position.executed}"
        if (table := partly_emptied(parsed, tables)) is not None:
            if self.changes.size:
                raise PageMustEnd  # so that whoever resets to a position after it has what came before
            raise refusal(self.shard, table, statement, at)
        executed = parse(transaction.executed or self.position.executed)
        remade = transaction.remade = {**self.position.remade, **transaction.remade}
        emptied = emptied_tables(parsed, tables, self.shard, self.settings, statement, at, executed, remade)
        transaction.emptied += emptied
        note_remade(parsed, tables, self.shard, self.settings, executed, remade)
        if (applied := tables.followed.apply(parsed, statement, 0)) is not None:
            seen = {table: why for table, why in applied.unseen.items() if self.settings.shows(table)}
            transaction.statements.append(replace(applied, unseen=seen))

    def _fields(self, event: pb.VEvent) -> None:
        if event.field_event.is_internal_table:
            return
        self.rows.set_layout(event.field_event, inside_transaction=self._transaction.has_changes)
        self._require_key(event.field_event.table_name)

    def _require_key(self, name: str) -> None:
        """Raise `PageMustEnd` if a table loses its key here, or has one again: that is a gap (I9)."""
        lost = self.rows.keyless.get(name)
        table = lost or name.removeprefix(f"{self.shard.keyspace}.")
        is_gap = not lost or self.rows.tables.skipped.was_relayed(table)
        if is_gap and (table in self.position.left_out) != bool(lost):
            self.lost = None if self.changes.size else table
            raise PageMustEnd

    def leave_out(self, table: str) -> str:
        """Leave out a table from here on, or no longer: return the reason of the gap (I9)."""
        left = {*self.position.left_out} ^ {table}
        self.position, self.lost = replace(self.position, left_out=tuple(sorted(left))), None
        if table not in left:
            self.rows.tables.skipped.take_back(table, has_gap=True)
        return lost_rows(table, is_left=table in left)

    def _changed_by_statement(self, event: pb.VEvent) -> None:
        raise RelayError(
            f"shard {self.shard.qualified}: a change after {self.position.executed} is logged as a statement, so its "
            "rows are unknown: set binlog_format to ROW on the database, and reset the source to a later position"
        )

    def _reshard(self, event: pb.VEvent) -> None:
        journal = event.journal
        if not ends_shard(journal, self.shard):
            return
        try:
            self._pending_journal = journal_of(journal, self.shard.keyspace)
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

    That is usually in the same answer of vtgate, and then its GTID and position need not be computed.

    ``is_open``: whether BEGIN or a row has come. ``gtid``: "" until vtgate or a position names it. ``timestamp``:
    seconds. ``begun_at``: bytes of the stream before it. ``has_changes``: whether its rows have started to become
    changes; before that they are ``waiting``. ``emptied``: tables that a statement in it empties. ``statements``: its
    published ones. ``executed``: the set at its end in canonical form, "" until that has come. ``remade``: as in the
    position, once it has statements.
    """

    is_open: bool = False
    gtid: str = ""
    timestamp: int = 0
    begun_at: int = 0
    has_changes: bool = False
    waiting: list[pb.RowEvent] = field(default_factory=list)
    emptied: list[Table] = field(default_factory=list)
    statements: list[AppliedStatement] = field(default_factory=list)
    executed: str = ""
    remade: dict[str, str] = field(default_factory=dict)

    def begin(self, event: pb.VEvent, bytes_in: int) -> None:
        """Start at ``event``, after ``bytes_in`` bytes of the stream."""
        self.is_open = True
        self.gtid = event.event_gtid
        self.timestamp = event.timestamp
        self.begun_at = bytes_in

    def end_after(self, executed: str) -> str:
        """Return the executed set at its end, also before that has come. ``executed``: the set before it."""
        try:
            return self.executed or including(executed, self.gtid)
        except (GtidError, ValueError) as error:
            raise BrokenStream(f"cannot add transaction {self.gtid!r} to {executed}: {error}") from None

    def name_after(self, executed: str) -> str:
        """Return its GTID, or else what its end adds to ``executed``; "" if that is nothing."""
        return self.gtid or added(executed, self.end_after(executed))

    def position_after(self, position: VStreamPosition) -> VStreamPosition:
        """Return the position at its end. ``position``: the one before it."""
        executed = self.end_after(position.executed) if self.executed or self.gtid else position.executed
        if position.transaction and (not position.done or self.gtid == position.transaction):
            position = replace(position, transaction="", done={})
        left_out = tuple(each for each in position.left_out if each not in {table.name for table in self.emptied})
        return replace(position, executed=executed, left_out=left_out, remade=self.remade or position.remade)

    def is_ready(self, waiting: int, position: VStreamPosition, shard: VitessShard, settings: VStreamSettings) -> bool:
        """Whether ``waiting`` bytes of rows need not wait for its end. ``RelayError`` if too many have to (I11)."""
        if self.gtid:
            return waiting > settings.page_bytes
        if waiting > settings.largest_unnamed:
            raise RelayError(
                f"shard {shard.qualified}: a transaction after {position.executed} exceeds "
                f"{settings.largest_unnamed >> 20} MiB, and this vtgate sends its GTID only at the end: upgrade to "
                "Vitess v23 or later, or split the transaction and reset the source to a position after this one"
            )
        return False

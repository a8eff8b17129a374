"""The events of one shard's stream become changes, and a place that reading can go on from after any of them.

No connection here: what vtgate sends goes in, event by event. The orders in which events come are those of
vstreamer.go, uvstreamer.go and vstream_manager.go (v0.23): strict while replicating, odd while tables are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from relay.change import Snapshot
from relay.errors import RelayError
from relay.gtid import GtidError
from relay.lineage import Journal
from relay.source import STREAMED_PAGE
from relay.sql.changes import TransactionChanges
from relay.sql.done import Done, further
from relay.sql.statements import Classified, Kind, Name, classify
from relay.sql.tables import Row, Table
from relay.table import TableSchema
from relay.vitess.journals import early, ends, told
from relay.vitess.losses import emptied, refill, refusal, warn_of_gone, warn_of_left_out, warn_of_rename
from relay.vitess.position import VStreamPosition, added, canonical, including
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import Partial, VStreamRowDecoder
from relay.vitess.tables import INTERNAL, Tables

BEGIN, COMMIT, ROLLBACK, DDL, OTHER, ROW, FIELD, VGTID, JOURNAL, COPY_COMPLETED = 2, 3, 4, 5, 11, 12, 13, 15, 16, 20
_STATEMENTS = (6, 7, 8, 9)  # INSERT, REPLACE, UPDATE, DELETE as statements
_OTHER = Classified(Kind.OTHER)

LARGEST_UNNAMED = 64 << 20
"""Bytes of one transaction, as sent, that wait for its GTID where vtgate sends that only at the end (before v23)."""


class Broken(Exception):
    """The stream does not make sense here: it has to be opened again where it last did."""


class ShardEvents:
    """Used by one thread. ``place``: where the stream was opened. ``snapshot``: of the rows that are copied.

    ``wanted``: whether a table is relayed, by its name, also if it is not there any more. ``gone``: tables whose DROP
    comes in this stream.
    """

    def __init__(
        self,
        source: str,
        qualified: str,
        keyspace: str,
        shard: str,
        tables: Tables,
        place: VStreamPosition,
        *,
        floor: int,
        snapshot: Snapshot | None = None,
        copy_begun: float = 0.0,
        largest_unnamed: int = LARGEST_UNNAMED,
        page_bytes: int = STREAMED_PAGE,
        wanted: Callable[[str], bool],
        gone: Container[str] = (),
    ) -> None:
        self.qualified = qualified
        self.keyspace = keyspace
        self.shard = shard
        self.tables = tables
        self.changes = TransactionChanges(source, qualified, floor)
        # After the last transaction that ended.
        self.place = place
        # Bytes of the answers that the events so far came in, as the reader counts them.
        self.bytes_in = 0
        # Seconds: of the last transaction that ended, None before the first.
        self.progress: float | None = None
        # Rows that came, since the last page.
        self.records = 0
        # The end of the shard, once it was told and its transaction has ended.
        self.journal: Journal | None = None
        # Whether the table being copied is done.
        self.copy_completed = False
        # Whether anything came of the shard itself, and not only of vtgate.
        self.moved = False
        self.largest_unnamed = largest_unnamed
        self._page_bytes = page_bytes
        self._wanted = wanted
        self._gone = gone
        self._snapshot = snapshot
        self._copy_begun = copy_begun
        self._decoders: dict[str, VStreamRowDecoder | None] = {}
        self._copied: dict[str, VStreamRowDecoder | None] = {}
        # Layouts of the rows in the page being made, by table.
        self._touched: dict[str, Table] = {}
        self._last: Table | None = None
        self._told: Journal | None = None
        self._reset()

    def __repr__(self) -> str:
        return f"<ShardEvents[{self.qualified} after {self.place.executed or 'nothing'}]>"

    def _reset(self) -> None:
        """Nothing of a transaction has come."""
        self._gtid = ""
        self._timestamp = 0
        self._is_open = False
        # Whether changes were begun for it; its rows before that, and since when they wait.
        self._has_begun = False
        self._waiting: list[pb.RowEvent] = []
        self._waits_since = 0
        # Tables that a statement of it empties.
        self._emptied: list[Table] = []
        # Copied rows of a batch that is not ended.
        self._copying: list[pb.RowEvent] = []
        # Its position, once that came, with its canonical text.
        self._vgtid: pb.ShardGtid | None = None
        self._position = ""

    # ------------------------------------------------------------------ pages

    def page_tables(self) -> list[TableSchema]:
        """Return the schemas of the tables that the page has changes of, and begin the next page."""
        schemas = [table.schema for table in self._touched.values()]
        # The changes of the last row of an open transaction are held back for the next page.
        held = self._last if self._has_begun else None
        self._touched = {held.name: held} if held is not None else {}
        self.records = 0
        return schemas

    def place_now(self) -> VStreamPosition:
        """Where to go on once the changes that were ready are published."""
        if self._has_begun and (done := further(self.changes.rows_of, self._done_before())):
            return replace(self.place, transaction=self._gtid, done=done)
        return self.place

    def _done_before(self) -> Done:
        """Return what was published of the open transaction when it was read before."""
        return self.place.done if self.place.transaction == self._gtid else {}

    # ------------------------------------------------------------------ events

    def take_in(self, event: pb.VEvent) -> bool:
        """Take one event in. False: not before the page was ended: a table's layout changes by it, or it is refused.

        Raises `Broken`, and ``RelayError`` on what is final.
        """
        kind = event.type
        if kind == ROW:
            self._row(event)
        elif kind == VGTID:
            self._place(event)
        elif kind == BEGIN:
            if self._has_begun:
                raise Broken("a transaction began inside of another")
            self._reset()  # a catch-up that was cut off: it will come again
            self._open(event)
        elif kind == COMMIT:
            self._commit(event)
        elif kind == FIELD:
            return self._field(event)
        elif kind in (DDL, OTHER):
            self.moved = True
            return self._statement(event)
        elif kind == JOURNAL:
            self._journal(event.journal)
        elif kind == COPY_COMPLETED:
            if self._copying:
                raise Broken(f"the copy of {self._copying[0].table_name} was ended inside of a batch")
            self.copy_completed = self.copy_completed or event.shard == self.shard
        elif kind in _STATEMENTS:
            raise RelayError(
                f"shard {self.qualified}: a change was written as a statement after {self.place.executed}: "
                "its rows cannot be known. Set binlog_format to ROW on the database"
            )
        elif kind == ROLLBACK:
            if self._has_begun:
                raise Broken("a transaction was rolled back after its rows had come")
            self._reset()
        else:
            return True  # heartbeats, versions of schemas, and whatever a later vtgate has
        self.moved = True
        return True

    def _open(self, event: pb.VEvent) -> None:
        self._is_open = True
        self._gtid = event.event_gtid
        self._timestamp = event.timestamp
        self._waits_since = self.bytes_in

    def _row(self, event: pb.VEvent) -> None:
        rows = event.row_event
        if rows.is_internal_table:
            return
        if self.place.copied is not None and not event.timestamp and not event.event_gtid:
            self._copying.append(rows)
            return
        if not self._is_open:
            self._open(event)
        if not self._timestamp:
            self._timestamp = event.timestamp
        if self._emptied:
            raise refill(self.qualified, self._gtid or f"what follows {self.place.executed}", self._emptied[0].name)
        if self._has_begun:
            self._apply(rows)
            return
        # The GTID comes at the end, mostly in the same answer: then nothing has to be computed.
        self._waiting.append(rows)
        waiting = self.bytes_in - self._waits_since
        if self._gtid and waiting > self._page_bytes:
            self._begin(self._gtid, self._including(self._gtid))
        elif waiting > self.largest_unnamed:
            raise RelayError(
                f"shard {self.qualified}: a transaction after {self.place.executed} has more than "
                f"{self.largest_unnamed >> 20} MiB, and vtgate names it only at its end: Vitess v23 does it before, "
                "or split the transaction and reset the source to a later position"
            )

    def _place(self, event: pb.VEvent) -> None:
        self._vgtid = own = self._own(event.vgtid)
        self._position = position = self._canonical(own.gtid)
        if self._waiting:
            self._begin(self._gtid or added(self.place.executed, position), position)

    def _own(self, vgtid: pb.VGtid) -> pb.ShardGtid:
        for shard in vgtid.shard_gtids:
            if shard.shard == self.shard and shard.keyspace == self.keyspace:
                return shard
        raise Broken(f"a position that does not have {self.keyspace}/{self.shard}")

    def _canonical(self, text: str) -> str:
        try:
            return canonical(text)
        except GtidError as error:
            raise Broken(f"a position that is none: {error}") from None  # I4

    def _including(self, transaction: str) -> str:
        try:
            return including(self.place.executed, transaction)
        except (GtidError, ValueError) as error:
            raise Broken(f"the transaction {transaction!r} after {self.place.executed}: {error}") from None

    def _begin(self, transaction: str, position: str) -> None:
        if not transaction:
            raise Broken(f"rows after {self.place.executed} whose position {position} adds nothing to it")
        self._gtid = transaction
        self.changes.begin(transaction, position, self._timestamp, skip=self._done_before())
        self._has_begun = True
        waiting, self._waiting = self._waiting, []
        for rows in waiting:
            self._apply(rows)

    def _commit(self, event: pb.VEvent) -> None:
        if self._waiting:
            transaction = self._gtid or event.event_gtid
            if not transaction:
                raise RelayError(
                    f"shard {self.qualified}: rows of {self._waiting[0].table_name} after "
                    f"{self.place.executed} came without a GTID: is its engine a transactional one?"
                )
            self._begin(transaction, self._including(transaction))
        if self._emptied:
            self._empty()
        if self._has_begun:
            self.changes.end()
        if self._copying:
            self._read_batch()
        self._advance(event)
        self._reset()
        if self._told is not None:
            self.journal, self._told = self._told, None

    def _advance(self, event: pb.VEvent) -> None:
        """A transaction has ended: everything up to its position is taken in."""
        place, vgtid = self.place, self._vgtid
        executed = place.executed
        if vgtid is not None:
            executed = self._position
            # Without a key the table has no row so far, or all: what that means is for COPY_COMPLETED to say.
            if place.copied is not None and vgtid.table_p_ks:
                place = replace(place, pks=tuple(vgtid.table_p_ks))
        elif self._gtid:
            executed = self._including(self._gtid)
        if place.transaction and (not place.done or self._gtid == place.transaction):
            place = replace(place, transaction="", done={})
        self.place = place.past(executed)
        seconds = self._timestamp or event.timestamp
        if seconds:
            self.progress = float(seconds)

    def _statement(self, event: pb.VEvent) -> bool:
        # CREATE TABLE ... SELECT: its rows, and the COMMIT, are still to come.
        is_inside = self._is_open and event.event_gtid == self._gtid
        if not is_inside and (self._has_begun or self._waiting):
            raise Broken("a statement inside of a transaction with rows")
        said = classify(event.statement, "") if event.type == DDL else _OTHER
        statement, at = event.statement, self._position or event.event_gtid or f"what follows {self.place.executed}"
        for name in self._given(said.names if said.kind is Kind.CHANGE else ()):
            if self.tables.known(name) is not None:
                if self.changes.size:
                    return False  # so that whoever begins after it has what came before
                raise refusal(self.qualified, name, statement, at)
        for (_, old), (_, new) in said.renamed:
            if self._wanted(old) and not new.startswith(INTERNAL):
                warn_of_rename(self.qualified, old, new)
        for name in self._given(emptied(said)):
            if (table := self.tables.known(name)) is not None:
                self._emptied.append(table)
            elif self._wanted(name) and not said.replaces:
                warn_of_gone(self.qualified, name, statement, at)
        if not is_inside:
            self._gtid, self._timestamp = event.event_gtid, event.timestamp
            self._commit(event)
        return True

    def _empty(self) -> None:
        """Tell of the tables that are emptied, at the end: so no page ends between two of them."""
        if not self._has_begun:
            position = self._position or self._including(self._gtid)
            self._begin(self._gtid or added(self.place.executed, position), position)
        for table in self._emptied:
            self._touched.setdefault(table.name, table)
            self.changes.truncate(table)

    def _given(self, names: Sequence[Name]) -> list[str]:
        """Return those of the tables that rows may have been given of."""
        copied, begun = self.place.copied, [pk.table_name for pk in self.place.pks]
        return [name for _, name in names if copied is None or name in copied or name in begun]

    # ------------------------------------------------------------------ rows

    def _field(self, event: pb.VEvent) -> bool:
        field = event.field_event
        if field.is_internal_table:
            return True
        copied = self.place.copied is not None and not event.timestamp and not event.event_gtid
        try:
            decoder = self.tables.decoder(field, copied=copied)
        except RelayError as error:
            if field.table_name not in self._gone:
                raise
            warn_of_left_out(self.qualified, field.table_name, error)
            decoder = None
        if copied and self._copying and self._copied.get(field.table_name) is not decoder:
            raise Broken(f"the columns of {field.table_name} changed inside of a batch that is copied")
        if decoder is not None and self._touched.get(decoder.table.name, decoder.table) is not decoder.table:
            if self._has_begun:
                raise Broken(f"the columns of {field.table_name} changed inside of a transaction")
            return False
        (self._copied if copied else self._decoders)[field.table_name] = decoder
        return True

    def _apply(self, event: pb.RowEvent) -> None:
        decoder = self._decoder(event.table_name, self._decoders)
        if decoder is None:
            return
        table, decode, decode_before, row = decoder.table, decoder.decode, decoder.before, self.changes.row
        self._touched[table.name] = self._last = table
        for change in event.row_changes:
            before: Row | None = None
            after: Row | None = None
            size = 0
            try:
                if change.HasField("before"):
                    before = decode_before(change.before)
                    size = len(change.before.values)
                if change.HasField("after"):
                    if change.HasField("data_columns") or change.HasField("json_partial_values"):
                        raise Partial
                    after = decode(change.after)
                    size += len(change.after.values)
            except Partial:
                raise RelayError(
                    f"shard {self.qualified}: a row of {table.name} in {self._gtid} has not all of its columns: set "
                    "binlog_row_image to FULL, and binlog_row_value_options to nothing"
                ) from None
            except (ValueError, ArithmeticError, KeyError):
                raise self._undecodable(decoder, change) from None
            row(table, before, after, size or 1)
            self.records += 1

    def _read_batch(self) -> None:
        """Give the rows of a batch with the place after them, and not before.

        A row that is published while its copy goes on before it is read again then: if it was deleted meanwhile,
        nothing ever says so. vtgate bounds a batch to about 250 kB (--vstream-packet-size), so it can wait.
        """
        if self._vgtid is None or not self._vgtid.table_p_ks:
            raise Broken(f"copied rows of {self._copying[0].table_name} without the key that they end at")
        for event in self._copying:
            self._read(event)

    def _read(self, event: pb.RowEvent) -> None:
        decoder = self._decoder(event.table_name, self._copied)
        if decoder is None or self._snapshot is None:
            return
        self._touched[decoder.table.name] = decoder.table
        for change in event.row_changes:
            try:
                row = decoder.decode(change.after)
            except (ValueError, ArithmeticError, KeyError):
                raise self._undecodable(decoder, change) from None
            self.changes.read(decoder.table, row, self._snapshot, self._copy_begun)
            self.changes.size += len(change.after.values) or 1
            self.records += 1

    def _decoder(self, table: str, decoders: Mapping[str, VStreamRowDecoder | None]) -> VStreamRowDecoder | None:
        try:
            return decoders[table]
        except KeyError:
            raise Broken(f"rows of {table} before its fields") from None

    def _undecodable(self, decoder: VStreamRowDecoder, change: pb.RowChange) -> RelayError:
        where = f"in {self._gtid}" if self._gtid else f"after {self.place.executed}"
        return RelayError(f"shard {self.qualified}: a row of {decoder.table.name} {where}: {decoder.refused(change)}")

    # ------------------------------------------------------------------ reshards

    def _journal(self, journal: pb.Journal) -> None:
        if not ends(journal, self.keyspace, self.shard):
            return
        if self.place.copied is not None:
            raise early(self.qualified, f" (journal {journal.id})")
        try:
            self._told = told(journal, self.keyspace)
        except GtidError as error:
            raise Broken(f"a position that is none: {error}") from None  # I4

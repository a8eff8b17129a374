"""The stream of a server from a GTID set on: transactions, their rows, and where the stream stands.

Rows are given as they come, so that a transaction of any size takes the memory of one event (I11). What cannot be given
exactly ends the stream (I8): the errors name table and position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.gtid import parse as parse_set
from relay.mysql.binlog import events, refusals
from relay.mysql.binlog.compressed import unpacked
from relay.mysql.binlog.dump import Dump, RawEvent
from relay.mysql.binlog.events import COMMIT, ROWS, BinlogEvent, Heartbeat, Rows, Statement, TransactionBegin
from relay.mysql.binlog.rows import RowDecoder, columns_of
from relay.mysql.binlog.table_map import BadTableMap, name_in, packed, parse
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import IncidentEvent, NotCarried
from relay.mysql.executed import Executed
from relay.sql.statements import Classified, Kind, classify
from relay.sql.tables import Table
from relay.table import Column

Layout = Callable[[str, str, Sequence[Column], Sequence[str]], Table | None]
"""``layout(database, table, columns, primary)``: how the rows are laid out, None for a table that is not wanted."""

Wanted = Callable[[str, str], bool]
"""``wanted(database, table)``. Of what is not wanted neither rows nor columns are looked at."""

_LAYOUTS = 10_000
_UNSURE = 16 << 20
"""Bytes of rows that are held until an XA transaction says whether it commits."""
_ON_ITS_WAY = 1.0
"""Seconds, at most, that a heartbeat is between the server and here."""
_DUMMY = b"\xff\xff\xff\0\0\0"
"""The table id of a row event that only ends a statement."""


class _Entry:
    """A layout, as one TABLE_MAP gave it: how its rows are read, and what they are for the caller."""

    __slots__ = ("decoder", "name", "table")

    def __init__(self, decoder: RowDecoder, table: Table) -> None:
        self.decoder = decoder
        self.table = table
        self.name = f"{decoder.table.database}.{decoder.table.table}"


class BinlogEvents:
    """What a server has committed since ``start``, in order. ``read`` by one thread; ``close`` by any.

    ``executed``: up to and including the last transaction that ``read`` told to its end. ``file`` and ``position``:
    where the last event is in the server's binlog.
    """

    def __init__(
        self, server: ServerConnection, start: GtidSet, layout: Layout | None, wanted: Wanted | None = None
    ) -> None:
        """No ``layout``: no rows. Raises ``Unavailable``, ``RelayError`` for a ``start`` of the other flavour."""
        self._setup(server, layout, wanted, Executed(start, server.flavour))
        self._dump = Dump.from_gtid(server, start)

    def _setup(
        self, server: ServerConnection, layout: Layout | None, wanted: Wanted | None, executed: Executed
    ) -> None:
        self.file = ""
        self.position = 0
        self._server = server
        self._layout = layout
        self._wanted = wanted or (lambda _database, _table: layout is not None)
        self._executed = executed
        self._maps: dict[bytes, _Entry | None] = {}
        self._open: dict[bytes, _Entry | None] = {}
        self._gtid = ""
        self._committed = executed.position
        # Of the open transaction: a MySQL GTID whose begin was not told yet, whether it is one statement, a row of
        # a wanted table, whether it is only prepared, and rows of which that is not known yet.
        self._held: tuple[int, int | None] | None = None
        # A compressed transaction that was not told to its end (I11), and what came after it.
        self._unpacking: Iterator[tuple[bytes, list[RawEvent]]] | None = None
        self._left: tuple[bytes, Iterator[RawEvent]] | None = None
        # What ended the stream, while what came before it was given.
        self._fault: RelayError | None = None
        self._is_statement = False
        self._has_rows = ""
        self._is_prepared = False
        self._unsure: list[Rows] | None = None
        self._unsure_size = 0

    def __repr__(self) -> str:
        return f"<BinlogEvents[{self._server.account.address} at {self.file}:{self.position}]>"

    @property
    def executed(self) -> GtidSet:
        return parse_set(self._committed)

    def close(self) -> None:
        """End the stream, also while another thread reads: that one gets ``Closed``."""
        self._dump.close()

    def read(self, timeout: float) -> list[BinlogEvent]:
        """Return what has come, at once if anything has; nothing after ``timeout`` seconds.

        Raises ``Closed``, ``Interrupted``, ``Denied``, ``Purged``, ``Diverged``, ``Unavailable``, ``NotCarried``.
        """
        if self._fault is not None:
            raise self._fault
        told: list[BinlogEvent] = []
        has_asked = False
        while not told:
            if self._unpacking is not None:
                part = next(self._unpacking, None)
                if part is None:
                    self._unpacking = None
                    continue
                buffer, found = part[0], iter(part[1])
            elif self._left is not None:
                buffer, found = self._left
                self._left = None
            elif has_asked:
                break
            else:
                buffer, some = self._dump.read(timeout)
                found, has_asked = iter(some), True
            try:
                self._tell(buffer, found, told)
            except RelayError as error:
                if not told:
                    raise
                self._fault = error  # after what came before it
        return told

    @property
    def _place(self) -> str:
        gtid = f", GTID {self._gtid}" if self._gtid else ""
        return f"{self._server.account.address}, {self.file} before {self.position}{gtid}"

    def _tell(self, buffer: bytes, found: Iterator[RawEvent], told: list[BinlogEvent]) -> None:
        """Take events in, up to a compressed transaction: what is in that, and what follows it, is left for later."""
        for kind, timestamp, server_id, position, flags, start, end in found:
            if kind in ROWS:
                self.position = position or self.position
                self._rows(kind, buffer, start, end, told)
            elif kind == events.TABLE_MAP:
                raw = buffer[start + 8 : end]
                entry = self._maps.get(raw, self)
                if entry is self:
                    self.position = position or self.position
                    entry = self._learn(raw)
                self._open[buffer[start : start + 6]] = entry  # type: ignore[assignment]
            elif kind == events.XID:
                self.position = position or self.position
                self._commit(told)
            elif kind == events.MARIADB_GTID:
                self.position = position or self.position
                sequence, domain, bits = events.MARIADB_GTID_BODY.unpack_from(buffer, start)
                self._new_transaction()
                self._gtid = f"{domain}-{server_id}-{sequence}"
                reached = self._executed.add_mariadb(domain, server_id, sequence)
                self._is_statement = bool(bits & events.STANDALONE)
                self._is_prepared = bool(bits & events.PREPARED_XA)
                told.append(TransactionBegin(self._gtid, reached, timestamp, None, bool(bits & events.IS_DDL)))
            elif kind == events.GTID:
                self.position = position or self.position
                server, number, committed_at = events.mysql_gtid(buffer[start:end])
                self._new_transaction()
                self._gtid = f"{server}:{number}"
                self._executed.add_mysql(server, number)
                # Whether it is DDL only its first event says.
                self._held = (timestamp, committed_at)
            elif kind == events.QUERY or kind == events.COMPRESSED_QUERY:
                self.position = position or self.position
                self._query(buffer[start:end], timestamp, kind == events.COMPRESSED_QUERY, told)
            elif kind == events.TRANSACTION_PAYLOAD:
                self.position = position or self.position
                if self._layout is None:
                    self._commit(told)  # all of it is in there
                    continue
                if self._unpacking is not None:
                    raise NotCarried(f"{self._place}: a compressed transaction inside of another")
                self._unpacking = unpacked(buffer[start:end], self.position, self._place)
                self._left = buffer, found
                return
            else:
                self._other(kind, flags, buffer[start:end], timestamp, position, told)

    # ------------------------------------------------------------------ transactions

    def _new_transaction(self) -> None:
        if self._gtid:
            # A server that died while it wrote it: nothing of it was committed.
            if self._has_rows:
                raise NotCarried(f"{self._place}: a transaction with rows of {self._has_rows} has no end")
            self._executed.restore(self._committed)
        self._has_rows = ""
        self._is_statement = self._is_prepared = False
        self._held = self._unsure = None
        if len(self._open) > _LAYOUTS:
            self._open.clear()

    def _begin_held(self, told: list[BinlogEvent], is_ddl: bool) -> None:
        if self._held is not None:
            timestamp, committed_at = self._held
            self._held = None
            told.append(TransactionBegin(self._gtid, self._executed.position, timestamp, committed_at, is_ddl))

    def _commit(self, told: list[BinlogEvent]) -> None:
        if self._gtid:
            self._begin_held(told, False)
            self._gtid = ""
            self._committed = self._executed.position
            told.append(COMMIT)

    # ------------------------------------------------------------------ rows

    def _learn(self, raw: bytes) -> _Entry | None:
        """Read a TABLE_MAP that was not seen before."""
        if len(self._maps) >= _LAYOUTS:
            self._maps.clear()
        database, name = name_in(raw)
        entry = None
        if self._wanted(database, name):
            try:
                table = parse(raw, self._server.is_mariadb)
                columns = columns_of(table)
            except BadTableMap as fault:
                raise NotCarried(
                    f"{self._place}: rows of {database}.{name} cannot be read: {fault}. Begin after this position, or "
                    "leave the table out"
                ) from None
            layout = self._layout(database, name, columns, table.primary) if self._layout is not None else None
            entry = None if layout is None else _Entry(RowDecoder(table), layout)
        self._maps[raw] = entry
        return entry

    def _rows(self, kind: int, buffer: bytes, start: int, end: int, told: list[BinlogEvent]) -> None:
        try:
            entry = self._open[buffer[start : start + 6]]
        except KeyError:
            if buffer[start : start + 6] == _DUMMY:
                return
            raise NotCarried(f"{self._place}: rows without a TABLE_MAP before them") from None
        if entry is None:
            return
        decoder = entry.decoder
        operation, has_extra, is_compressed = ROWS[kind]
        at = start + 8
        if has_extra:
            at += buffer[at] | buffer[at + 1] << 8
        width = buffer[at]
        if width > 250:
            width, at = packed(buffer, at)
        else:
            at += 1
        if width != decoder.width:
            raise NotCarried(f"{self._place}: rows of {entry.name} with {width} columns, not {decoder.width}")
        for _ in range(2 if operation == "updates" else 1):
            bitmap = buffer[at : at + decoder.bitmap]
            if bitmap not in decoder.full and not decoder.is_full(bitmap):
                raise NotCarried(
                    f"{self._place}: a row of {entry.name} without all its columns: it was written without "
                    "`binlog_row_image = FULL`. Set it (`SET GLOBAL binlog_row_image = 'FULL'`; sessions may have set "
                    "their own) and begin after this position, or leave the table out"
                )
            at += decoder.bitmap
        if self._is_prepared:
            raise refusals.unsure(self._place, entry.name, _UNSURE)
        self._has_rows = entry.name
        if is_compressed:
            buffer, at = events.inflated(buffer[at:end]), 0
            end = len(buffer)
        read = decoder.inserts if operation == "inserts" else decoder.updates if operation == "updates" else None
        try:
            changes = (read or decoder.deletes)(buffer, at, end)
        except Exception:
            # Whatever bad bytes have led to: now the slow way, to say where.
            reason = decoder.explain(buffer, at, end)
            raise NotCarried(f"{self._place}: rows of {entry.name} cannot be read: {reason}") from None
        if self._held is not None:
            self._begin_held(told, False)
        found = Rows(entry.table, changes, end - at)
        if self._unsure is None:
            told.append(found)
            return
        self._unsure.append(found)
        self._unsure_size += found.size
        if self._unsure_size > _UNSURE:
            raise refusals.unsure(self._place, entry.name, _UNSURE)

    # ------------------------------------------------------------------ statements and the rest

    def _query(self, body: bytes, timestamp: int, is_compressed: bool, told: list[BinlogEvent]) -> None:
        raw, encoding, database, ansi_quotes = events.query(body, is_compressed)
        if raw == b"BEGIN":
            self._begin_held(told, False)
            return
        if raw == b"COMMIT":
            self._commit(told)
            return
        sql = events.statement_text(raw, encoding)
        said = classify(sql, database, ansi_quotes)
        if said.kind is Kind.XA_START:
            self._unsure, self._unsure_size = [], 0
            self._begin_held(told, False)
            return
        if said.kind in (Kind.SAVEPOINT, Kind.XA_END):
            return
        if said.kind in (Kind.ROLLBACK, Kind.ROLLBACK_TO):
            if self._has_rows:
                raise refusals.rolled_back(self._place, self._has_rows)
            if said.kind is Kind.ROLLBACK:
                self._commit(told)
            return
        if said.kind is Kind.CHANGE:
            self._refuse(sql, database, said)
        # MySQL has no BEGIN before a statement that is a transaction of its own.
        is_alone = self._is_statement or (self._held is not None and not sql.rstrip().endswith("START TRANSACTION"))
        self._begin_held(told, True)
        told.append(Statement(sql, database, timestamp, ansi_quotes))
        if is_alone:
            self._commit(told)

    def _refuse(self, sql: str, database: str, said: Classified) -> None:
        touched = [f"{schema}.{table}" for schema, table in said.names if self._wanted(schema or database, table)]
        if touched:
            raise refusals.statement(self._place, sql, said, touched[0])

    def _other(
        self, kind: int, flags: int, body: bytes, timestamp: int, position: int, told: list[BinlogEvent]
    ) -> None:
        if kind in (events.HEARTBEAT, events.HEARTBEAT_2):
            told.append(Heartbeat(self._quiet()))
        elif kind == events.ROTATE:
            rotate = events.rotate(body)
            self.file, self.position = rotate.file, rotate.position
            told.append(rotate)
        elif kind in events.SILENT:
            self.position = position or self.position
        elif kind == events.XA_PREPARE:
            self.position = position or self.position
            # Its first byte: whether it commits at once. Without rows of wanted tables it may commit or not.
            if self._unsure and not body[0]:
                raise refusals.unsure(self._place, self._has_rows, _UNSURE)
            told += self._unsure or ()
            self._unsure = None
            self._commit(told)
        elif kind == events.INCIDENT:
            text = body[3:].decode("utf-8", "replace") if len(body) > 3 else "no reason is given"
            raise IncidentEvent(
                f"{self._place}: the server says that changes may be missing from its binlog here: {text}"
            )
        else:
            entry = self._open.get(body[:6]) if kind == events.PARTIAL_UPDATE_ROWS else None
            if (refusal := refusals.event(self._place, kind, flags, entry.name if entry else None)) is not None:
                raise refusal

    def _quiet(self) -> int:
        """Return seconds, by the server's clock, up to which all has come if a heartbeat has come; 0 if unknown.

        A heartbeat may have waited here to be read, so it is not the time of its reading: it was sent after all that
        had arrived before was read, less what it was on its way.
        """
        quiet = self._dump.quiet
        return int(quiet + self._server.clock - _ON_ITS_WAY) if quiet else 0

"""Reads the transactions of a server after a GTID set, with their rows.

Rows are returned as they arrive, so a transaction of any size takes the memory of one event (I11). Contents that cannot
be relayed exactly end the stream (I8), with an error that names table and position.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relay import native
from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.gtid import parse as parse_set
from relay.mysql.binlog import events, refusals
from relay.mysql.binlog.compressed import unpacked
from relay.mysql.binlog.dump import Dump, RawEvent
from relay.mysql.binlog.events import (
    ROWS,
    BinlogEvent,
    BinlogPlace,
    Commit,
    Heartbeat,
    KeyLost,
    RawRows,
    RawTransactions,
    Rows,
    Statement,
    TransactionBegin,
)
from relay.mysql.binlog.known_tables import KnownTable, KnownTables, Layout, Spares, Wanted
from relay.mysql.binlog.table_map import packed
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Interrupted, NotCarried
from relay.mysql.executed import Executed
from relay.mysql_dialect.layouts import LostKey
from relay.mysql_dialect.statement_text import shown, tokens
from relay.mysql_dialect.statements import Classified, Kind

if TYPE_CHECKING:
    from relay.native._core import ScannedTransactions

log = logging.getLogger(__name__)

_XA_HELD = 16 << 20
"""Bytes of rows that are held at most until an XA transaction commits."""
_TRANSIT = 1.0
"""Seconds that a heartbeat takes at most from the server to here."""
_OF_SESSION = re.compile("connection_id|pseudo_thread_id", re.IGNORECASE)
"""What makes MariaDB set the flag of statements that use a temporary table, although they use none."""
_DUMMY_TABLE = b"\xff\xff\xff\0\0\0"
"""The table id of a row event that only ends a statement."""


@dataclass(slots=True)
class _OpenTransaction:
    """The transaction that is being read. ``gtid``: "" between two.

    ``tables``: by the ids that the server gives them in it. ``is_statement``: whether it is a single statement, in
    MySQL until something else comes; ``alters_nothing``: one that does nothing yet. ``rows_of``: a table that it has
    rows of. ``is_prepared``: it is prepared only. ``xa_rows``, ``xa_size``: its rows and their bytes, while it is an XA
    transaction that may not commit.
    """

    gtid: str = ""
    tables: dict[bytes, KnownTable | None] = field(default_factory=dict)
    is_statement: bool = False
    alters_nothing: bool = False
    rows_of: str = ""
    is_prepared: bool = False
    xa_rows: list[Rows] | None = None
    xa_size: int = 0


class BinlogEvents:
    """What a server has committed after ``start``, in order. ``read`` by one thread; ``close`` by any.

    ``executed``: up to and including the last transaction whose ``Commit`` was returned. ``file`` and ``position``: the
    end of the last event in the server's binlog.
    """

    def __init__(
        self,
        server: ServerConnection,
        start: GtidSet,
        layout: Layout | None,
        wanted: Wanted | None = None,
        *,
        relayed: Wanted | None = None,
        spares: Spares | None = None,
        raw: bool = False,
    ) -> None:
        """Without ``layout``: no rows. ``raw``: `RawRows` and `RawTransactions` instead of rows, where they will do.

        ``relayed``: the tables of which statements are refused that change rows without logging them.
        Raises ``Unavailable``, ``RelayError`` for a ``start`` of the other flavour.
        """
        self._executed = executed = Executed(start, server.flavour)
        self.file = ""
        self.position = 0
        self._server = server
        self._own = server.server_id if server.is_mariadb else None
        self._is_raw = raw
        # Whether it has warned of triggers.
        self._has_warned = False
        core = native.core() if raw and layout is not None else None
        # Finds whole transactions of known tables, or None without the compiled core.
        self._scanner = None if core is None else core.BinlogScanner()
        self._tables = KnownTables(layout, wanted, relayed, spares, self._scanner, is_mariadb=server.is_mariadb)
        self._open = _OpenTransaction()
        self._committed = executed.position
        # A compressed transaction that was not returned to its end, and the events after it.
        self._unpacking: Iterator[tuple[bytes, list[RawEvent]]] | None = None
        self._rest: tuple[bytes, Iterator[RawEvent]] | None = None
        # What ends the stream, once the events before it were returned.
        self._error: RelayError | None = None
        self._dump = Dump.from_gtid(server, start)

    @property
    def executed(self) -> GtidSet:
        return parse_set(self._committed)

    def close(self) -> None:
        """Close the stream, also while another thread reads: that one gets ``Closed``."""
        self._dump.close()

    def read(self, timeout: float) -> list[BinlogEvent]:
        """Return the events that have arrived, as soon as there are any; none after ``timeout`` seconds.

        Raises ``Closed``, ``Interrupted``, ``Denied``, ``BinlogPurged``, ``Diverged``, ``Unavailable``, ``NotCarried``.
        """
        if self._error is not None:
            raise self._error
        self._tables.look_again()
        out: list[BinlogEvent] = []
        has_read = False
        while not out:  # I11: one part of a compressed transaction at a time
            if self._unpacking is not None:
                part = next(self._unpacking, None)
                if part is None:
                    self._unpacking = None
                    continue
                buffer, found = part[0], iter(part[1])
            elif self._rest is not None:
                buffer, found = self._rest
                self._rest = None
            elif has_read:
                break
            else:
                arrived = self._dump.read(timeout, None if self._scanner is None else self._scan)
                if not isinstance(arrived, tuple):
                    out.append(RawTransactions(arrived, self._server.account.address, self.file, self._own))
                    break
                buffer, found, has_read = arrived[0], iter(arrived[1]), True
            try:
                self._decode_all(buffer, found, out)
            except RelayError as error:
                if not out:
                    raise
                self._error = error  # raised after the events before it
        return out

    def _decode_all(self, buffer: bytes, found: Iterator[RawEvent], out: list[BinlogEvent]) -> None:
        try:
            self._decode(buffer, found, out)
        except (LookupError, TypeError, ValueError, struct.error) as fault:  # I8: with a checksum that is right
            raise NotCarried(f"{self._place}: an event is malformed: {fault}") from fault

    def _scan(self, buffer: bytes, is_checked: bool) -> ScannedTransactions | None:
        """Read whole transactions at the beginning of ``buffer``. Return None where only `_decode` can read on."""
        run = self._executed.run
        if self._scanner is None or run is None or self._open.gtid:
            return None
        found = self._scanner.scan(buffer, is_checked, *run)
        if found is not None:
            self.position = found.position or self.position
            self._executed.reach(found.last)
            self._committed = self._executed.position
        return found

    @property
    def _place(self) -> BinlogPlace:
        return BinlogPlace(self._server.account.address, self.file, self.position, self._open.gtid)

    def _decode(self, buffer: bytes, found: Iterator[RawEvent], out: list[BinlogEvent]) -> None:
        """Decode events up to a compressed transaction: its events, and those after it, are decoded later."""
        known = self._tables.by_map
        for kind, timestamp, server_id, position, flags, start, end in found:
            self.position = position or self.position
            if kind in ROWS:
                self._rows(kind, buffer, start, end, out)
            elif kind == events.TABLE_MAP:
                raw = buffer[start + 8 : end]
                if raw not in known:
                    try:
                        self._tables.learn(raw, self._place)
                    except LostKey as lost:
                        out.append(KeyLost(lost.table))
                self._open.tables[buffer[start : start + 6]] = known.get(raw)
            elif kind == events.XID:
                self._commit(out)
            elif kind == events.MARIADB_GTID:
                sequence, domain, bits = events.MARIADB_GTID_BODY.unpack_from(buffer, start)
                self._new_transaction(f"{domain}-{server_id}-{sequence}")
                reached = self._executed.add_mariadb(domain, server_id, sequence)
                self._open.is_statement = bool(bits & events.STANDALONE)
                self._open.is_prepared = bool(bits & events.PREPARED_XA)
                self._open.alters_nothing = self._open.is_statement and events.alters_nothing(buffer[start:end])
                out.append(TransactionBegin(self._open.gtid, reached, timestamp, None, server_id == self._own))
            elif kind == events.GTID:
                server, number, committed_at = events.mysql_gtid(buffer[start:end])
                self._new_transaction(f"{server}:{number}")
                reached = self._executed.add_mysql(server, number)
                self._open.is_statement = True
                out.append(TransactionBegin(self._open.gtid, reached, timestamp, committed_at))
            elif kind in (events.QUERY, events.COMPRESSED_QUERY, events.LOAD_QUERY):
                self._query(buffer[start:end], timestamp, flags, kind, out)
            elif kind == events.TRANSACTION_PAYLOAD:
                if self._tables.layout is None:
                    self._commit(out)  # the payload is the complete transaction
                    continue
                if self._unpacking is not None:
                    raise NotCarried(f"{self._place}: a compressed transaction contains another one")
                self._unpacking = unpacked(buffer[start:end], self.position, self._place)
                self._rest = buffer, found
                return
            else:
                self._other(kind, flags, buffer[start:end], out)

    # ------------------------------------------------------------------ transactions

    def _new_transaction(self, gtid: str) -> None:
        if self._open.gtid:
            # The server died while it wrote the transaction, and committed none of it.
            if self._open.rows_of:
                raise NotCarried(f"{self._place}: a transaction with rows of {self._open.rows_of} has no end")
            self._executed.restore(self._committed)
        self._open = _OpenTransaction(gtid)

    def _commit(self, out: list[BinlogEvent]) -> None:
        if self._open.gtid:
            self._open.gtid = ""
            self._committed = self._executed.position
            out.append(Commit(self.file, self.position))

    # ------------------------------------------------------------------ rows

    def _rows(self, kind: int, buffer: bytes, start: int, end: int, out: list[BinlogEvent]) -> None:
        try:
            entry = self._open.tables[buffer[start : start + 6]]
        except KeyError:
            if buffer[start : start + 6] == _DUMMY_TABLE:
                return
            raise NotCarried(f"{self._place}: rows have no TABLE_MAP before them") from None
        if entry is None:
            return
        decoder = entry.decoder
        operation, has_extra, is_compressed = ROWS[kind]
        at = start + 8
        if has_extra:
            at += int.from_bytes(buffer[at : at + 2], "little")
        if at >= end or buffer[at] in (251, 255):  # I8: no length begins so
            raise NotCarried(f"{self._place}: an event with rows of {decoder.name} is malformed")
        width = buffer[at]
        if width > 250:
            width, at = packed(buffer, at)
        else:
            at += 1
        if width != decoder.width:
            raise NotCarried(
                f"{self._place}: rows of {decoder.name} have {width} columns, but their TABLE_MAP {decoder.width}"
            )
        for _ in range(2 if operation == "updates" else 1):
            bitmap = buffer[at : at + decoder.bitmap]
            if bitmap not in decoder.full and not decoder.is_full(bitmap):
                raise NotCarried(
                    f"{self._place}: a row of {decoder.name} was logged without all its columns: run "
                    "`SET GLOBAL binlog_row_image = 'FULL'`, check sessions that set their own, and start after this "
                    "position, or exclude the table"
                )
            at += decoder.bitmap
        if self._open.is_prepared:
            raise refusals.unprepared_xa(self._place, decoder.name, _XA_HELD)
        self._open.rows_of = decoder.name
        if is_compressed:
            buffer, at = events.inflated(buffer[at:end]), 0
            end = len(buffer)
        found = RawRows(entry.table, decoder, operation, buffer, at, end, self._place)
        if self._is_raw and self._open.xa_rows is None:
            out.append(found)
            return
        rows = found.decoded()
        if self._open.xa_rows is None:
            out.append(rows)
            return
        self._open.xa_rows.append(rows)
        self._open.xa_size += rows.size
        if self._open.xa_size > _XA_HELD:
            raise refusals.unprepared_xa(self._place, decoder.name, _XA_HELD)

    # ------------------------------------------------------------------ statements and the rest

    def _query(self, body: bytes, timestamp: int, flags: int, kind: int, out: list[BinlogEvent]) -> None:
        raw, encoding, used, sql_mode = events.query(body, kind)
        if raw == b"BEGIN":
            self._open.is_statement = False
            return
        if raw == b"COMMIT" or self._open.alters_nothing:  # I8
            self._commit(out)
            return
        sql, sql_mode = events.statement_text(raw, encoding, sql_mode)
        database = used.decode()
        # I1: MySQL also sets it for what a procedure does to other tables after it has used a temporary one.
        is_temporary = (
            self._server.is_mariadb and bool(flags & events.THREAD_SPECIFIC_FLAG) and not _OF_SESSION.search(sql)
        )
        lower_case = self._server.stores_lower_case
        statement = Statement(sql, database, timestamp, sql_mode, lower_case=lower_case, uses_temporary=is_temporary)
        said = statement.classified
        if said.kind is Kind.XA_START:
            self._open.xa_rows, self._open.xa_size, self._open.is_statement = [], 0, False
            return
        if said.kind in (Kind.SAVEPOINT, Kind.XA_END):
            return
        if said.kind in (Kind.ROLLBACK, Kind.ROLLBACK_TO):
            if self._open.rows_of:
                raise refusals.rolled_back(self._place, self._open.rows_of)
            if said.kind is Kind.ROLLBACK:
                self._commit(out)
            return
        relayed = self._tables.relayed
        if not (said.repairs and refusals.repairs_nothing(self._server, database, said, relayed, timestamp)):
            if said.kind is Kind.CHANGE:
                self._refuse(sql, database, said)
            out.append(statement)
        if said.kind is Kind.CREATE and not self._server.is_mariadb:
            last = [token.text.upper() for token in tokens(sql, sql_mode)][-2:]
            if last == ["START", "TRANSACTION"]:  # I1: not if a comment ends so, after which no rows follow
                self._open.is_statement = False
        if self._open.is_statement:
            self._commit(out)

    def _refuse(self, sql: str, database: str, said: Classified) -> None:
        if (touched := refusals.touched(database, said, self._tables.relayed)) is not None:
            why = (
                "has an engine or options by which its rows are elsewhere, and change without the binlog: leave it out"
            )
            if said.creates and all(
                self._tables.spares(schema or database, table, why) for schema, table in said.tables
            ):
                return
            raise refusals.statement(self._place, sql, said, touched)
        if said.tables or self._has_warned or self._tables.layout is None:
            return  # an ALTER TABLE runs no triggers
        if any((schema or database) not in refusals.SYSTEM for schema, _ in said.names):  # I1
            self._has_warned = True
            log.warning(refusals.UNSEEN_TRIGGERS, self._place, shown(sql))

    def _other(self, kind: int, flags: int, body: bytes, out: list[BinlogEvent]) -> None:
        if kind in (events.HEARTBEAT, events.HEARTBEAT_2):
            out.append(Heartbeat(self._heartbeat_time()))
        elif kind == events.ROTATE:
            rotate = events.rotate(body)
            if self._open.rows_of and self._open.gtid and self._own is not None and rotate.file != self.file:
                # It died while it wrote them, and may give their GTID to others: those are in the next file.
                raise Interrupted(f"{self._place}: a transaction with rows of {self._open.rows_of} ends with its file")
            self.file, self.position = rotate.file, rotate.position
            out.append(rotate)
        elif kind in events.SILENT:
            return
        elif kind == events.XA_PREPARE:
            # Its first byte says whether it commits at once. Without rows of wanted tables that does not matter.
            if self._open.xa_rows and not body[0]:
                raise refusals.unprepared_xa(self._place, self._open.rows_of, _XA_HELD)
            out += self._open.xa_rows or ()
            self._open.xa_rows = None
            self._commit(out)
        elif kind == events.INCIDENT:
            text = body[3:].decode("utf-8", "replace") if len(body) > 3 else "it gives no reason"
            raise NotCarried(
                f"{self._place}: the server reports that changes may be missing from its binlog here: {text}"
            )
        else:
            entry = self._open.tables.get(body[:6]) if kind == events.PARTIAL_UPDATE_ROWS else None
            if (refusal := refusals.event(self._place, kind, flags, entry.decoder.name if entry else None)) is not None:
                raise refusal

    def _heartbeat_time(self) -> int:
        """Return the time, in seconds by the server's clock, before which all events have arrived; 0 if unknown.

        A heartbeat may have waited here, so the time when it is read is too late. It was sent after everything that
        had arrived earlier was read, less its time in transit.
        """
        quiet = self._dump.quiet
        return int(self._server.clock.at(quiet) - _TRANSIT) if quiet else 0

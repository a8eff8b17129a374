"""Reads the transactions of a server after a GTID set, with their rows as they arrive (I11).

Contents that cannot be relayed exactly end the stream (I8), with an error that names table and position.
"""

from __future__ import annotations

import logging
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from relay import native
from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.gtid import parse as parse_set
from relay.mysql.binlog import events, refusals
from relay.mysql.binlog.dump import Dump, RawEvent
from relay.mysql.binlog.events import BinlogEvent, BinlogPlace, Commit, RawRows, Rows, TransactionBegin, unpacked
from relay.mysql.binlog.known_tables import KnownTable, KnownTables, Layout, Spares, Wanted
from relay.mysql.binlog.table_map import packed
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Interrupted, NotCarried
from relay.mysql.gtids import Executed
from relay.mysql_dialect.layout_cache import LostKey
from relay.mysql_dialect.statement_text import MARIADB, shown, tokens
from relay.mysql_dialect.statements import Classified, Kind

if TYPE_CHECKING:
    from relay.native._core import ScannedTransactions

log = logging.getLogger(__name__)

_XA_HELD = 16 << 20  # the most bytes of rows that are held until an XA transaction commits
_TRANSIT = 1.0  # the most seconds that a heartbeat takes from the server to here
_OF_SESSION = re.compile("connection_id|pseudo_thread_id", re.IGNORECASE)
"""Settings for which MariaDB flags statements as using a temporary table although they use none."""
_DUMMY_TABLE = b"\xff\xff\xff\0\0\0"  # the table id of a row event that only ends a statement


@dataclass(slots=True)
class _OpenTransaction:
    """The transaction being read. ``gtid``: "" between two. ``tables``: its tables by the ids that the server uses.

    ``is_statement``: a single statement, in MySQL until another event follows; ``alters_nothing``: one that does
    nothing yet. ``rows_of``: a table whose rows it has. ``xa_rows``, ``xa_size``: those of an XA transaction that may
    not commit.
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
    """The events that a server has committed after ``start``. One thread calls ``read``; any may call ``close``.

    ``file``, ``position``: the end of the last one.
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
        """Without ``layout``: no rows. ``raw``: return `RawRows` and `RawTransactions` instead of rows where possible.

        ``relayed``: where statements that change rows unlogged are refused. Raises ``Unavailable``, ``RelayError``.
        """
        self._executed = executed = Executed(start, server.flavour)
        self.file = ""
        self.position = 0
        self._server = server
        self._own = server.server_id if server.is_mariadb else None
        self._is_raw = raw
        self._has_warned = False  # whether it has already warned of triggers
        core = native.core() if raw and layout is not None else None
        # Finds whole transactions of known tables; None without the compiled core.
        self._scanner = None if core is None else core.BinlogScanner()
        self._tables = KnownTables(layout, wanted, relayed, spares, self._scanner, is_mariadb=server.is_mariadb)
        self._open = _OpenTransaction()
        self._committed = executed.position
        # The parts of a compressed transaction that were not returned yet, and the events after it.
        self._parts: Iterator[tuple[bytes, Iterable[RawEvent]]] = iter(())
        self._error: RelayError | None = None  # the error that ends the stream once the events before it were returned
        self._dump = Dump.from_gtid(server, start)

    @property
    def executed(self) -> GtidSet:
        """The set up to the last returned ``Commit``."""
        return parse_set(self._committed)

    def close(self) -> None:
        """Close the stream, even while another thread reads, which then gets ``Closed``."""
        self._dump.close()

    def read(self, timeout: float) -> list[BinlogEvent]:
        """Return the events that have arrived; none after ``timeout`` seconds. Raises as ``Dump.read`` does."""
        if self._error is not None:
            raise self._error
        self._tables.look_again()
        out: list[BinlogEvent] = []
        has_read = False
        while not out:  # I11: one part of a compressed transaction at a time
            part = next(self._parts, None)
            if part is None:
                if has_read:
                    break
                arrived = self._dump.read(timeout, None if self._scanner is None else self._scan)
                if not isinstance(arrived, tuple):
                    out.append(events.RawTransactions(arrived, self._server.account.address, self.file, self._own))
                    break
                part, has_read = arrived, True
            try:
                self._decode_all(part[0], iter(part[1]), out)
            except RelayError as error:
                if not out:
                    raise
                self._error = error  # raised after the events before it
        return out

    def _decode_all(self, buffer: bytes, found: Iterator[RawEvent], out: list[BinlogEvent]) -> None:
        try:
            self._decode(buffer, found, out)
        except (LookupError, TypeError, ValueError, struct.error, zlib.error) as fault:  # I8: its checksum is right
            raise NotCarried(f"{self._place}: an event is malformed: {fault}") from fault

    def _scan(self, buffer: bytes, is_checked: bool) -> ScannedTransactions | None:
        """Read whole transactions at the beginning of ``buffer``. Return None where only `_decode` can continue."""
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
        """Decode events up to the first compressed transaction. Its events, and any after it, are decoded later."""
        known = self._tables.by_map
        for kind, timestamp, server_id, position, flags, start, end in found:
            self.position = position or self.position
            if kind in events.ROWS:
                self._rows(kind, buffer, start, end, out)
            elif kind == events.TABLE_MAP:
                raw = buffer[start + 8 : end]
                if raw not in known:
                    try:
                        self._tables.learn(raw, self._place)
                    except LostKey as lost:
                        out.append(events.KeyLost(lost.table))
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
                self._parts = chain(unpacked(buffer[start:end], self.position, self._place), [(buffer, found)])
                return
            else:
                self._other(kind, flags, buffer[start:end], out)

    def _new_transaction(self, gtid: str) -> None:
        if self._open.gtid:
            # The server died while it wrote the transaction, and committed no part of it.
            if self._open.rows_of:
                raise NotCarried(f"{self._place}: a transaction with rows of {self._open.rows_of} has no end")
            self._executed.restore(self._committed)
        self._open = _OpenTransaction(gtid)

    def _commit(self, out: list[BinlogEvent]) -> None:
        if self._open.gtid:
            self._open.gtid = ""
            self._committed = self._executed.position
            out.append(Commit(self.file, self.position))

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
        operation, has_extra, is_compressed = events.ROWS[kind]
        at = start + 8
        if has_extra:
            at += int.from_bytes(buffer[at : at + 2], "little")
        if at >= end or buffer[at] in (251, 255):  # I8: no length begins like this
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

    def _query(self, body: bytes, timestamp: int, flags: int, kind: int, out: list[BinlogEvent]) -> None:
        raw, encoding, used, sql_mode = events.query(body, kind)
        if raw == b"BEGIN":
            self._open.is_statement = False
            return
        if raw == b"COMMIT" or self._open.alters_nothing:  # I8
            self._commit(out)
            return
        sql, sql_mode = events.statement_text(raw, encoding, sql_mode | MARIADB * self._server.is_mariadb)
        database = used.decode()
        # I1: MySQL also sets the flag for changes of a procedure to other tables after it has used a temporary one.
        is_temporary = (
            self._server.is_mariadb and bool(flags & events.THREAD_SPECIFIC_FLAG) and not _OF_SESSION.search(sql)
        )
        statement = events.Statement(
            sql, database, timestamp, sql_mode, lower_case=self._server.stores_lower_case, uses_temporary=is_temporary
        )
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
            if last == ["START", "TRANSACTION"]:  # I1: unless a comment ends this way, after which no rows follow
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
            # It may have waited here, and was sent after everything that had arrived earlier was read.
            quiet = self._dump.quiet
            out.append(events.Heartbeat(int(self._server.clock.at(quiet) - _TRANSIT) if quiet else 0))
        elif kind == events.ROTATE:
            file = body[8:].decode()
            if self._open.rows_of and self._open.gtid and self._own is not None and file != self.file:
                # The server died while writing them, and may reuse their GTID for others, which are in the next file.
                raise Interrupted(f"{self._place}: the file ends in a transaction with rows of {self._open.rows_of}")
            self.file, self.position = file, int.from_bytes(body[:8], "little")
        elif kind in events.SILENT:
            return
        elif kind == events.XA_PREPARE:
            # Its first byte says whether it commits at once. Without rows of wanted tables, that does not matter.
            if self._open.xa_rows and not body[0]:
                raise refusals.unprepared_xa(self._place, self._open.rows_of, _XA_HELD)
            out += self._open.xa_rows or ()
            self._open.xa_rows = None
            self._commit(out)
        elif kind == events.INCIDENT:
            text = body[3:].decode("utf-8", "replace") if len(body) > 3 else "no reason given"
            raise NotCarried(
                f"{self._place}: the server reports that changes may be missing from its binlog here: {text}. Start "
                "after this position, and take a snapshot of the tables"
            )
        else:
            entry = self._open.tables.get(body[:6]) if kind == events.PARTIAL_UPDATE_ROWS else None
            if (refusal := refusals.event(self._place, kind, flags, entry.decoder.name if entry else None)) is not None:
                raise refusal

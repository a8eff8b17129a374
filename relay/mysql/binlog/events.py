"""The events that readers of a binlog get, and the types and bodies of binlog events other than row events.

Numbers and layouts are from MySQL's ``binlog_event.h`` and ``control_events.h``, and MariaDB's ``log_event.h``.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from relay.config.protection import NOT_SHOWN
from relay.errors import RelayError
from relay.mysql.binlog.dump import RawEvent
from relay.mysql.binlog.rows import Change, RowDecoder, UnreadableColumn
from relay.mysql.binlog.table_map import packed
from relay.mysql.errors import NotCarried
from relay.mysql_dialect.charsets import BINARY, charset, decoder, is_single_byte, unlike_ascii
from relay.mysql_dialect.statement_text import MARIADB, UNKNOWN_MODE, with_plain_blanks
from relay.mysql_dialect.statements import Classified, Kind, classify
from relay.mysql_dialect.streamed_transaction import Origin
from relay.mysql_dialect.tables import Table

if TYPE_CHECKING:
    from relay.native._core import ScannedTransactions

QUERY, STOP, ROTATE, INTVAR, RAND, USER_VAR, FORMAT_DESCRIPTION, XID = 2, 3, 4, 5, 13, 14, 15, 16
TABLE_MAP, INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY = 19, 26, 27, 28, 29
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE, XA_PREPARE = 33, 34, 35, 36, 37, 38
PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD, HEARTBEAT_2, GTID_TAGGED = 39, 40, 41, 42
ANNOTATE, CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION, COMPRESSED_QUERY = 160, 161, 162, 163, 164, 165

WRITE, UPDATE, DELETE = "inserts", "updates", "deletes"
# The decoder, whether the event is version 2 with extra data, and whether it is compressed.
ROWS = {
    first + at: (operation, extra, compressed)
    for first, extra, compressed in ((23, False, False), (30, True, False), (166, False, True), (169, True, True))
    for at, operation in enumerate((WRITE, UPDATE, DELETE))
}
# LOAD DATA as a statement. Its file comes before it, in separate events.
LOAD_QUERY = 18
_APPEND_BLOCK, _DELETE_FILE, _BEGIN_LOAD = 9, 11, 17
# Events that do not matter for rows. Only the files are encrypted: a server sends plain events.
SILENT = frozenset(
    {STOP, INTVAR, RAND, USER_VAR, FORMAT_DESCRIPTION, IGNORABLE, ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT}
    | {VIEW_CHANGE, ANNOTATE, CHECKPOINT, GTID_LIST, START_ENCRYPTION, _APPEND_BLOCK, _DELETE_FILE, _BEGIN_LOAD}
)
THREAD_SPECIFIC_FLAG, IGNORABLE_FLAG = 0x04, 0x80

STANDALONE, PREPARED_XA = 1, 64
_GROUP_COMMIT, _XA = 2, 64 | 128
_START_ALTER, _ROLLBACK_ALTER = 2, 8  # of the flags after these


class TransactionBegin(msgspec.Struct, gc=False):
    """The beginning of a transaction. Without a ``Commit`` before the next one, it was not committed and has no rows.

    ``gtid``: ``uuid:n`` or ``d-s-n``. ``position``: the executed set up to and including it, with the flavour in front.
    ``timestamp``: the time of its GTID event, in seconds. ``committed_at``: microseconds on the server that made it, or
    None. ``made_here``: certainly read from the MariaDB server that made it. ``origin``: set by a reshard's
    replication.
    """

    gtid: str
    position: str
    timestamp: int
    committed_at: int | None
    made_here: bool = False
    origin: Origin | None = None


class Rows(msgspec.Struct):
    """Changed rows of one table, in order. ``changes``: (before, after) of each. ``size``: bytes."""

    table: Table
    changes: list[Change]
    size: int


class BinlogPlace(NamedTuple):
    """The place where a server's binlog was read. ``gtid``: the GTID of the open transaction, or empty."""

    address: str
    file: str
    position: int
    gtid: str

    def __str__(self) -> str:
        gtid = f", GTID {self.gtid}" if self.gtid else ""
        return f"{self.address}, {self.file} before {self.position}{gtid}"


class RawRows(msgspec.Struct, gc=False):
    """Rows as the binlog stores them, from ``start`` to ``end`` of ``buffer``. ``operation``: such as `WRITE`."""

    table: Table
    decoder: RowDecoder
    operation: str
    buffer: bytes
    start: int
    end: int
    place: BinlogPlace

    @property
    def size(self) -> int:
        return self.end - self.start

    def decoded(self) -> Rows:
        """Decode them. Raises ``NotCarried``, naming the column that cannot be read."""
        try:
            changes = getattr(self.decoder, self.operation)(self.buffer, self.start, self.end)
        except ValueError as fault:
            reason = str(fault)
            if isinstance(fault, UnreadableColumn) and self.table.schema.protected:
                reason = f"{fault.where}: {NOT_SHOWN}"
            raise NotCarried(f"{self.place}: rows of {self.decoder.name} cannot be read: {reason}") from None
        return Rows(self.table, changes, self.size)


class RawTransactions(msgspec.Struct):
    """Whole transactions with undecoded rows, from the server at ``address``. ``own``: the server's id, for MariaDB."""

    scanned: ScannedTransactions
    address: str
    file: str
    own: int | None

    def pop(self) -> list[BinlogEvent]:
        """Remove the first transaction, and return its events."""
        gtid, position, timestamp, committed_at, rows = self.scanned.pop()
        made_here, buffer = gtid.split("-")[1] == str(self.own), self.scanned.buffer
        events: list[BinlogEvent] = [TransactionBegin(gtid, position, timestamp, committed_at, made_here)]
        for known, kind, start, end, at in rows:
            place = BinlogPlace(self.address, self.file, at, gtid)
            events.append(RawRows(known.table, known.decoder, kind, buffer, start, end, place))
        return [*events, COMMIT]


class Statement(msgspec.Struct, gc=False):
    """A statement that is logged as text, usually DDL. ``sql_mode``, ``lower_case``: see `classify`.

    ``is_published``: False if another shard has published it. ``uses_temporary``: a temporary table, as far as known.
    """

    sql: str
    database: str
    timestamp: int
    sql_mode: int
    is_published: bool = True
    lower_case: bool = False
    uses_temporary: bool = False

    @property
    def classified(self) -> Classified:
        said = classify(self.sql, self.database, self.sql_mode, lower_case=self.lower_case)
        is_about_one = said.kind in (Kind.TRUNCATE, Kind.ALTER, Kind.RENAME) or said.indexed is not None
        # I7: it uses no other table, and a DROP or CREATE itself says that its table is temporary.
        return replace(said, temporary=True) if self.uses_temporary and is_about_one else said


class Commit(msgspec.Struct, gc=False):
    """The end of a transaction. ``file``, ``position``: its place in the binlog; not set for `RawTransactions`."""

    file: str = ""
    position: int = 0


class Heartbeat(msgspec.Struct, gc=False):
    """No event was waiting. ``timestamp``: seconds by the server's clock; earlier events have arrived; 0: unknown."""

    timestamp: int


class KeyLost(msgspec.Struct, gc=False):
    """The next rows belong to a relayed ``table`` that has no primary key: they are left out."""

    table: str


BinlogEvent = TransactionBegin | Rows | RawRows | RawTransactions | Statement | KeyLost | Commit | Heartbeat
COMMIT = Commit()


class EventStream(Protocol):
    """The events of a server from a position on."""

    def read(self, timeout: float) -> list[BinlogEvent]:
        """Return the events that have arrived, after at most ``timeout`` seconds."""

    def close(self) -> None: ...


_QUERY = struct.Struct("<IIBHH")
_INFLATED = 1 << 20  # bytes decompressed at once
_HEADER = struct.Struct("<IBII")  # the header of an event
_FILE_PLACE = 13  # bytes that say where the statement names its file
_MYSQL_GTID = struct.Struct("<B16sq")
MARIADB_GTID_BODY = struct.Struct("<QIB")
# The sizes of the status variables up to the character set; None if the event contains the size.
_STATUS = {0: 4, 1: 8, 2: None, 3: 4, 6: None}
_SQL_MODE, _CHARSET = 1, 4


def query(body: bytes, kind: int = QUERY) -> tuple[bytes, str, bytes, int]:
    """Read a QUERY or similar event: the statement, its character set, the database, and the session's ``sql_mode``."""
    _, _, name, _, status = _QUERY.unpack_from(body)
    at = _QUERY.size + (_FILE_PLACE if kind == LOAD_QUERY else 0)
    encoding, sql_mode = _status(body[at : at + status])
    at += status
    database = body[at : at + name]
    raw = body[at + name + 1 :]
    return inflated(raw) if kind == COMPRESSED_QUERY else raw, encoding, database, sql_mode


def _status(variables: bytes) -> tuple[str, int]:
    at, mode = 0, 0
    while at < len(variables):
        code = variables[at]
        if code == _CHARSET:
            return charset(int.from_bytes(variables[at + 1 : at + 3], "little")), mode
        if code not in _STATUS:
            break
        if code == _SQL_MODE:
            mode = int.from_bytes(variables[at + 1 : at + 9], "little")
        size = _STATUS[code]
        # The catalog follows its length; in its first form, a zero ends it.
        at += 1 + (size if size is not None else 1 + variables[at + 1] + (code == 2))
    return "utf8mb4", mode


def statement_text(raw: bytes, encoding: str, sql_mode: int) -> tuple[str, int]:
    """Return a statement as text, and its ``sql_mode``, or ``UNKNOWN_MODE`` if the server may have read other names.

    Bytes that do not decode are escaped: statements may contain binary values.
    """
    if encoding == BINARY:  # servers take the names of such a session as they are
        encoding = "utf8mb4"
    try:
        text = decoder(encoding)(raw)
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "backslashreplace")
        return text, sql_mode if encoding.startswith("utf8") else UNKNOWN_MODE | sql_mode & MARIADB
    if any(byte in raw for byte in unlike_ascii(encoding)):  # I1
        return text, UNKNOWN_MODE | sql_mode & MARIADB
    return with_plain_blanks(text, sql_mode) if is_single_byte(encoding) and "\xa0" in text else text, sql_mode


def inflated(raw: bytes) -> bytes:
    """Decompress an event of MariaDB's ``log_bin_compress``. Raises ValueError, zlib.error."""
    size = raw[0] & 7
    if raw[0] & 0xF0 != 0x80 or not size:
        raise ValueError(f"it has an unknown compression: {raw[0]:#x}")
    return zlib.decompress(raw[1 + size :])


def mysql_gtid(body: bytes) -> tuple[str, int, int | None]:
    """Read MySQL's GTID: server UUID, number, and since 8.0 the microseconds of its first commit."""
    _, server, number = _MYSQL_GTID.unpack_from(body)
    text = server.hex()
    name = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    at = _MYSQL_GTID.size + 17
    if len(body) < at + 7 or body[_MYSQL_GTID.size] != 2:
        return name, number, None
    immediate = int.from_bytes(body[at : at + 7], "little")
    if immediate >> 55:
        # The time on the server that made it, which is the same on all servers.
        return name, number, int.from_bytes(body[at + 7 : at + 14], "little")
    return name, number, immediate


def alters_nothing(body: bytes) -> bool:
    """Whether the ALTER TABLE of this MariaDB GTID only begins or is abandoned: its end is another transaction."""
    flags, at = body[12], 13
    if flags & _GROUP_COMMIT:
        at += 8
    if flags & _XA:
        at += 6 + body[at + 4] + body[at + 5]
    return at < len(body) and bool(body[at] & (_START_ALTER | _ROLLBACK_ALTER))


def payload(body: bytes) -> tuple[int, bytes]:
    """Read MySQL's TRANSACTION_PAYLOAD: compression (0: zstd, 255: none), and the bytes."""
    at = 0
    fields: dict[int, int] = {}
    while True:
        kind, at = packed(body, at)
        if kind == 0:
            return fields.get(2, 255), body[at:]
        size, at = packed(body, at)
        fields[kind], _ = packed(body, at)
        at += size


def unpacked(body: bytes, position: int, place: BinlogPlace) -> Iterator[tuple[bytes, list[RawEvent]]]:
    """Yield buffers of about 1 MB, and their events, of a payload that ends at ``position``. Raises ``NotCarried``."""
    try:
        yield from _unpacked(body, position, place)
    except RelayError:
        raise
    except Exception as fault:  # zstandard's have no common base with others
        raise NotCarried(f"{place}: a compressed transaction is malformed: {fault}") from fault


def _unpacked(body: bytes, position: int, place: BinlogPlace) -> Iterator[tuple[bytes, list[RawEvent]]]:
    compression, data = payload(body)
    if compression == 255:
        chunks: Any = (data[at : at + _INFLATED] for at in range(0, len(data), _INFLATED))
    elif compression == 0:
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError:
            raise NotCarried(
                f"{place}: reading a compressed transaction needs zstandard: `pip install 'change-relay[zstd]'`, or "
                "`SET GLOBAL binlog_transaction_compression = OFF` and start after this position"
            ) from None
        chunks = zstandard.ZstdDecompressor().read_to_iter(data, write_size=_INFLATED)
    else:
        raise NotCarried(f"{place}: a transaction has the unknown compression {compression}")
    rest = b""
    for chunk in chunks:
        buffer = rest + chunk
        at = 0
        found: list[RawEvent] = []
        while at + 19 <= len(buffer):
            timestamp, kind, server_id, size = _HEADER.unpack_from(buffer, at)
            if at + size > len(buffer):
                break
            if size < 19:
                raise ValueError(f"an event of {size} bytes")
            if kind == TRANSACTION_PAYLOAD:
                raise NotCarried(f"{place}: a compressed transaction contains another one")
            found.append((kind, timestamp, server_id, position, 0, at + 19, at + size))
            at += size
        rest = buffer[at:]
        yield buffer, found
    if rest:
        raise NotCarried(f"{place}: a compressed transaction is truncated")

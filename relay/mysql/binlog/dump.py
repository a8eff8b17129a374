"""Reads a server's binlog from its socket: splits packets into events, verifies checksums, raises the server's errors.

The commands are MySQL's COM_BINLOG_DUMP_GTID, and MariaDB's COM_BINLOG_DUMP with ``@slave_connect_state``.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, overload
from zlib import crc32

from relay.gtid import GtidSet
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import FAULTS, Closed, Interrupted, NotCarried, refusal, translated
from relay.mysql.gtids import sid_block
from relay.process.connections import closed_on_error

if TYPE_CHECKING:
    from relay.native._core import ScannedTransactions

HEARTBEAT = 0.5  # seconds without an event after which the server sends a heartbeat
SILENT = 60.0  # seconds after which a connection counts as dead: a server that searches the start sends nothing
ROTATE, FORMAT_DESCRIPTION, XID = 4, 15, 16

# Type, timestamp, server id, end in the server's file, flags, and the bounds of its body in the buffer.
RawEvent = tuple[int, int, int, int, int, int, int]
# ``scan(buffer, is_checked)``: returns the whole transactions at its beginning, if any can be read as such.
Scan = Callable[[bytes, bool], "ScannedTransactions | None"]
_RECEIVE = 1 << 15  # a larger buffer is allocated for each call, which costs more than it saves
_LONGEST = 0xFFFFFF  # bytes of a packet; a longer payload continues in the next
_PACKET = struct.Struct("<IBIBIIIH")  # length and number, status, then the header of the event
_HEADER = 19
_CHECKSUM = struct.Struct("<I")
_DUMP, _DUMP_GTID = 0x12, 0x1E
_THROUGH_GTID = 4
_START = 4  # in a file's first event


class Dump:
    """The events of a server from a position on. One thread calls ``read``; any may call ``close``.

    ``quiet``: the monotonic time at which everything that had arrived was last read.
    """

    def __init__(self, server: ServerConnection, start: GtidSet | None, command: bytes) -> None:
        self.address = server.account.address
        self.quiet = 0.0
        self._closed = False  # set by the thread that closes, read by the thread that reads
        # ``read`` holds this, even while it waits. ``close`` first shuts the socket down, which ends the wait, and
        # frees it only when no thread uses it.
        self._lock = threading.Lock()
        self._is_checked: bool | None = None
        self._pending: list[bytes] = []
        self._size = 0
        self._needed = 4
        self._received_at = time.monotonic()
        with closed_on_error(server.account.connect()) as self._connection:
            self._begin(server, start, command)

    @classmethod
    def from_gtid(cls, server: ServerConnection, start: GtidSet) -> Dump:
        """Request everything not in ``start``. Raises ``Unavailable``; only ``read`` finds that the server lacks it."""
        if server.is_mariadb:
            return cls(server, start, _dump(""))
        block = sid_block(start)
        body = struct.pack("<HII", _THROUGH_GTID, _server_id(), 0) + struct.pack("<QI", _START, len(block)) + block
        return cls(server, start, bytes([_DUMP_GTID]) + body)

    @classmethod
    def from_file(cls, server: ServerConnection, name: str) -> Dump:
        """Request a file, and the files after it."""
        return cls(server, None, _dump(name))

    def _begin(self, server: ServerConnection, start: GtidSet | None, command: bytes) -> None:
        connection, period = self._connection, int(HEARTBEAT * 1e9)
        settings = [f"@master_heartbeat_period = {period}", "@master_binlog_checksum = @@global.binlog_checksum"]
        if server.is_mariadb:
            settings.append("@mariadb_slave_capability = 4")
            if start is not None:
                settings += [f"@slave_connect_state = '{start}'", "@slave_gtid_strict_mode = 1"]
                settings.append("@slave_gtid_ignore_duplicates = 0")
        else:
            settings += [
                f"@source_heartbeat_period = {period}",
                "@source_binlog_checksum = @@global.binlog_checksum",
                f"@slave_uuid = '{uuid.uuid4()}'",
                "@replica_uuid = @slave_uuid",
            ]
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET " + ", ".join(settings))
            # PyMySQL has read all its answers: from here on, the socket carries the dump.
            self._socket: socket.socket = connection._sock  # type: ignore[attr-defined]
            self._socket.sendall(struct.pack("<I", len(command)) + command)
            self._socket.setblocking(False)
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
        except FAULTS as fault:
            raise translated(fault, self.address) from None

    def close(self) -> None:
        """Close it, even while another thread reads, which then gets ``Closed``. May be called again."""
        self._closed = True
        # The plain socket: shutting down TLS would give the reader encrypted bytes. The server may be first.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        with self._lock:
            self._connection._force_close()  # type: ignore[attr-defined]

    @overload
    def read(self, timeout: float) -> tuple[bytes, list[RawEvent]]: ...
    @overload
    def read(self, timeout: float, scan: Scan | None) -> tuple[bytes, list[RawEvent]] | ScannedTransactions: ...
    def read(self, timeout: float, scan: Scan | None = None) -> tuple[bytes, list[RawEvent]] | ScannedTransactions:
        """Return a buffer and its events as soon as there are any; none after ``timeout`` seconds.

        With ``scan``: return its result for a buffer's beginning unless that is None; events end where a transaction
        does. Raises ``Unavailable`` (``Closed``, ``BinlogPurged`` and ``Diverged`` among others) and ``NotCarried``.
        """
        with self._lock:
            deadline = time.monotonic() + timeout
            while True:
                if self._size >= self._needed:
                    buffer = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
                    if scan is not None and (scanned := scan(buffer, bool(self._is_checked))) is not None:
                        self._keep(buffer[scanned.end :], 4)
                        return scanned
                    buffer, events = self._take(buffer, scan is not None)
                    if events:
                        return buffer, events
                    continue
                if not self._receive(deadline):
                    return b"", []

    def _receive(self, deadline: float) -> bool:
        """Wait for more bytes; return whether some arrived before the deadline."""
        data, lost = b"", "the server closed the connection"
        try:
            while not self._closed:
                try:
                    data = self._socket.recv(_RECEIVE)
                    break
                except (BlockingIOError, ssl.SSLWantReadError):
                    self.quiet = time.monotonic()
                left = deadline - time.monotonic()
                if left <= 0 or not self._poll.poll(left * 1000 + 1):
                    if time.monotonic() - self._received_at > SILENT:
                        raise Interrupted(
                            f"{self.address}: the server sent nothing for {SILENT:.0f} s, not even a heartbeat"
                        )
                    return False
        except OSError as fault:
            lost = f"the connection was lost: {fault}"
        if not data:
            if self._closed:
                raise Closed(f"{self.address}: the reader was closed")
            raise Interrupted(f"{self.address}: {lost}")
        self._received_at = time.monotonic()
        self._pending.append(data)
        self._size += len(data)
        return True

    def _keep(self, rest: bytes, needed: int) -> None:
        self._pending = [rest] if rest else []
        self._size = len(rest)
        self._needed = needed

    def _take(self, buffer: bytes, ends: bool) -> tuple[bytes, list[RawEvent]]:
        """Split the bytes that have arrived into complete events. ``ends``: only up to the end of a transaction."""
        view, size = memoryview(buffer), len(buffer)
        events: list[RawEvent] = []
        at, needed = 0, 4
        is_checked, unpack = self._is_checked, _PACKET.unpack_from
        while at + 24 <= size:
            length, status, timestamp, kind, server_id, written, position, flags = unpack(buffer, at)
            length &= _LONGEST  # the higher bits are the number of the packet
            end = at + 4 + length
            if length == _LONGEST:
                if events:
                    break  # the next call reads it
                return self._take_long(buffer)
            if end > size:
                needed = end - at
                break
            if status or length <= _HEADER:
                return self._take_other(buffer, at, end, events)
            if written != length - 1:
                raise self._wrong_length(position, length - 1, written)
            if kind in (FORMAT_DESCRIPTION, ROTATE):
                is_checked = self._negotiate(kind, buffer, at + 5, end)
            stop = self._end_of_body(view[at + 5 : end], end, position) if is_checked else end
            events.append((kind, timestamp, server_id, position, flags, at + 24, stop))
            at = end
            if ends and kind == XID:
                self._keep(buffer[at:], 4)
                return buffer, events
        if needed == 4 and at + 4 <= size:
            # Too short for an event: the beginning of one, or another short packet.
            length = int.from_bytes(buffer[at : at + 3], "little")
            if at + 4 + length <= size:
                return self._take_other(buffer, at, at + 4 + length, events)
            needed = 4 + min(length, 20)
        self._keep(buffer[at:], needed)
        return buffer, events

    def _take_other(self, buffer: bytes, at: int, end: int, events: list[RawEvent]) -> tuple[bytes, list[RawEvent]]:
        """Raise the error in a packet that is not an event, once the events before it have been returned."""
        if events:
            self._keep(buffer[at:], 4)
            return buffer, events
        self._keep(buffer[end:], 4)
        raise self._error_in(buffer[at + 4 : end])

    def _take_long(self, buffer: bytes) -> tuple[bytes, list[RawEvent]]:
        at, parts = 0, []
        while True:
            if at + 4 > len(buffer):
                self._keep(buffer, at + 4)
                return b"", []
            length = int.from_bytes(buffer[at : at + 3], "little")
            if at + 4 + length > len(buffer):
                self._keep(buffer, at + 4 + length)
                return b"", []
            parts.append(memoryview(buffer)[at + 4 : at + 4 + length])
            at += 4 + length
            if length < _LONGEST:
                break
        self._keep(buffer[at:], 4)
        payload = b"".join((b"\0\0\0\0", *parts))
        _, _, timestamp, kind, server_id, written, position, flags = _PACKET.unpack_from(payload, 0)
        end = len(payload)
        if written != end - 5:
            raise self._wrong_length(position, end - 5, written)
        stop = self._end_of_body(memoryview(payload)[5:], end, position) if self._is_checked else end
        return payload, [(kind, timestamp, server_id, position, flags, 24, stop)]

    def _end_of_body(self, event: memoryview, end: int, position: int) -> int:
        """Return where the body of an event ends, before its checksum. Raises ``NotCarried`` if that is wrong."""
        if crc32(event[:-4]) != _CHECKSUM.unpack(event[-4:])[0]:
            raise NotCarried(
                f"{self.address}: the event before {position} has a wrong checksum: restart the relay, and if this "
                "happens again, read from another server"
            )
        return end - 4

    def _wrong_length(self, position: int, length: int, written: int) -> NotCarried:
        return NotCarried(
            f"{self.address}: the event before {position} has {length} bytes, but its header says {written}"
        )

    def _negotiate(self, kind: int, buffer: bytes, start: int, end: int) -> bool:
        """Return whether this event has a checksum. A FORMAT_DESCRIPTION decides for the events after it."""
        if kind == ROTATE:
            # It arrives before the event that says whether there are checksums.
            return bool(crc32(buffer[start : end - 4]) == _CHECKSUM.unpack_from(buffer, end - 4)[0])
        algorithm = buffer[end - 5]
        if algorithm > 1:
            raise NotCarried(f"{self.address}: its binlog has checksums of the unknown type {algorithm}")
        self._is_checked = algorithm == 1
        return self._is_checked

    def _error_in(self, payload: bytes) -> Exception:
        if payload[:1] == b"\xff":
            code = int.from_bytes(payload[1:3], "little")
            text = payload[9:] if payload[3:4] == b"#" else payload[3:]
            return refusal(code, text.decode("utf-8", "replace"), self.address)
        if payload[:1] == b"\xfe":
            return Interrupted(f"{self.address}: the server ended the stream")
        return NotCarried(f"{self.address}: a packet is not an event: {payload[:40]!r}")


def _server_id() -> int:
    # Random, because a server ends an older dump with the same id.
    return random.randrange(1 << 31, 1 << 32)


def _dump(name: str) -> bytes:
    return struct.pack("<BIHI", _DUMP, _START, 0, _server_id()) + name.encode()

"""One gRPC call on an HTTP/2 connection of its own, whose answers are read by the thread that wants them.

A call's answers are small and many, one for each transaction of the database. General clients hand each over from
thread to thread, which takes longer than all that the relay does with the row in it. Here many are taken at once from
what the socket has. Sources: RFC 9113, and the "gRPC over HTTP2" description of the protocol.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import unquote

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from relay.errors import ConfigError

WINDOW = 4 << 20
"""Bytes that the server may send before we have read them (I11): they wait in the kernel, and at the server."""

CONNECT_TIMEOUT = 5.0
"""Seconds, also for the handshake of TLS."""

_RECEIVED_AT_ONCE = 256 << 10
_SEND_TIMEOUT = 10.0
# Seconds of silence before it is asked for, and between questions, and how many of these. Not all systems have them.
_KEEPALIVE = [
    (getattr(socket, option), value)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, option)
]
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_SETTING_PUSH, _SETTING_WINDOW, _SETTING_FRAME = 2, 4, 5
_STREAM = 1  # ours: there is no other on the connection
_LARGEST_FRAME = 16 << 10  # unless both sides say otherwise
_LARGEST_HEADERS = 1 << 20
_FIRST_WINDOW = (1 << 16) - 1
_HEADER = struct.Struct(">IBI")  # length and type, flags, stream
_MESSAGE = struct.Struct(">IBIBI")  # the same, and that of a message: compressed or not, length
_NUMBER = struct.Struct(">I")

STATUSES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""The names of gRPC's status codes, in their order."""

# What stands for a status where the server gives none: as gRPC's documents have it.
_BY_HTTP_STATUS = {"400": "INTERNAL", "401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED", "404": "UNIMPLEMENTED"}
_BY_HTTP_STATUS |= dict.fromkeys(("429", "502", "503", "504"), "UNAVAILABLE")
_BY_RESET = {7: "UNAVAILABLE", 8: "CANCELLED", 11: "RESOURCE_EXHAUSTED", 12: "PERMISSION_DENIED"}


class CallEnded(Exception):
    """A call is over. ``code``: the name of the gRPC status; ``text``: the server's own words."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Call:
    """One call. ``take`` is called by one thread at a time, ``close`` by any.

    ``address``: host:port. ``headers``: beyond gRPC's own. ``name``: the one that the certificate has to carry, where
    it is not the host's. It connects in a thread of its own, so that nobody waits for what cannot be reached; that it
    cannot be is told by ``take``, as every other end is. ConfigError for what is no address.

    While nobody takes, the server's pings are not answered: after 20 s vtgate hangs up, and the call has to be made
    again. That happens where Kafka is away for longer.
    """

    def __init__(
        self,
        address: str,
        path: str,
        request: bytes,
        *,
        headers: Sequence[tuple[str, str]] = (),
        tls: ssl.SSLContext | None = None,
        name: str | None = None,
    ) -> None:
        self.address = address
        self._ended: CallEnded | None = None
        self._closed = False
        self._lock = threading.Lock()  # of the socket: it is not closed while somebody reads
        self._socket: socket.socket | None = None
        self._connected = threading.Event()  # or it never will be
        # What came of a frame that is not whole, and of a message that is not; the bytes that this one will have.
        self._rest = b""
        self._partial = bytearray()
        self._wanted = 0
        self._unread = 0  # bytes that the server's window has lost
        self._block = b""  # headers that go on in the next frame
        self._ends = False  # whether the call ends with these headers
        self._headers = Decoder(max_header_list_size=_LARGEST_HEADERS)
        self._http_status = ""
        self._goodbye = ""
        # What of the request the server has no room for yet; how much it has on the connection, and for the call.
        self._request = b"\0" + _NUMBER.pack(len(request)) + request
        self._rooms = [_FIRST_WINDOW, _FIRST_WINDOW]
        self._first_room = _FIRST_WINDOW
        self._unsent = bytearray()
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise ConfigError(f"{address} is no address: host:port is wanted")
        arguments = (host.strip("[]"), int(port)), tls, name, path, [*headers]
        threading.Thread(target=self._begin, args=arguments, name="vtgate-call", daemon=True).start()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._ended else "open"
        return f"<Call[{self.address}: {state}]>"

    def take(self, timeout: float, most: int = 1 << 20) -> list[bytes]:
        """Return messages that have come, up to about ``most`` bytes; [] after ``timeout`` seconds.

        Raises `CallEnded` once everything that came before the end was taken.
        """
        deadline = time.monotonic() + timeout
        if not self._connected.wait(timeout):
            return []
        taken: list[bytes] = []
        size = 0
        with self._lock:
            if self._socket is None:
                self._hung_up("")
            while self._ended is None and (size < most or not taken):
                received = self._receive(0.0 if taken else max(0.0, deadline - time.monotonic()))
                if not received:
                    break
                size += received
                try:
                    self._parse(taken)
                    self._send()
                except (HPACKError, struct.error, IndexError, ValueError) as error:
                    self._end("INTERNAL", f"{self.address} does not speak HTTP/2 as it should: {error}")
                except OSError as error:
                    self._end("UNAVAILABLE", f"the connection to {self.address} broke: {error}")
            if self._ended is not None and not taken:
                raise self._ended
        return taken

    def close(self) -> None:
        """End the call. Whoever waits in ``take`` is told."""
        self._closed = True
        self._connected.set()
        if (connection := self._socket) is not None:
            with suppress(OSError):  # the server was first
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            with self._lock:
                connection.close()

    # ------------------------------------------------------------------ the connection

    def _begin(
        self,
        place: tuple[str, int],
        tls: ssl.SSLContext | None,
        name: str | None,
        path: str,
        headers: list[tuple[str, str]],
    ) -> None:
        try:
            connection = _connect(place, tls, name)
        except (OSError, UnicodeError) as error:  # UnicodeError: no name that there can be
            self._end("UNAVAILABLE", f"failed to connect to {self.address}: {error}")
        else:
            with self._lock:
                self._socket = connection
                if self._closed:
                    connection.close()
                else:
                    self._open(path, headers, "https" if tls else "http")
        self._connected.set()

    def _open(self, path: str, headers: list[tuple[str, str]], scheme: str) -> None:
        settings = ((_SETTING_PUSH, 0), (_SETTING_WINDOW, WINDOW), (_SETTING_FRAME, _LARGEST_FRAME))
        block = Encoder().encode(
            [
                (":method", "POST"),
                (":scheme", scheme),
                (":path", path),
                (":authority", self.address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "relay"),
                *headers,
            ]
        )
        self._unsent += _PREFACE
        self._unsent += _frame(_SETTINGS, 0, 0, b"".join(struct.pack(">HI", *setting) for setting in settings))
        self._unsent += _frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(WINDOW - _FIRST_WINDOW))
        self._unsent += b"".join(_header_frames(block))
        self._go_on_sending()
        try:
            self._send()
        except OSError as error:
            self._end("UNAVAILABLE", f"the connection to {self.address} broke: {error}")

    def _go_on_sending(self) -> None:
        """Send as much of the request as the server has room for."""
        while self._request and (room := min(self._rooms)) > 0:
            part = self._request[: min(room, _LARGEST_FRAME)]
            self._request = self._request[len(part) :]
            self._rooms = [room - len(part) for room in self._rooms]
            self._unsent += _frame(_DATA, 0 if self._request else _END_STREAM, _STREAM, part)

    def _send(self) -> None:
        if self._unsent:
            assert self._socket is not None
            self._socket.settimeout(_SEND_TIMEOUT)
            self._socket.sendall(self._unsent)
            self._unsent.clear()

    def _receive(self, timeout: float) -> int:
        """Take in what the socket has, waiting for ``timeout`` seconds at most; return how many bytes that was."""
        assert self._socket is not None
        try:
            self._socket.settimeout(timeout)
            data = self._socket.recv(_RECEIVED_AT_ONCE)
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
            return 0
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            self._hung_up(f": {error}")
            return 0
        if not data:
            self._hung_up("")
            return 0
        self._rest = self._rest + data if self._rest else data
        return len(data)

    def _hung_up(self, why: str) -> None:
        if self._closed:
            self._end("CANCELLED", "closed here")
        elif self._goodbye:
            self._end("UNAVAILABLE", self._goodbye)
        else:
            self._end("UNAVAILABLE", f"{self.address} closed the connection{why}")

    def _end(self, code: str, text: str) -> None:
        if self._ended is None:
            self._ended = CallEnded(code, text)

    # ------------------------------------------------------------------ frames

    def _parse(self, taken: list[bytes]) -> None:
        """Go through the frames that are whole, and add the messages that are to ``taken``."""
        data, at, end = self._rest, 0, 0
        size = len(data)
        prefixed, whole = _MESSAGE.unpack_from, not self._wanted and not self._partial
        while size - at >= 14:
            length, flags, stream, is_compressed, message = prefixed(data, at)
            # Mostly: a frame of data that is one message.
            if whole and length == (message + 5) << 8 and not flags and not is_compressed and stream == _STREAM:
                end = at + 14 + message
                if end > size:
                    break
                taken.append(data[at + 14 : end])
                self._unread += message + 5
                at = end
                continue
            end = at + 9 + (length >> 8)
            if end > size:
                break
            self._frame(length & 0xFF, flags, stream, data[at + 9 : end], taken)
            whole = not self._wanted and not self._partial
            at = end
        while size - at >= 9:  # what is left may be a frame that is shorter than a message can be
            length, flags, stream = _HEADER.unpack_from(data, at)
            end = at + 9 + (length >> 8)
            if length >> 8 > _LARGEST_FRAME:
                raise ValueError(f"a frame of {length >> 8} bytes")
            if end > size:
                break
            self._frame(length & 0xFF, flags, stream, data[at + 9 : end], taken)
            at = end
        self._rest = data[at:]
        if self._unread >= WINDOW // 2:
            room = _NUMBER.pack(self._unread)
            self._unsent += _frame(_WINDOW_UPDATE, 0, 0, room) + _frame(_WINDOW_UPDATE, 0, _STREAM, room)
            self._unread = 0

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, taken: list[bytes]) -> None:
        if kind == _DATA:
            self._unread += len(payload)
            self._take_data(_unpadded(payload, flags), taken)
            if flags & _END_STREAM:
                self._end("INTERNAL", "the answer has no status")
        elif kind == _HEADERS:
            block = _unpadded(payload, flags)
            self._block = block[5:] if flags & _PRIORITY else block
            self._ends = bool(flags & _END_STREAM)
            if flags & _END_HEADERS:
                self._take_headers()
        elif kind == _CONTINUATION:
            self._block += payload
            if len(self._block) > _LARGEST_HEADERS:
                raise ValueError(f"headers of more than {_LARGEST_HEADERS} bytes")
            if flags & _END_HEADERS:
                self._take_headers()
        elif kind == _SETTINGS:
            if not flags & _ACK:
                self._set(payload)
                self._unsent += _frame(_SETTINGS, _ACK, 0, b"")
                self._go_on_sending()
        elif kind == _PING:
            if not flags & _ACK:
                self._unsent += _frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            if stream in (0, _STREAM):
                self._rooms[stream] += _NUMBER.unpack(payload)[0] & 0x7FFFFFFF
                self._go_on_sending()
        elif kind == _RESET:
            (code,) = _NUMBER.unpack(payload)
            self._end(_BY_RESET.get(code, "INTERNAL"), f"{self.address} broke the call off (HTTP/2 error {code})")
        elif kind == _GOAWAY:
            last, code = struct.unpack_from(">II", payload)
            text = payload[8:].decode(errors="replace")
            self._goodbye = f"{self.address} is going away (HTTP/2 error {code}{', ' + text if text else ''})"
            if last < _STREAM:
                self._end("UNAVAILABLE", self._goodbye)

    def _take_data(self, data: bytes, taken: list[bytes]) -> None:
        partial = self._partial
        partial += data
        while True:
            if not self._wanted:
                if len(partial) < 5:
                    return
                if partial[0]:
                    self._end("INTERNAL", "a compressed message, which was not asked for")
                    return
                self._wanted = 5 + int.from_bytes(partial[1:5], "big")
            if len(partial) < self._wanted:
                return
            taken.append(bytes(memoryview(partial)[5 : self._wanted]))
            del partial[: self._wanted]
            self._wanted = 0

    def _take_headers(self) -> None:
        raw = self._headers.decode(self._block, raw=True)
        found = {bytes(each[0]).decode(errors="replace"): bytes(each[1]).decode(errors="replace") for each in raw}
        self._block = b""
        self._http_status = found.get(":status", self._http_status)
        # What follows another HTTP status is a page for people.
        is_grpc = "grpc-status" in found or self._http_status in ("", "200") or self._http_status.startswith("1")
        if is_grpc and not self._ends:
            return
        if "grpc-status" in found:
            number = int(found["grpc-status"])
            code = STATUSES[number] if 0 <= number < len(STATUSES) else "UNKNOWN"
            if code == "OK" and self._partial:
                code, found["grpc-message"] = "INTERNAL", "the answer ends inside of a message"
            self._end(code, unquote(found.get("grpc-message", "")))
        else:
            code = _BY_HTTP_STATUS.get(self._http_status, "UNKNOWN")
            self._end(code, f"{self.address} answered with HTTP status {self._http_status}, and is no gRPC server")

    def _set(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            identifier, value = struct.unpack_from(">HI", payload, at)
            if identifier == _SETTING_WINDOW:
                self._rooms[_STREAM] += value - self._first_room
                self._first_room = value


def _connect(place: tuple[str, int], tls: ssl.SSLContext | None, name: str | None) -> socket.socket:
    connection = socket.create_connection(place, CONNECT_TIMEOUT)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # One whose other end has vanished is found out.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if tls is None:
            return connection
        return tls.wrap_socket(connection, server_hostname=name or place[0])
    except BaseException:
        connection.close()
        raise


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def _header_frames(block: bytes) -> list[bytes]:
    parts = [block[at : at + _LARGEST_FRAME] for at in range(0, len(block), _LARGEST_FRAME)]
    return [
        _frame(_CONTINUATION if at else _HEADERS, _END_HEADERS if at == len(parts) - 1 else 0, _STREAM, part)
        for at, part in enumerate(parts)
    ]


def _unpadded(payload: bytes, flags: int) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload

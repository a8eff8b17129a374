"""The protocol of one gRPC call on its own HTTP/2 connection: turns received bytes into messages and replies.

It has no socket. Sources: RFC 9113, and "gRPC over HTTP2" in the documentation of gRPC.
"""

import struct
from collections.abc import Sequence
from urllib.parse import unquote

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

WINDOW = 4 << 20
"""Bytes that the server may send before the relay reads them (I11). They wait in the kernel and at the server."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_SETTING_PUSH, _SETTING_WINDOW, _SETTING_FRAME = 2, 4, 5
_STREAM = 1  # the only one on the connection
_LARGEST_FRAME = 16 << 10  # the default, which is kept
_LARGEST_HEADERS = 1 << 20
_FIRST_WINDOW = (1 << 16) - 1
_HEADER = struct.Struct(">IBI")  # length and type, flags, stream
_MESSAGE = struct.Struct(">IBIBI")  # these three, and the header of a message: compressed or not, length
_NUMBER = struct.Struct(">I")

# The names of gRPC's status codes, in the order of their numbers.
_STATUSES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
# The gRPC status if the server sends none: "HTTP to gRPC Status Code Mapping" in the documentation of gRPC.
_BY_HTTP_STATUS = {"400": "INTERNAL", "401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED", "404": "UNIMPLEMENTED"}
_BY_HTTP_STATUS |= dict.fromkeys(("429", "502", "503", "504"), "UNAVAILABLE")
_BY_RESET = {7: "UNAVAILABLE", 8: "CANCELLED", 11: "RESOURCE_EXHAUSTED", 12: "PERMISSION_DENIED"}


class CallEnded(Exception):
    """A call has ended. ``code``: the name of the gRPC status. ``text``: the server's message."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Exchange:
    """The state of one call. Used by one thread at a time. ``authority``: host:port of the server."""

    def __init__(
        self, authority: str, path: str, request: bytes, headers: Sequence[tuple[str, str]], scheme: str
    ) -> None:
        self.authority = authority
        self.ended: CallEnded | None = None
        self.goodbye = ""  # the reason that the server gave before it hung up
        # The beginning of an incomplete frame, the beginning of an incomplete message, and the length of that message.
        self._rest = b""
        self._partial = bytearray()
        self._wanted = 0
        self._unacknowledged = 0  # bytes received since the last WINDOW_UPDATE
        # Headers that continue in the next frame, and whether the call ends with them.
        self._block = b""
        self._is_last_block = False
        self._headers = Decoder(max_header_list_size=_LARGEST_HEADERS)
        self._http_status = ""
        # The part of the request that the server has no room for yet, and its room on the connection and for the call.
        self._request = b"\0" + _NUMBER.pack(len(request)) + request
        self._rooms = [_FIRST_WINDOW, _FIRST_WINDOW]
        self._first_room = _FIRST_WINDOW
        settings = ((_SETTING_PUSH, 0), (_SETTING_WINDOW, WINDOW), (_SETTING_FRAME, _LARGEST_FRAME))
        first = [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", authority)]
        own = [("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "relay")]
        block = Encoder().encode([*first, *own, *headers])
        self.unsent = bytearray(_PREFACE)  # the caller sends these bytes and removes them
        self.unsent += _frame(_SETTINGS, 0, 0, b"".join(struct.pack(">HI", *setting) for setting in settings))
        self.unsent += _frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(WINDOW - _FIRST_WINDOW))
        self.unsent += _frame(_HEADERS, _END_HEADERS, _STREAM, block)
        self._send_request()

    def receive(self, data: bytes, taken: list[bytes]) -> None:
        """Process received bytes, and append complete messages to ``taken``."""
        self._rest = self._rest + data if self._rest else data
        try:
            self._parse(taken)
        except (HPACKError, struct.error, IndexError, ValueError) as error:
            self.end("INTERNAL", f"{self.authority} does not speak HTTP/2 correctly: {error}")

    def end(self, code: str, text: str) -> None:
        """End the call, unless it has already ended for another reason."""
        if self.ended is None:
            self.ended = CallEnded(code, text)

    def _send_request(self) -> None:
        """Add as much of the request to ``unsent`` as the server has room for."""
        while self._request and (room := min(self._rooms)) > 0:
            part = self._request[: min(room, _LARGEST_FRAME)]
            self._request = self._request[len(part) :]
            self._rooms = [room - len(part) for room in self._rooms]
            self.unsent += _frame(_DATA, 0 if self._request else _END_STREAM, _STREAM, part)

    def _parse(self, taken: list[bytes]) -> None:
        data, at = self._rest, 0
        size = len(data)
        unpack, at_boundary = _MESSAGE.unpack_from, not self._wanted and not self._partial
        while (left := size - at) >= 9:
            # Fewer than 14 bytes cannot hold a message: is_compressed keeps them off the short path.
            head = unpack(data, at) if left >= 14 else (*_HEADER.unpack_from(data, at), 1, 0)
            length, flags, stream, is_compressed, message = head
            end = at + 9 + (length >> 8)
            if end > size:
                if length >> 8 > _LARGEST_FRAME:
                    raise ValueError(f"a frame has {length >> 8} bytes, more than {_LARGEST_FRAME}")
                break
            # Usually, a data frame is one message.
            if at_boundary and length == (message + 5) << 8 and not flags and not is_compressed and stream == _STREAM:
                taken.append(data[at + 14 : end])
                self._unacknowledged += message + 5
            else:
                self._frame(length & 0xFF, flags, stream, data[at + 9 : end], taken)
                at_boundary = not self._wanted and not self._partial
            at = end
        self._rest = data[at:]
        if self._unacknowledged >= WINDOW // 2:
            room = _NUMBER.pack(self._unacknowledged)
            self.unsent += _frame(_WINDOW_UPDATE, 0, 0, room) + _frame(_WINDOW_UPDATE, 0, _STREAM, room)
            self._unacknowledged = 0

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, taken: list[bytes]) -> None:
        if kind == _DATA:
            self._unacknowledged += len(payload)
            self._take_data(_unpadded(payload, flags), taken)
            if flags & _END_STREAM:
                self.end("INTERNAL", "the answer ends without a status")
        elif kind == _HEADERS:
            block = _unpadded(payload, flags)
            self._block = block[5:] if flags & _PRIORITY else block
            self._is_last_block = bool(flags & _END_STREAM)
            if flags & _END_HEADERS:
                self._take_headers()
        elif kind == _CONTINUATION:
            self._block += payload
            if len(self._block) > _LARGEST_HEADERS:
                raise ValueError(f"the headers have more than {_LARGEST_HEADERS} bytes")
            if flags & _END_HEADERS:
                self._take_headers()
        elif kind == _SETTINGS and not flags & _ACK:
            self._set(payload)
            self.unsent += _frame(_SETTINGS, _ACK, 0, b"")
            self._send_request()
        elif kind == _PING and not flags & _ACK:
            self.unsent += _frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE and stream in (0, _STREAM):
            self._rooms[stream] += _NUMBER.unpack(payload)[0] & 0x7FFFFFFF
            self._send_request()
        elif kind == _RESET:
            (code,) = _NUMBER.unpack(payload)
            self.end(_BY_RESET.get(code, "INTERNAL"), f"{self.authority} aborted the call (HTTP/2 error {code})")
        elif kind == _GOAWAY:
            last, code = struct.unpack_from(">II", payload)
            text = payload[8:].decode(errors="replace")
            self.goodbye = f"{self.authority} is going away (HTTP/2 error {code}{', ' + text if text else ''})"
            if last < _STREAM:
                self.end("UNAVAILABLE", self.goodbye)

    def _take_data(self, data: bytes, taken: list[bytes]) -> None:
        partial = self._partial
        partial += data
        while True:
            if not self._wanted:
                if len(partial) < 5:
                    return
                if partial[0]:
                    self.end("INTERNAL", "the server sent a compressed message, which the relay did not offer to read")
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
        # After another HTTP status, the body is a web page.
        is_grpc = "grpc-status" in found or self._http_status in ("", "200") or self._http_status.startswith("1")
        if is_grpc and not self._is_last_block:
            return
        if "grpc-status" in found:
            number = int(found["grpc-status"])
            code = _STATUSES[number] if 0 <= number < len(_STATUSES) else "UNKNOWN"
            if code == "OK" and self._partial:
                code, found["grpc-message"] = "INTERNAL", "the answer ends inside a message"
            self.end(code, unquote(found.get("grpc-message", "")))
        else:
            code = _BY_HTTP_STATUS.get(self._http_status, "UNKNOWN")
            self.end(code, f"{self.authority} answered with HTTP status {self._http_status}: is it a gRPC server?")

    def _set(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            identifier, value = struct.unpack_from(">HI", payload, at)
            if identifier == _SETTING_WINDOW:
                self._rooms[_STREAM] += value - self._first_room
                self._first_room = value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & _PADDED:
        return payload
    if (padding := payload[0]) >= len(payload):
        raise ValueError(f"a frame of {len(payload)} bytes has a padding of {padding}")
    return payload[1 : len(payload) - padding]

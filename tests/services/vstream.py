"""A minimal gRPC client that opens vtgate's VStream and yields its messages as bytes, to test the embedded Vitess.

Field numbers are those of Vitess' ``vtgate.proto`` and ``binlogdata.proto``.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence

_HEADERS, _SETTINGS, _PING, _DATA = 1, 4, 6, 0
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def vstream(
    address: str, start: Sequence[tuple[str, str, str]], journals: bool = False, timeout: float = 120.0
) -> Iterator[bytes]:
    """Yield encoded ``VStreamResponse`` messages of all tables from (keyspace, shard, gtid) on.

    Raises ``TimeoutError``, and ``ConnectionError`` when vtgate ends the stream.
    """
    host, _, port = address.rpartition(":")
    vgtid = b"".join(_field(1, b"".join(_field(n, each.encode()) for n, each in enumerate(s, 1))) for s in start)
    filter_ = _field(1, _field(1, b"/.*/"))
    flags = _number(8, 1) if journals else b""
    request = _number(2, 1) + _field(3, vgtid) + _field(4, filter_) + _field(5, flags)
    with socket.create_connection((host, int(port)), timeout) as connection, connection.makefile("rb") as incoming:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        connection.sendall(_frame(_HEADERS, _END_HEADERS, 1, _headers(address)))
        connection.sendall(_frame(_DATA, _END_STREAM, 1, b"\0" + struct.pack(">I", len(request)) + request))
        data = b""
        while True:
            size_and_type, ours, _ = struct.unpack(">IBI", incoming.read(9))
            size, kind = size_and_type >> 8, size_and_type & 0xFF
            payload = incoming.read(size)
            if kind == _DATA:
                data += payload
            elif kind == _HEADERS and ours & _END_STREAM:
                raise ConnectionError(f"vtgate ended the stream: {payload!r}")
            elif kind in (_SETTINGS, _PING) and not ours & _ACK:
                connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
            while len(data) >= 5 and len(data) >= 5 + (length := struct.unpack(">I", data[1:5])[0]):
                yield data[5 : 5 + length]
                data = data[5 + length :]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _headers(authority: str) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/vtgateservice.Vitess/VStream",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(b"\0" + _short(name.encode()) + _short(value.encode()) for name, value in headers.items())


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value

"""The frames of a call: messages are complete and in order however they are split, and every failure has a status."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.vitess.call import Call
from relay.vitess.http2 import WINDOW, CallEnded
from tests.examples import examples

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
Script = Callable[[socket.socket], None]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def message(body: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(body)) + body


def headers(*pairs: tuple[str, str], flags: int = 4) -> bytes:
    return frame(HEADERS, flags, 1, Encoder().encode(list(pairs)))


BEGUN = frame(SETTINGS, 0, 0, b"") + headers((":status", "200"), ("content-type", "application/grpc"))
ENDED = headers(("grpc-status", "0"), ("grpc-message", ""), flags=5)


@contextmanager
def peer(*sends: bytes) -> Iterator[tuple[Call, list[bytes]]]:
    """Run a server that sends ``sends`` and closes. Yields a call to it, and what it received."""
    received: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            received.append(connection.recv(1 << 20))
            for part in sends:
                connection.sendall(part)
            connection.settimeout(0.2)
            try:
                while part := connection.recv(1 << 20):
                    received.append(part)
            except TimeoutError:
                connection.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        call = Call(f"127.0.0.1:{listener.getsockname()[1]}", "/a/B", b"asked")
        try:
            yield call, received
        finally:
            call.close()
            thread.join()


def everything(call: Call) -> tuple[list[bytes], CallEnded]:
    found: list[bytes] = []
    while True:
        try:
            found += call.take(60.0)
        except CallEnded as ended:
            return found, ended


def frames_of(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
        found.append((kind, flags, stream, data[at + 9 : at + 9 + size]))
        at += 9 + size
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.binary(max_size=300), max_size=12),
    st.lists(st.integers(1, 200), max_size=30),
    st.lists(st.integers(1, 100), max_size=30),
    st.booleans(),
)
def test_messages_are_complete_however_frames_and_packets_split_them(
    bodies: list[bytes], frame_sizes: list[int], packet_sizes: list[int], padded: bool
) -> None:
    data = b"".join(map(message, bodies))
    wire = BEGUN
    for part in _cut(data, frame_sizes):
        wire += frame(DATA, 8, 1, b"\3" + part + b"\0\0\0") if padded else frame(DATA, 0, 1, part)
        wire += frame(PING, 1, 0, bytes(8))
    with peer(*_cut(wire + ENDED, packet_sizes)) as (call, _):
        found, ended = everything(call)
    assert (found, ended.code) == (bodies, "OK")


def _cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    parts = []
    for size in sizes:
        parts.append(data[:size])
        data = data[size:]
    return [part for part in (*parts, *(data[at : at + 16_000] for at in range(0, len(data), 16_000))) if part]


def test_the_request_has_its_headers_and_pings_and_settings_are_answered() -> None:
    with peer(BEGUN + frame(PING, 0, 0, b"12345678") + ENDED) as (call, received):
        assert everything(call)[1].code == "OK"
    preface, _, rest = b"".join(received).partition(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    sent = frames_of(rest)
    assert preface == b""
    assert (DATA, 1, 1, message(b"asked")) in sent
    assert (PING, 1, 0, b"12345678") in sent
    assert (SETTINGS, 1, 0, b"") in sent


def test_reading_enlarges_the_window_again() -> None:
    large = b"x" * 16_000
    count = WINDOW // len(message(large))
    with peer(BEGUN, *(frame(DATA, 0, 1, message(large)) for _ in range(count)), ENDED) as (call, received):
        assert everything(call)[0] == [large] * count
    sent = frames_of(b"".join(received).partition(b"SM\r\n\r\n")[2])
    room = [(stream, struct.unpack(">I", body)[0]) for kind, _, stream, body in sent[3:] if kind == WINDOW_UPDATE]
    assert [stream for stream, _ in room] == [0, 1] * (len(room) // 2)
    assert WINDOW // 2 <= sum(size for stream, size in room if stream == 1) <= count * len(message(large))


@pytest.mark.parametrize(
    ("wire", "code", "text"),
    [
        (
            headers(("grpc-status", "14"), ("grpc-message", "no%20tablet%3A %C3%A4"), flags=5),
            "UNAVAILABLE",
            "no tablet: ä",
        ),
        (headers(("grpc-status", "99"), flags=5), "UNKNOWN", ""),
        (headers((":status", "404"), flags=5), "UNIMPLEMENTED", "HTTP status 404"),
        (headers((":status", "503"), flags=5), "UNAVAILABLE", "HTTP status 503"),
        (headers((":status", "502")) + frame(DATA, 1, 1, b"<html>"), "UNAVAILABLE", "HTTP status 502"),
        (frame(HEADERS, 5, 1, b"\0\x0bgrpc-status\x015\0\x0cgrpc-message\x04\xe4%20"), "NOT_FOUND", "\ufffd "),
        (frame(WINDOW_UPDATE, 0, 3, b"\0\0\0\1") + ENDED, "OK", ""),
        (frame(RESET, 0, 1, struct.pack(">I", 8)), "CANCELLED", "HTTP/2 error 8"),
        (frame(GOAWAY, 0, 0, struct.pack(">II", 0, 11) + b"calm"), "UNAVAILABLE", "HTTP/2 error 11, calm"),
        (frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0) + b"bye"), "UNAVAILABLE", "bye"),
        (b"", "UNAVAILABLE", "closed the connection"),
        (frame(DATA, 0, 1, b"\1" + struct.pack(">I", 1) + b"x"), "INTERNAL", "compressed"),
        (frame(DATA, 1, 1, message(b"x")), "INTERNAL", "without a status"),
        (frame(DATA, 0, 1, message(b"xyz")[:-1]) + ENDED, "INTERNAL", "inside a message"),
        (frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), "INTERNAL", "does not speak HTTP/2"),
        (frame(DATA, 8, 1, b"\xff" + bytes(9)) + ENDED, "INTERNAL", "a frame of 10 bytes has a padding of 255"),
        (frame(DATA, 8, 1, b"\1") + ENDED, "INTERNAL", "a frame of 1 bytes has a padding of 1"),
        (frame(DATA, 8, 1, b"\1\0") + ENDED, "OK", ""),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "INTERNAL", "does not speak HTTP/2"),
    ],
)
def test_every_end_has_a_status_and_a_reason(wire: bytes, code: str, text: str) -> None:
    with peer(frame(SETTINGS, 0, 0, b"") + wire) as (call, _):
        _, ended = everything(call)
    assert ended.code == code
    assert text in ended.text


def test_headers_may_span_several_frames() -> None:
    block = Encoder().encode([("grpc-status", "5"), ("grpc-message", "long" * 1000)])
    wire = frame(HEADERS, 1, 1, block[:100]) + frame(CONTINUATION, 0, 1, block[100:200])
    with peer(BEGUN + wire + frame(CONTINUATION, 4, 1, block[200:])) as (call, _):
        _, ended = everything(call)
    assert (ended.code, ended.text) == ("NOT_FOUND", "long" * 1000)


def test_a_call_to_a_closed_port_ends_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    call = Call(address, "/a/B", b"")
    with pytest.raises(CallEnded, match=f"UNAVAILABLE: failed to connect to {address}"):
        call.take(60.0)
    call.close()


def test_taking_an_answer_does_not_wait_longer_for_the_connection() -> None:
    """A server whose queue of connections is full accepts no more."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        call = Call(f"{address[0]}:{address[1]}", "/a/B", b"")
        assert call.take(0.0) == []
        assert call.take(0.05) == []
        call.close()
        with pytest.raises(CallEnded, match="CANCELLED"):
            call.take(0.05)


def test_an_invalid_host_name_or_an_address_without_port_is_reported() -> None:
    call = Call("vtgate..svc:1", "/a/B", b"")
    with pytest.raises(CallEnded, match=r"UNAVAILABLE: failed to connect to vtgate..svc:1: "):
        call.take(60.0)
    with pytest.raises(ValueError, match="is not an address"):
        Call("vtgate", "/a/B", b"")


def test_taking_a_large_message_waits_until_it_is_complete() -> None:
    large = b"x" * (2 << 20)
    with peer(BEGUN, *(frame(DATA, 0, 1, part) for part in _cut(message(large), [])), ENDED) as (call, _):
        assert call.take(60.0) == [large]

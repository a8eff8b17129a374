"""A scripted MySQL 8 server that accepts any login, knows a few settings, and dumps given events.

It speaks MySQL's own protocol, so that PyMySQL and the reader run against it unmodified.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.listening import accepted

SETTINGS = {
    "version": "8.0.36",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_row_value_options": "",
    "gtid_mode": "ON",
    "server_id": "5",
    "server_uuid": "24da167a-0c0c-11e8-8442-00059a3c7b00",
    "read_only": "OFF",
}


@dataclass
class Scripted:
    """``events``: sent in answer to a dump command. ``ends``: a last packet; without one the server is silent then.

    ``asked``: the dump commands received. ``chunk``: bytes sent at a time. ``challenges``: packets sent one after the
    other in answer to the login, which is rejected then; ``told``: the login and what the client answered. ``purged``:
    its ``gtid_purged``; None for all that it has executed.

    ``context``: of a server that takes TLS only. ``passes``: says whether a clear-text password is right; the
    server asks for one then, as RDS does. ``answers``: packets in answer to statements, after ``rows_before``.
    """

    events: Sequence[bytes] = ()
    settings: dict[str, str] = field(default_factory=lambda: dict(SETTINGS))
    executed: str = ""
    purged: str | None = None
    ends: bytes | None = None
    hangs_up: bool = False
    chunk: int = 1 << 20
    port: int = 0
    asked: list[bytes] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    challenges: Sequence[bytes] = ()
    told: list[bytes] = field(default_factory=list)
    plugin: bytes = b"mysql_native_password"
    context: ssl.SSLContext | None = None
    passes: Callable[[str], bool] | None = None
    answers: Mapping[str, bytes] = field(default_factory=dict)
    rows_before: list[list[str]] = field(default_factory=list)
    clock: Callable[[], float] = time.time
    _reader: socket.socket | None = None

    def more(self, stream: bytes) -> None:
        """Send bytes to the last client that asked for a dump."""
        assert self._reader is not None
        self._reader.sendall(stream)

    def serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            greeting = b"\x0a" + self.settings["version"].encode() + b"\0" + struct.pack("<I", 1) + b"12345678\0"
            able = 0xF7DF if self.context is None else 0xFFDF
            greeting += struct.pack("<HBHH", able, 255, 2, 0x0008) + bytes([21]) + bytes(10) + b"123456789012\0"
            send(connection, 0, greeting + self.plugin + b"\0")
            first = receive(connection) or b""
            if self.context is not None and len(first) == SSL_REQUEST:
                with self.context.wrap_socket(connection, server_side=True) as encrypted:
                    self.log_in(encrypted, receive(encrypted) or b"", 3)
            elif self.context is None:
                self.log_in(connection, first, 2)

    def log_in(self, connection: socket.socket, login: bytes, number: int) -> None:
        """Serve a client that has sent its login. ``number``: of the next packet."""
        self.told.append(login)
        for at, challenge in enumerate(self.challenges):
            send(connection, number + 2 * at, challenge)
            self.told.append(receive(connection) or b"")
        refused = bool(self.challenges)
        number += 2 * len(self.challenges)
        if self.passes is not None:
            send(connection, number, b"\xfemysql_clear_password\0")
            self.told.append(receive(connection) or b"")
            refused = not self.passes(self.told[-1].rstrip(b"\0").decode())
            number += 2
        if refused:
            send(connection, number, b"\xff" + struct.pack("<H", 1045) + b"#28000Access denied")
            return
        send(connection, number, OK)
        self.serve_commands(connection)

    def serve_commands(self, connection: socket.socket) -> None:
        while (command := receive(connection)) is not None and command[0] != 1:
            if command[0] == 3:
                self.answer(connection, command[1:].decode())
            elif command[0] in (0x12, 0x1E):
                self.dump(connection, command)
                return
            else:
                send(connection, 1, OK)

    def answer(self, connection: socket.socket, sql: str) -> None:
        if sql in self.answers:
            if self.rows_before:
                send_rows(connection, self.rows_before, self.answers[sql])
            else:
                send(connection, 1, self.answers[sql])
            return
        if sql.startswith("SHOW GLOBAL VARIABLES"):
            wanted = set(re.findall(r"'(\w+)'", sql))
            rows = [[name, value] for name, value in self.settings.items() if name in wanted]
        elif "gtid_executed" in sql or "gtid_purged" in sql:
            purged = self.executed if self.purged is None else self.purged
            rows = [[purged if "gtid_purged" in sql else self.executed, f"{self.clock():.6f}"]]
        elif "@@timestamp" in sql:
            rows = [[f"{self.clock():.6f}"]]
        elif sql.startswith("SHOW BINARY LOGS"):
            rows = [["binlog.000001", "1000"]]
        else:
            self.set.append(sql)
            send(connection, 1, OK)
            return
        send_rows(connection, rows)

    def dump(self, connection: socket.socket, command: bytes) -> None:
        self.asked.append(command)
        self._reader = connection
        stream = b"".join(packets(b"\0" + event, at + 1) for at, event in enumerate(self.events))
        if self.ends is not None:
            stream += packets(self.ends, len(self.events) + 1)
        for at in range(0, len(stream), self.chunk):
            connection.sendall(stream[at : at + self.chunk])
        if not self.hangs_up:
            receive(connection)  # until the reader is gone


SSL_REQUEST = 32
"""The bytes of what a client sends before it begins with TLS."""

OK = b"\0\0\0\x02\0\0\0"


def packets(payload: bytes, number: int) -> bytes:
    """Split a payload into packets."""
    out = b""
    while True:
        part, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
        out += len(part).to_bytes(3, "little") + bytes([number & 0xFF]) + part
        if len(part) < 0xFFFFFF:
            return out
        number += 1


def send(connection: socket.socket, number: int, payload: bytes) -> None:
    connection.sendall(packets(payload, number))


def receive(connection: socket.socket) -> bytes | None:
    head = exactly(connection, 4)
    return exactly(connection, int.from_bytes(head[:3], "little")) if head else None


def exactly(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = connection.recv(size - len(got))
        if not part:
            return b""
        got += part
    return got


def send_rows(connection: socket.socket, rows: list[list[str]], end: bytes = b"\xfe\0\0\x02\0") -> None:
    width = len(rows[0]) if rows else 2
    send(connection, 1, bytes([width]))
    column = b"\x03def\0\0\0\x01c\x01c\x0c" + struct.pack("<HIBHBH", 45, 1000, 253, 0, 0, 0)
    number = 2
    for payload in [column] * width + [b"\xfe\0\0\x02\0"]:
        send(connection, number, payload)
        number += 1
    for row in rows:
        send(connection, number, b"".join(bytes([len(each)]) + each.encode() for each in row))
        number += 1
    send(connection, number, end)


@contextmanager
def running(server: Scripted) -> Iterator[Scripted]:
    """Serve on a port of the loopback address while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]

        def accept() -> None:
            for connection in accepted(listener):
                threading.Thread(target=server.serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)

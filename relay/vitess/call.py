"""One gRPC call to vtgate, whose answers are read from the socket by the thread that wants them.

A call's answers are small and many, one for each transaction of the database. General clients hand each over from
thread to thread, which takes longer than all that the relay does with the row in it. Here many are taken at once from
what the socket has.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from relay.errors import ConfigError
from relay.vitess.http2 import Exchange

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
        self._closed = False
        self._lock = threading.Lock()  # of the socket: it is not closed while somebody reads
        self._socket: socket.socket | None = None
        self._connected = threading.Event()  # or it never will be
        self._exchange = Exchange(address, path, request, headers, "https" if tls else "http")
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise ConfigError(f"{address} is no address: host:port is wanted")
        arguments = (host.strip("[]"), int(port)), tls, name
        threading.Thread(target=self._begin, args=arguments, name="vtgate-call", daemon=True).start()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._exchange.ended else "open"
        return f"<Call[{self.address}: {state}]>"

    def take(self, timeout: float, most: int = 1 << 20) -> list[bytes]:
        """Return messages that have come, up to about ``most`` bytes; [] after ``timeout`` seconds.

        Raises `CallEnded` once everything that came before the end was taken.
        """
        deadline = time.monotonic() + timeout
        if not self._connected.wait(timeout):
            return []
        exchange = self._exchange
        taken: list[bytes] = []
        size = 0
        with self._lock:
            if self._socket is None:
                self._hung_up("")
            while exchange.ended is None and (size < most or not taken):
                data = self._receive(0.0 if taken else max(0.0, deadline - time.monotonic()))
                if not data:
                    break
                size += len(data)
                exchange.receive(data, taken)
                self._send()
            if exchange.ended is not None and not taken:
                raise exchange.ended
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

    def _begin(self, place: tuple[str, int], tls: ssl.SSLContext | None, name: str | None) -> None:
        try:
            connection = _connect(place, tls, name)
            with self._lock:
                self._socket = connection
                if self._closed:
                    connection.close()
                else:
                    self._send()
        except (OSError, UnicodeError) as error:  # UnicodeError: no name that there can be
            self._exchange.end("UNAVAILABLE", f"failed to connect to {self.address}: {error}")
        finally:
            self._connected.set()

    def _send(self) -> None:
        assert self._socket is not None
        unsent = self._exchange.unsent
        try:
            if unsent:
                self._socket.settimeout(_SEND_TIMEOUT)
                self._socket.sendall(unsent)
                unsent.clear()
        except OSError as error:
            self._hung_up(f": {error}")

    def _receive(self, timeout: float) -> bytes:
        """Return what the socket has, waiting for ``timeout`` seconds at most; nothing if there is none."""
        assert self._socket is not None
        try:
            self._socket.settimeout(timeout)
            data = self._socket.recv(_RECEIVED_AT_ONCE)
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
            return b""
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            self._hung_up(f": {error}")
            return b""
        if not data:
            self._hung_up("")
        return data

    def _hung_up(self, why: str) -> None:
        if self._closed:
            self._exchange.end("CANCELLED", "closed here")
        else:
            said = self._exchange.goodbye or f"{self.address} closed the connection{why}"
            self._exchange.end("UNAVAILABLE", said)


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

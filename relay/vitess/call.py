"""One gRPC call to vtgate, whose answers are read from the socket by the thread that uses them.

Answers are small and many: one for each transaction of the database. A general gRPC client passes each from thread to
thread, which takes longer than everything that the relay does with its row. Here the thread takes all that the socket
has at once.
"""

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from relay.config.addresses import host_port
from relay.vitess.http2 import Exchange

CONNECT_TIMEOUT = 5.0
"""Seconds; the same again for the TLS handshake."""

_RECEIVED_AT_ONCE = 256 << 10
_SEND_TIMEOUT = 10.0
# Seconds of silence before the first probe, seconds between probes, and their number. Not all systems have these.
_KEEPALIVE = [
    (getattr(socket, option), value)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, option)
]


class Call:
    """One call. ``take`` is called by one thread at a time, ``close`` by any.

    ``address``: host:port; ValueError if it is not. ``headers``: beyond gRPC's own. A thread of its own connects,
    so that nobody waits for a server that cannot be reached; ``take`` raises what went wrong.

    The server's pings are answered only inside ``take``. If nobody calls it for 20 s, because Kafka is away, say,
    vtgate hangs up, and the call has to be made again.
    """

    def __init__(
        self,
        address: str,
        path: str,
        request: bytes,
        *,
        headers: Sequence[tuple[str, str]] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        # Shared by the threads that connect, take and close, under the lock. It is not held while the socket is used:
        # if that is when the call is closed, the thread that uses the socket closes it.
        self._socket: socket.socket | None = None
        self._is_used = False
        self._closed = False
        self._lock = threading.Lock()
        # Set once the connection is made, has failed or is no longer wanted.
        self._connected = threading.Event()
        # Used by the thread that connects, and after `_connected` by the one that takes.
        self._exchange = Exchange(address, path, request, headers, "https" if tls else "http")
        threading.Thread(target=self._connect, args=(host_port(address), tls), name="vtgate-call", daemon=True).start()

    def take(self, timeout: float, most: int = 1 << 20) -> list[bytes]:
        """Return the messages that have come, up to about ``most`` bytes; [] after ``timeout`` seconds.

        Raises `CallEnded` once everything that came before the end has been taken.
        """
        deadline = time.monotonic() + timeout
        if not self._connected.wait(timeout):
            return []
        taken: list[bytes] = []
        connection = self._acquire()
        if connection is None:
            self._end_by("")
        else:
            try:
                self._take(connection, deadline, most, taken)
            finally:
                self._release()
        if self._exchange.ended is not None and not taken:
            raise self._exchange.ended
        return taken

    def _take(self, connection: socket.socket, deadline: float, most: int, taken: list[bytes]) -> None:
        exchange = self._exchange
        size = 0
        while exchange.ended is None and (size < most or not taken):
            data = self._receive(connection, 0.0 if taken else max(0.0, deadline - time.monotonic()))
            if not data:
                break
            size += len(data)
            exchange.receive(data, taken)
            self._send(connection)

    def close(self) -> None:
        """End the call. A thread that waits in ``take`` gets `CallEnded`."""
        with self._lock:
            self._closed = True
            connection, is_used = self._socket, self._is_used
        self._connected.set()
        if connection is None:
            return
        with suppress(OSError):  # the server hung up first
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # ends what waits for the socket
        if not is_used:
            connection.close()

    def _acquire(self) -> socket.socket | None:
        """Return the socket, which stays open until `_release`, or None if there is no connection."""
        with self._lock:
            if self._closed or self._socket is None:
                return None
            self._is_used = True
            return self._socket

    def _release(self) -> None:
        with self._lock:
            self._is_used = False
            connection = self._socket if self._closed else None
        if connection is not None:
            connection.close()

    def _connect(self, host: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        try:
            connection = _open_socket(host, tls)
            with self._lock:
                self._socket, self._is_used = connection, True
            if not self._closed:
                self._send(connection)
            self._release()
        except (OSError, UnicodeError) as error:  # UnicodeError: not a possible host name
            self._exchange.end("UNAVAILABLE", f"failed to connect to {self.address}: {error}")
        finally:
            self._connected.set()

    def _send(self, connection: socket.socket) -> None:
        unsent = self._exchange.unsent
        try:
            if unsent:
                connection.settimeout(_SEND_TIMEOUT)
                connection.sendall(unsent)
                unsent.clear()
        except OSError as error:
            self._end_by(f": {error}")

    def _receive(self, connection: socket.socket, timeout: float) -> bytes:
        """Return what the socket has, after at most ``timeout`` seconds; nothing if nothing has come."""
        try:
            connection.settimeout(timeout)
            data = connection.recv(_RECEIVED_AT_ONCE)
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
            return b""
        except (OSError, ValueError) as error:  # ValueError: an SSL socket that was shut down
            self._end_by(f": {error}")
            return b""
        if not data:
            self._end_by("")
        return data

    def _end_by(self, reason: str) -> None:
        """The connection was closed, here or by the server. ``reason``: what the system said, after a colon."""
        if self._closed:
            self._exchange.end("CANCELLED", "closed by the relay")
        else:
            goodbye = self._exchange.goodbye or f"{self.address} closed the connection{reason}"
            self._exchange.end("UNAVAILABLE", goodbye)


def _open_socket(host: tuple[str, int], tls: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection(host, CONNECT_TIMEOUT)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Notices a server that vanished.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if tls is None:
            return connection
        return tls.wrap_socket(connection, server_hostname=host[0])
    except BaseException:
        connection.close()
        raise

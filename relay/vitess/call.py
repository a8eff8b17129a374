"""One gRPC call to vtgate, whose answers are read from the socket by the thread that uses them."""

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from relay.config.addresses import host_port
from relay.vitess.http2 import Exchange

_CONNECT_TIMEOUT = 5.0  # seconds; the TLS handshake may take as long again
_RECEIVED_AT_ONCE = 256 << 10
_SEND_TIMEOUT = 10.0
# TCP keepalive: seconds of silence before the first probe, seconds between probes, and how many. Not on all systems.
_KEEPALIVE = [
    (getattr(socket, option), value)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, option)
]


class Call:
    """One call. One thread at a time calls ``take``; any thread calls ``close``. ``headers``: beyond gRPC's own.

    A separate thread connects, so that nobody waits for an unreachable server; ``take`` raises the error. Only ``take``
    answers the server's pings: if nobody calls it for 20 s, vtgate hangs up, and the call has to be made again.
    Raises ValueError if ``address`` is not host:port.
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
        # The thread that connects sets the socket, and the thread that closes sets the flag.
        self._socket: socket.socket | None = None
        self._closed = False
        # Held while a thread uses the socket or waits for it: ``close`` shuts the socket down first, which ends the
        # wait, and closes it only when no thread uses it.
        self._lock = threading.Lock()
        self._connected = threading.Event()  # set once the connection was made, has failed or is no longer wanted
        # Used by the thread that connects, and after `_connected` by the thread that calls ``take``.
        self._exchange = Exchange(address, path, request, headers, "https" if tls else "http")
        threading.Thread(target=self._connect, args=(host_port(address), tls), name="vtgate-call", daemon=True).start()

    def take(self, timeout: float, most: int = 1 << 20) -> list[bytes]:
        """Return about ``most`` bytes of messages, [] after ``timeout`` seconds. Raises `CallEnded` after the last."""
        deadline = time.monotonic() + timeout
        if not self._connected.wait(timeout):
            return []
        taken: list[bytes] = []
        with self._lock:
            if self._socket is None or self._closed:
                self._end_by("")
            else:
                self._take(self._socket, deadline, most, taken)
        if self._exchange.ended is not None and not taken:
            raise self._exchange.ended
        return taken

    def _take(self, connection: socket.socket, deadline: float, most: int, taken: list[bytes]) -> None:
        exchange, size = self._exchange, 0
        while exchange.ended is None and (size < most or not taken):
            try:
                connection.settimeout(0.0 if taken else max(0.0, deadline - time.monotonic()))
                data = connection.recv(_RECEIVED_AT_ONCE)
            except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
                break  # the socket stays silent
            except (OSError, ValueError) as error:  # ValueError: an SSL socket that was shut down
                self._end_by(f": {error}")
                break
            if not data:
                self._end_by("")
                break
            size += len(data)
            exchange.receive(data, taken)
            self._send(connection)

    def close(self) -> None:
        """End the call. A thread that waits in ``take`` gets `CallEnded`."""
        self._closed = True
        self._connected.set()
        if self._socket is not None:
            with suppress(OSError):  # the server hung up first
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            with self._lock:
                self._socket.close()

    def _connect(self, host: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        try:
            connection = _open_socket(host, tls)
            with self._lock:
                self._socket = connection
                if self._closed:  # `close` may have run before the socket was set
                    connection.close()
                else:
                    self._send(connection)
        except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
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

    def _end_by(self, reason: str) -> None:
        """End the call after either side closed the connection. ``reason``: the system's error, after a colon."""
        if self._closed:
            self._exchange.end("CANCELLED", "closed by the relay")
        else:
            goodbye = self._exchange.goodbye or f"{self.address} closed the connection{reason}"
            self._exchange.end("UNAVAILABLE", goodbye)


def _open_socket(host: tuple[str, int], tls: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection(host, _CONNECT_TIMEOUT)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Detects a server that has vanished.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if tls is None:
            return connection
        return tls.wrap_socket(connection, server_hostname=host[0])
    except BaseException:
        connection.close()
        raise

"""A proxy in front of a server, whose clients' connections stay open when the server behind it changes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.listening import accepted


class Proxy:
    """Passes bytes on to ``target``, a port of this machine, one connection there for each connection here."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()  # guards the pairs
        self._pairs: dict[socket.socket, socket.socket] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()
        with self._lock:
            for pair in self._pairs.items():
                for each in pair:
                    each.close()

    def lead_to(self, target: int) -> None:
        """Connect every client to another server, or again to the same; the clients notice nothing."""
        with self._lock:
            self._target = target
            for client, server in list(self._pairs.items()):
                self._connect(client)
                with suppress(OSError):  # it may have ended
                    server.shutdown(socket.SHUT_RDWR)

    def later(self, target: int) -> None:
        """Connect new clients to another server; the others stay with theirs."""
        with self._lock:
            self._target = target

    def cut(self) -> None:
        """Close every connection, as the kernel does for a server that was killed."""
        with self._lock:
            for client in self._pairs:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        with self._lock:
            return len(self._pairs)

    def _accept(self) -> None:
        for client in accepted(self._listening):
            try:
                with self._lock:
                    self._connect(client)
            except OSError:  # the server is down
                client.close()
                continue
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._target))
        self._pairs[client] = server
        threading.Thread(target=self._pass_back, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                with self._lock:
                    server = self._pairs[client]
                server.sendall(data)
        with self._lock:
            self._pairs.pop(client).close()
        client.close()

    def _pass_back(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        server.close()

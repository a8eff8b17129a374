"""Listening sockets of the servers that tests stand in for."""

from __future__ import annotations

import socket
from collections.abc import Iterator


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield each connection, until the listener is shut down or closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        yield connection

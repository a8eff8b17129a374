"""Listening sockets of the servers that tests stand in for, and where nobody listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator

NOBODY = "127.0.0.1:1"
"""An address that refuses connections. A port that is free may be taken by a server that another test starts."""


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield each connection, until the listener is shut down or closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        yield connection

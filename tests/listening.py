"""Listening sockets of the servers that tests stand in for, and where nobody listens."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import TypeVar

import pytest

Server = TypeVar("Server", bound=HTTPServer)

NOBODY = "127.0.0.1:1"
"""An address that refuses connections. A port that is free may be taken by a server that another test starts."""


def give_up_on_brokers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands wait a moment for a broker. Why there is none may not be known by then."""
    monkeypatch.setattr("relay.kafka.topics.connect.__defaults__", (0.1,))


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield each connection, until the listener is shut down or closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        yield connection


@contextmanager
def answering(server: Server) -> Iterator[Server]:
    """Let a server of a test answer in a thread of its own."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()

"""Database connections of a loader: one for each load in progress, kept for later loads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closable)
T = TypeVar("T")


class Connections(Generic[C]):
    """Connections that threads share, each used by one thread at a time. ``connect``: opens one.

    As many stay open as loads ran at once. A process that was forked opens its own.
    """

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._lock = threading.Lock()  # guards the two below; never held during a call to the database
        self._idle: list[C] = []
        self._process = os.getpid()

    def run(self, work: Callable[[C], T]) -> T:
        """Return what ``work`` makes of a connection; if it fails on one that was used before, run it again.

        The server may have closed that one since. Raises what ``work`` raises on a new connection, and what ``connect``
        raises.
        """
        while True:
            used = self._take()
            connection = self._connect() if used is None else used
            try:
                result = work(connection)
            except BaseException as error:
                with suppress(Exception):  # it may be closed already
                    connection.close()
                if used is None or not isinstance(error, Exception):
                    raise
                continue
            with self._lock:
                self._idle.append(connection)
            return result

    def close(self) -> None:
        """Close all connections, none of which may be in use."""
        with self._lock:
            connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()

    def _take(self) -> C | None:
        with self._lock:
            if self._process != os.getpid():
                # I6: on a socket that two processes share, either may read the other's rows.
                self._idle, self._process = [], os.getpid()
            return self._idle.pop() if self._idle else None

"""Connections that threads share, each used by one thread at a time."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closable)
T = TypeVar("T")


@contextmanager
def closed_on_error(opened: C) -> Iterator[C]:
    try:
        yield opened
    except BaseException:
        _close(opened)
        raise


class Connections(Generic[C]):
    """Connections of several threads, kept for reuse while ``is_usable``. A forked process opens its own."""

    def __init__(self, connect: Callable[[], C], is_usable: Callable[[C], bool] = lambda _: True) -> None:
        self._connect = connect
        self._is_usable = is_usable
        self._lock = threading.Lock()  # guards the two below; never held during a call to a server
        self._idle: list[C] = []
        self._process = os.getpid()

    def lent(self) -> AbstractContextManager[C]:
        """Lend a connection for a ``with``; it is closed if the body raises. Raises as ``connect`` does."""
        while (connection := self._take()) is not None:
            if self._is_usable(connection):
                break
            _close(connection)
        return self._using(connection or self._connect())

    def run(self, work: Callable[[C], T], is_lost: Callable[[Exception], bool] = lambda _: True) -> T:
        """Return the result of ``work`` with a connection; if it fails with a reused connection, run it again.

        ``is_lost``: whether an error may mean that the server had closed it. Raises as ``work`` and ``connect`` do.
        """
        while True:
            used = self._take()
            try:
                with self._using(used or self._connect()) as connection:
                    return work(connection)
            except Exception as error:
                if used is None or not is_lost(error):
                    raise

    def close(self) -> None:
        """Close all connections, none of which may be in use."""
        with self._lock:
            connections, self._idle = self._idle, []
        for connection in connections:
            _close(connection)

    @contextmanager
    def _using(self, connection: C) -> Iterator[C]:
        try:
            yield connection
        except BaseException:
            _close(connection)
            raise
        with self._lock:
            self._idle.append(connection)

    def _take(self) -> C | None:
        with self._lock:
            if self._process != os.getpid():
                # I6: on a socket that two processes share, either may read the other's answers.
                self._idle, self._process = [], os.getpid()
            return self._idle.pop() if self._idle else None


def _close(connection: Closable) -> None:
    with suppress(Exception):  # it may be closed already
        connection.close()

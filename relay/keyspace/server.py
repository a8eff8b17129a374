"""One server of a shard: watched by a thread that restarts after each failure, and queried by any number of threads."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pymysql.connections import Connection
from pymysql.err import InterfaceError, MySQLError

from relay.errors import RelayError, Unavailable
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import translated
from relay.mysql.queries import TokenQueries
from relay.mysql.roles import Role
from relay.mysql.watcher import ReplicationWatcher
from relay.process.connections import Connections, closed_on_error
from relay.token import EventToken

log = logging.getLogger(__name__)

T = TypeVar("T")

Work = Callable[["Connection[Any]", EventToken | None], T]
"""Work on a connection. The token was taken before: the rows read reflect everything up to it."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds before a server is watched again, doubled each time
_LOST = frozenset({1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927})  # a shutdown, a broken network, a killed connection
_SILENT = 10.0  # seconds
_AVOID = 5.0  # seconds during which a server that failed is tried last


class ServerState(NamedTuple):
    """A server of a shard. ``lag``: seconds, infinite if unknown. ``problem``: why it is not watched, if so."""

    address: str
    role: str
    lag: float
    token: EventToken | None
    problem: str | None


@dataclass(eq=False, repr=False)
class WatchedServer:
    """A server at an address, which any number of threads may query. ``shard``: its name in tokens.

    ``watch``, ``connect``: open connections. ``tried``: is set once the server is watched, or cannot be.
    """

    address: str
    shard: str
    watch: Callable[[str], ServerConnection]
    connect: Callable[[str], Connection[Any]]

    def __post_init__(self) -> None:
        self.tried = threading.Event()
        self._connections = Connections(self._open)
        self._stopping = threading.Event()
        self._process = os.getpid()
        # Replaced by the thread, read by any other.
        self.watcher = self._new_watcher()
        self._problem: str | None = "it is not watched yet"
        # Until this time, in monotonic seconds, it is tried last. Set by any thread, in one assignment.
        self._avoid_until = -math.inf
        self._thread = threading.Thread(target=self._keep_watching, name=f"watch-{self.address}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching soon, without waiting."""
        self._stopping.set()
        self.watcher.stop()

    def close(self, timeout: float) -> None:
        """Close the idle connections, after up to ``timeout`` seconds for the thread: its server may be silent."""
        if self._process != os.getpid():
            return  # they belong to its parent
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._connections.close()

    @property
    def token(self) -> EventToken | None:
        """A token: queries that start after reading it reflect everything up to it. None if nothing watches it."""
        return self._token_of(self.watcher)

    @property
    def is_silent(self) -> bool:
        """Whether it is watched but has been silent for a while, so that a query may wait in vain."""
        return self.watcher.silence > _SILENT

    @property
    def has_failed(self) -> bool:
        return time.monotonic() < self._avoid_until

    @property
    def state(self) -> ServerState:
        token, watcher = self.token, self.watcher
        problem = None if token is not None else self._problem
        return ServerState(self.address, _named(watcher.role), watcher.lag, token, problem)

    def run(self, work: Work[T]) -> T:
        """Return the result of ``work`` on a connection that no other thread uses, with a token.

        Raises ``Unavailable`` if the server cannot be queried, other errors of ``work``, and ``RelayError`` where a
        token would be wrong.
        """
        watcher = self.watcher
        try:
            return self._connections.run(partial(self._with_token, watcher, work), _may_be_old)
        except (Unavailable, MySQLError) as error:
            if isinstance(error, MySQLError) and not _is_lost(error):
                raise
            self._avoid_until = time.monotonic() + _AVOID
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(str(translated(error, self.address))) from error

    def _with_token(self, watcher: ReplicationWatcher, work: Work[T], queries: TokenQueries) -> T:
        queries.watcher = watcher  # the connection may be older than the watcher; its server is asked again if need be
        token = queries.token() if self._token_of(watcher) is not None else None  # before the read
        return work(queries.connection, token)

    def _token_of(self, watcher: ReplicationWatcher) -> EventToken | None:
        # In a forked process, the thread does not exist, and nobody would notice a change of role.
        return watcher.token if self._process == os.getpid() else None  # I6

    def _open(self) -> TokenQueries:
        """Open a connection. Raises ``Unavailable``."""
        try:
            with closed_on_error(self.connect(self.address)) as connection, closing(connection.cursor()) as cursor:
                cursor.execute("SET SESSION TRANSACTION READ ONLY")  # because a query may be repeated
        except (MySQLError, OSError) as error:
            raise Unavailable(str(translated(error, self.address))) from error
        return TokenQueries(connection, self.watcher)

    # ------------------------------------------------------------------ the thread

    def _new_watcher(self) -> ReplicationWatcher:
        return ReplicationWatcher(partial(self.watch, self.address), self.shard)

    def _keep_watching(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            self.watcher = watcher = self._new_watcher()
            if self._stopping.is_set():
                return
            try:
                watcher.watch(self._begun)
                problem = watcher.error
            except RelayError as error:
                problem = str(error)
            except Exception as error:  # such as one of `watch`, which is the caller's: the next attempt may succeed
                problem = repr(error)
                log.exception("%s of %s is watched again", self.address, self.shard)
            if problem is None:
                return  # stopped
            pause = _FIRST_PAUSE if self._problem is None else min(2 * pause, _LONGEST_PAUSE)
            if problem != self._problem:
                log.warning(
                    "%s of %s is not watched, and its reads have no token: %s", self.address, self.shard, problem
                )
            self._problem = problem
            self.tried.set()
            self._stopping.wait(pause)

    def _begun(self) -> None:
        log.info("%s of %s is watched", self.address, self.shard)
        self._problem = None
        self.tried.set()


def _is_lost(error: Exception) -> bool:
    """Whether a PyMySQL error concerns the connection, and not the query."""
    code = error.args[0] if error.args else None
    return isinstance(error, InterfaceError) or (isinstance(code, int) and (code in _LOST or 2000 <= code < 2049))


def _may_be_old(error: Exception) -> bool:
    """Whether an error may come from a connection that was closed, or led to another server, since its last use."""
    if isinstance(error, MySQLError):
        return _is_lost(error) and not isinstance(error.__context__, TimeoutError)  # a new one would wait as long
    return isinstance(error, RelayError) and not isinstance(error, Unavailable)


def _named(role: Role | None) -> str:
    if role is None or role.is_unknown:
        return "unknown"
    return "replica" if role.is_replica else "primary"

"""Watches what one server has executed, for queries that show how fresh they are.

See "Watching the Replication Stream" in Vitess' update stream design. A binlog has a transaction before queries see it,
so the token waits until they do: a token ahead of the queries would let a stale value into a cache (I6).
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Self

from relay.errors import RelayError
from relay.gtid import GtidSet, parse
from relay.mysql import connection
from relay.mysql.binlog.events import Commit, TransactionBegin
from relay.mysql.binlog.files import look_into
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection
from relay.mysql.roles import Role, role_of
from relay.process.connections import closed_on_error
from relay.token import EventToken

log = logging.getLogger(__name__)

_ROLE_EVERY = 1.0  # seconds
_WAIT = 0.2  # seconds that the thread waits for events, and so the longest that ``close`` takes
_POLL_VISIBLE = 0.002  # seconds between two checks whether queries see a transaction

# The last answer about the role, and when it arrived, in monotonic seconds.
_NOT_SEEN: tuple[Role | None, float] = (None, -math.inf)
# A server, its role, its events, its executed set, and the time of that in seconds.
_Opened = tuple[ServerConnection, Role, BinlogEvents, GtidSet, int]


class ReplicationWatcher:
    """The last transaction visible to queries on a server, as a token, which a thread keeps up to date.

    ``connect``: connects to the server, like ``relay.mysql.connection.connect``. ``shard``: the name in tokens,
    ``<source>/<database>/<shard>``. ``identity``: the server's UUID, or MariaDB's server id. ``token``: queries that
    start after it was read reflect everything up to it. It is None before ``start``, and for good once the server's
    role has changed or the watcher has failed: see ``error``. Then start a new watcher. A replica's token leaves out
    transactions that no other server has.
    """

    def __init__(self, connect: Callable[[], ServerConnection], shard: str) -> None:
        if shard.count("/") < 2:
            raise ValueError(f"{shard!r} is not a shard name of a token: it must be <source>/<database>/<shard>")
        self.shard = shard
        # Set before the thread starts.
        self.identity = ""
        # Replaced by the thread, read by any other.
        self.error: str | None = None
        self.token: EventToken | None = None
        self._seen = _NOT_SEEN
        # Set by ``close`` to end the thread.
        self._stopping = threading.Event()
        self._connect = connect
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, address: str, port: int, user: str, password: str, shard: str) -> Self:
        return cls(lambda: connection.connect(address, port, user, password), shard)

    @property
    def role(self) -> Role | None:
        """The server's role at the last check, about once a second; None while it is not watched."""
        return self._seen[0]

    @property
    def silence(self) -> float:
        """Seconds since the server last answered; it is asked about once a second. Infinite while it is not watched."""
        return time.monotonic() - self._seen[1]

    @property
    def lag(self) -> float:
        """Seconds that the server lagged when it last answered, plus those since; infinite if unknown."""
        role, at = self._seen
        return role.lag + time.monotonic() - at if role is not None else math.inf

    def start(self) -> Self:
        """Start watching from the current position. Raises ``Unavailable``, ``RelayError``."""
        opened = self._open()
        name = f"watch-{self.shard}"
        self._thread = threading.Thread(target=self._run_in_thread, args=(opened,), name=name, daemon=True)
        self._thread.start()
        return self

    def watch(self, begun: Callable[[], object]) -> None:
        """Watch in this thread until ``stop`` or an error; call ``begun`` once it has a token. Raises as ``start``."""
        opened = self._open()
        begun()
        self._run(opened)

    def stop(self) -> None:
        """Stop watching soon. Does not wait."""
        self._stopping.set()

    def _open(self) -> _Opened:
        with closed_on_error(self._connect()) as server:
            server.verify()
            role = role_of(server)
            self.identity = server.identity
            executed = server.visible()
            # The next transactions are not much older than the newest binlog file.
            timestamp = max(1, look_into(server, server.binlogs()[-1]).begun)
            events = BinlogEvents(server, executed, None)
        self._seen = role, time.monotonic()
        self.token = EventToken(timestamp, self.shard, _shared(server, role, executed, executed).position)
        return server, role, events, executed, timestamp

    def close(self) -> None:
        """Stop watching. Waits for the thread to end."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self.token = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_in_thread(self, opened: _Opened) -> None:
        try:
            self._run(opened)
        finally:
            if self.error is not None:
                log.warning("the watcher of %s has stopped: %s: start a new one", self.shard, self.error)

    def _run(self, opened: _Opened) -> None:
        try:
            server, _, events, *_ = opened
            with closing(server), closing(events):
                self._watch(*opened)
        except RelayError as error:
            self.error = str(error)
        except BaseException as error:
            self.error = repr(error)
            raise
        finally:
            self.token, self._seen = None, _NOT_SEEN

    def _watch(
        self, server: ServerConnection, role: Role, events: BinlogEvents, executed: GtidSet, timestamp: int
    ) -> None:
        role_at, start = time.monotonic() + _ROLE_EVERY, executed
        begun: TransactionBegin | None = None
        while not self._stopping.is_set():
            done: tuple[TransactionBegin, Commit] | None = None
            for event in events.read(_WAIT):
                if isinstance(event, TransactionBegin):
                    begun = event
                elif isinstance(event, Commit) and begun is not None:
                    timestamp = max(timestamp, begun.timestamp)
                    done, begun = (begun, event), None
            if done is not None and self._wait_for(server, *done):
                shared = _shared(server, role, parse(done[0].position), start)
                self.token = EventToken(timestamp, self.shard, shared.position)
            if time.monotonic() >= role_at:
                role_at = time.monotonic() + _ROLE_EVERY
                now = role_of(server)
                if (now.is_replica, now.is_read_only) != (role.is_replica, role.is_read_only):
                    self.error = f"the role of {server.account.address} changed"
                    return
                role = now
                self._seen = now, time.monotonic()

    def _wait_for(self, server: ServerConnection, begun: TransactionBegin, end: Commit) -> bool:
        """Wait until queries see a transaction; return False if the watcher is closed first."""
        while not self._stopping.is_set():
            if server.is_mariadb:
                if _place(*server.visible_place()) >= _place(end.file, end.position):
                    return True
            elif server.executed().contains(parse(begun.position)):
                return True  # MySQL adds to the set after the storage engines have committed
            self._stopping.wait(_POLL_VISIBLE)
        return False


def _place(file: str, position: int) -> tuple[int, str, int]:
    """Return a place in a form that compares in order: longer file numbers are later."""
    return len(file), file, position


def _shared(server: ServerConnection, role: Role, executed: GtidSet, start: GtidSet) -> GtidSet:
    """Return those transactions of ``executed`` that the shard's other servers have, or will have (I5).

    In MySQL, transactions of a former primary, which all servers have, look like a replica's own; those in ``start``,
    from before the watch, count as shared. If they are not, comparisons give UNKNOWN, never a wrong order.
    """
    if not (role.is_replica and role.is_read_only):
        return executed
    members = str(executed).split(",") if executed else []
    if server.is_mariadb:
        return parse("MariaDB/" + ",".join(gtid for gtid in members if gtid.partition("-")[0] in role.domains))
    own = [member for member in members if member.partition(":")[0] == server.uuid.lower()]
    return executed - (parse("MySQL56/" + ",".join(own)) - start)

"""How far a shard's servers have executed, checked now and then, so that a reader knows what is left to read."""

import time
from collections.abc import Callable

from relay.errors import Unavailable
from relay.gtid import GtidSet, parse
from relay.mysql.connection import ServerConnection
from relay.mysql.probe import BackgroundProbe
from relay.mysql.servers import ReadableServer, ShardServers

_HEAD_EVERY = 2.0  # seconds between two checks of the head, while no changes come
_PRIMARY_EVERY = 30.0  # seconds between two searches for a primary
_OVERDUE = 10.0  # seconds past the next due check after which a head that reading has not reached counts as overdue


class ShardHead:
    """The position that a shard had reached at the last check, on its primary if one answers, or on the server read.

    Another thread searches for the primary. Used by one thread at a time.
    """

    def __init__(self, servers: ShardServers, clock: Callable[[], float]) -> None:
        self.servers = servers
        self.clock = clock
        self._ask_at = 0.0
        self._search: BackgroundProbe[ServerConnection | None] = BackgroundProbe(
            f"primary-of-{servers.shard}", servers.primary, every=_PRIMARY_EVERY, discard=_close
        )
        self._forget()

    def _forget(self) -> None:
        # The executed position, and when it was checked; None once it was read.
        self._head: tuple[GtidSet, float] | None = None
        # When a head was wanted that was not checked yet, because a primary is being searched for the first time.
        self._wanted_at: float | None = None
        self._primary: ServerConnection | None = None
        self._has_searched = False
        self._of_primary = parse("")

    def close(self) -> None:
        self._search.close()
        _close(self._primary)
        self._forget()

    def start(self, server: ReadableServer, asked: float) -> None:
        """Set the head before ``server`` is read. ``asked``: when the server was asked. Raises ``Unavailable``."""
        self._head = server.executed, asked
        if not server.role.is_primary:
            self._head, self._wanted_at = None, asked
            self._ask(server)
        self._ask_at = time.monotonic() + _HEAD_EVERY

    def ask_again(self, server: ReadableServer, is_idle: bool) -> None:
        """Check for a new head if the last one was read and no relayed changes come. Raises ``Unavailable``."""
        if is_idle and self._head is None and self._wanted_at is None and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _HEAD_EVERY
            self._wanted_at = self.clock()
        if self._wanted_at is not None:
            self._ask(server)

    def is_overdue(self) -> bool:
        """Whether the head was not read for so long that something may prevent it for ever."""
        now = time.monotonic()
        if self._head is None or now < self._ask_at + _OVERDUE:
            return False
        self._ask_at = now
        return True

    def is_read(self, executed: GtidSet) -> bool:
        """Whether everything was read that the shard had executed at the last check."""
        return self._wanted_at is None and (self._head is None or executed.contains(self._head[0]))

    def take_reached(self, executed: GtidSet) -> float | None:
        """Return, once for each head, when it was checked, if everything up to it was read."""
        if self._head is None or not executed.contains(self._head[0]):
            return None
        reached, self._head = self._head[1], None
        return reached

    def is_local(self, server: ReadableServer, gtid: str) -> bool:
        """Whether only ``server``, a replica, has a transaction. Waits for a primary that is being searched for.

        MySQL names those of a former primary like those that it makes as a replica; the primary has the former.
        """
        if not server.role.is_local(server.server, gtid):
            return False
        if server.server.is_mariadb:
            return True
        wanted = parse(gtid)
        if not self._of_primary.contains(wanted):
            self._search_primary(wait=True)
            self._of_primary = self._executed_by_primary() or self._of_primary
            if self._primary is None and self.servers.primary_may_be_silent:
                return False  # a primary that does not answer may have it; if it does not, that is a loss (I9)
        return not self._of_primary.contains(wanted)

    def _ask(self, server: ReadableServer) -> None:
        """Ask for the wanted head, unless the first search for a primary is still running."""
        executed = None
        if not server.role.is_primary:
            self._search_primary()
            if self._primary is None and not self._has_searched:
                return
            executed = self._executed_by_primary()
        if self._wanted_at is not None:
            self._head = server.server.executed() if executed is None else executed, self._wanted_at
            self._wanted_at = None

    def _search_primary(self, *, wait: bool = False) -> None:
        if self._primary is not None:
            return
        self._search.start()
        was_asking = self._search.is_asking
        self._primary = self._search.wait() if wait else self._search.take()
        self._has_searched |= was_asking and not self._search.is_asking

    def _executed_by_primary(self) -> GtidSet | None:
        if self._primary is not None:
            try:
                return self._primary.executed()
            except Unavailable:
                _close(self._primary)
                self._primary = None
        return None


def _close(server: ServerConnection | None) -> None:
    if server is not None:
        server.close()

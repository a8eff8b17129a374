"""How far a shard's servers have executed, asked now and then, so that a reader knows what it has yet to read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from relay.errors import Unavailable
from relay.gtid import GtidSet, parse
from relay.mysql.connection import ServerConnection
from relay.mysql.servers import ReadableServer, ShardServers

_HEAD_EVERY = 2.0  # seconds between two questions for the head, while no events arrive
_PRIMARY_EVERY = 30.0  # seconds between two searches for a primary: connecting to a dead one takes long


class ShardHead:
    """What a shard had executed and when it was asked: its primary if one answers, else the server that is read.

    Used by one thread at a time.
    """

    def __init__(self, servers: ShardServers, clock: Callable[[], float]) -> None:
        self.servers = servers
        self.clock = clock
        # What the shard had executed, and when that was asked; None once it was read.
        self._head: tuple[GtidSet, float] | None = None
        self._ask_at = 0.0
        self._primary: ServerConnection | None = None
        self._search_at = -math.inf
        self._of_primary = parse("")

    def __repr__(self) -> str:
        return f"<ShardHead {self._head[0].position if self._head else 'read'}>"

    def close(self) -> None:
        """Forget the head, and close the connection to the primary."""
        if self._primary is not None:
            self._primary.close()
            self._search_at = -math.inf  # it answered
        self._primary = self._head = None
        self._of_primary = parse("")

    def start(self, server: ReadableServer, asked: float) -> None:
        """Set the head when reading from ``server`` starts. ``asked``: when it was asked. Raises ``Unavailable``."""
        self._head = server.executed, asked
        if server.role.is_replica:
            self._head = self._ask(server), asked
        self._ask_at = time.monotonic() + _HEAD_EVERY

    def ask_again(self, server: ReadableServer) -> None:
        """Ask for a new head if the last one was read some time ago. Raises ``Unavailable``."""
        if self._head is None and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _HEAD_EVERY
            asked = self.clock()
            self._head = self._ask(server), asked

    def is_read(self, executed: GtidSet) -> bool:
        """Whether everything was read that the shard had executed when it was last asked."""
        return self._head is None or executed.contains(self._head[0])

    def take_reached(self, executed: GtidSet) -> float | None:
        """Return, once for each head, when it was asked, if everything up to it was read."""
        if self._head is None or not executed.contains(self._head[0]):
            return None
        reached, self._head = self._head[1], None
        return reached

    def is_local(self, server: ReadableServer, gtid: str) -> bool:
        """Whether only ``server``, a replica, has a transaction.

        MySQL names those of a former primary like those it made as a replica: the primary has the former.
        """
        if not server.role.is_local(server.server, gtid):
            return False
        if server.server.is_mariadb:
            return True
        wanted = parse(gtid)
        if not self._of_primary.contains(wanted):
            self._of_primary = self._ask_primary() or self._of_primary
            if self._primary is None and self.servers.primary_may_be_silent:
                return False  # a primary that does not answer may have it; if it does not, that is a loss (I9)
        return not self._of_primary.contains(wanted)

    def _ask(self, server: ReadableServer) -> GtidSet:
        head = self._ask_primary() if server.role.is_replica else None
        return server.server.executed() if head is None else head

    def _ask_primary(self) -> GtidSet | None:
        if self._primary is None and time.monotonic() >= self._search_at:
            self._search_at = time.monotonic() + _PRIMARY_EVERY
            self._primary = self.servers.primary()
        if self._primary is not None:
            try:
                return self._primary.executed()
            except Unavailable:
                self._primary.close()
                self._primary = None
        return None

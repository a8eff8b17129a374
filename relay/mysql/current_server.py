"""The server that a shard is being read from: its choice, opening and watch, and the switch to a better one."""

import logging
import time
from collections.abc import Callable, Iterable

from relay.errors import RelayError
from relay.gtid import GtidSet, parse
from relay.mysql.binlog.events import BinlogEvent, EventStream
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Diverged, Interrupted
from relay.mysql.gtids import SequencesRead, went_back
from relay.mysql.positions import BinlogPosition
from relay.mysql.probe import BackgroundProbe
from relay.mysql.roles import role_of
from relay.mysql.servers import LostPosition, ReadableServer, ShardServers
from relay.process.connections import closed_on_error
from relay.process.lost_often import ADVICE as LOST_OFTEN
from relay.process.lost_often import LostOften

log = logging.getLogger(__name__)

OpenEvents = Callable[[ServerConnection, GtidSet], EventStream]  # opens the events of a server after a GTID set

_ROLE_EVERY = 5.0  # seconds between two checks of the server's role and lag


class CurrentServer:
    """The connection to the server that a shard is read from, if there is one. Used by one thread at a time."""

    def __init__(self, source: str, shard: str, servers: ShardServers, open_events: OpenEvents) -> None:
        self.source = source
        self.shard = shard
        self.servers = servers
        self.open_events = open_events
        self.found: ReadableServer | None = None
        self._events: EventStream | None = None
        self._executed = parse("")  # everything that the server had executed at the last check
        self._sequences_read = SequencesRead()
        self._ask_role_at = 0.0
        self._losses = LostOften()
        self._search = BackgroundProbe(f"better-than-{shard}", servers.better, every=_ROLE_EVERY)

    @property
    def address(self) -> str | None:
        return self.found.server.account.address if self.found is not None else None

    @property
    def warning(self) -> str | None:
        """Why a server that is far behind is being read, and since when; None if none is."""
        trouble = self._search.trouble
        return f"read from {self.address}, which is far behind: {trouble}" if trouble else None

    @property
    def is_open(self) -> bool:
        return self._events is not None

    def open(self, position: BinlogPosition) -> LostPosition | None:
        """Read a server that can continue, or return the loss. Raises ``Unavailable``, ``RelayError``."""
        found = self.servers.find(position, self._sequences_read.by_domain)
        if isinstance(found, LostPosition):
            return found
        self.found = found
        with closed_on_error(self):
            self._executed = found.server.executed()
            if found.server.is_mariadb:
                self._sequences_read.learn(found.server.binlog_state(), position.executed)
            self._events = self.open_events(found.server, position.executed)
        level = logging.DEBUG if self._losses.is_often else logging.INFO
        log.log(level, "source %s: connected to %s to read shard %s", self.source, self.address, self.shard)
        self._ask_role_at = time.monotonic() + _ROLE_EVERY
        return None

    def read(self, timeout: float) -> list[BinlogEvent]:
        if self._events is None:
            raise RelayError(f"source {self.source}: shard {self.shard} has no open server")
        return self._events.read(timeout)

    def advanced(self, gtids: Iterable[str]) -> None:
        self._sequences_read.add(gtids)
        self.servers.advanced()

    def failed(self, error: RelayError) -> bool:
        """Remember why the server cannot be read, and close it. Return whether there was one."""
        if (found := self.found) is not None:
            is_lost = isinstance(error, Interrupted)  # I10: other errors say what to do, and are not hidden
            if is_lost and self._losses.note(time.monotonic()):
                log.warning(LOST_OFTEN, self.source, self.shard, error)
            else:
                level = logging.DEBUG if is_lost and self._losses.is_often else logging.WARNING
                log.log(level, "source %s: shard %s: %s", self.source, self.shard, error)
            self.servers.failed(found.server.account.address, error)
        self.close()
        return found is not None

    def close(self) -> None:
        self._search.close()
        for each in (self._events, self.found.server if self.found else None):
            if each is not None:
                each.close()
        self._events = self.found = None

    def _require_history(self, server: ServerConnection) -> None:
        """Raise ``Diverged`` if its binlogs were reset: it reuses the numbers, and sends no new transactions here."""
        before, now = self._executed, server.executed()
        if went_back(before, now):  # I9
            raise Diverged(
                f"{server.account.address}: its binlogs were reset: it had executed {before.position}, and now only "
                f"{now.position}"
            )
        self._executed = before | now

    def should_be_left(self, position: BinlogPosition) -> bool:
        """Check the role now and then. Return whether another server should be read. Raises ``Unavailable``."""
        if (found := self.found) is None:
            return False
        address = found.server.account.address
        if time.monotonic() >= self._ask_role_at:
            self._ask_role_at = time.monotonic() + _ROLE_EVERY
            self._require_history(found.server)
            before, found.role = found.role, role_of(found.server)
            self.servers.require(found.server, found.role)  # I1: filters may be set at any time
            has_changed = (found.role.is_replica, found.role.is_read_only) != (before.is_replica, before.is_read_only)
            if address not in self.servers.addresses():
                return True  # a reload has removed the server
            if has_changed or found.role.lag > self.servers.max_lag:
                self._search.start(address, position)
            else:
                self._search.forget()
        better = self._search.take()
        if better is not None:
            said = "source %s: shard %s: switching from %s to %s"
            log.info(said, self.source, self.shard, address, better, extra={"event": "failover"})
        return better is not None

"""Reads one shard from the binlogs of its servers, whichever of them can be read.

Positions are ``{"gtid": executed set}``, and inside a transaction ``"transaction"`` and ``"rows_done"`` besides: how
many of its rows, of relayed tables, are on the topic (I4). What is read is always what the executed set lacks, so it
does not matter from which server, and a failover neither loses nor doubles anything (I1, I3).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet, parse
from relay.lineage import Gap, Journal, StreamId
from relay.mysql.binlog.events import BinlogEvent
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Closed
from relay.mysql.layouts import Layouts
from relay.mysql.positions import TimestampMap
from relay.mysql.servers import LostPosition, ReadableServer, ShardServers, role_of
from relay.mysql.transactions import ShardTransactions
from relay.source import Opening, Page, ReadResult, Unreadable

log = logging.getLogger(__name__)

WAIT = 0.5
"""Seconds that a read waits for changes."""

_LOOK_EVERY = 2.0  # seconds between two questions for the head, while nothing comes
_ROLE_EVERY = 5.0  # seconds between two questions for what the server is, and how far behind
_PRIMARY_EVERY = 30.0  # seconds between two searches for a primary: one that is gone may take long to say so
_TELL_EVERY = 60.0  # seconds between two complaints about what is waited for
_SLACK = 1.0  # seconds: times are whole ones


class Events(Protocol):
    """What ``BinlogEvents`` does."""

    def read(self, timeout: float) -> list[BinlogEvent]: ...

    def close(self) -> None: ...


OpenEvents = Callable[[ServerConnection, GtidSet], Events]

End = Callable[[GtidSet], tuple[Journal, Mapping[str, Any]] | None]
"""Asked now and then, between two transactions, with the executed set: what follows a shard once others have taken its
place, and what its last position has to say besides. Raises ``Unavailable``, to be asked again."""


class BinlogShardReader:
    """The reader of one shard.

    ``events``: opens the stream of a server; the binlog itself unless given. ``times``: told when what came.
    """

    streams = True

    def __init__(
        self,
        stream: StreamId,
        opening: Opening,
        servers: ShardServers,
        layouts: Layouts,
        *,
        events: OpenEvents | None = None,
        end: End | None = None,
        times: TimestampMap | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.stream = stream
        self.shard = shard = opening.shard
        self.servers = servers
        self.layouts = layouts
        self.clock = clock
        position = opening.resume
        self.transactions = ShardTransactions(
            stream, shard.id, layouts, position, opening.floor, times or TimestampMap(), self._beat
        )
        self._open_events: OpenEvents = events or self._binlog
        self._end = end
        # MariaDB: the last sequence number that was read of each server, by domain.
        self._seen: dict[str, dict[str, int]] = {}
        self._read_before = ""
        self._events: Events | None = None
        self._found: ReadableServer | None = None
        self._primary: ServerConnection | None = None
        self._of_primary: GtidSet = parse("")
        # What the shard had executed, and when it was asked for.
        self._head: tuple[GtidSet, float] | None = None
        self._look_at = self._role_at = 0.0
        self._primary_at = self._told_at = -math.inf
        self._fault: RelayError | None = None

    def __repr__(self) -> str:
        at = f" on {self.address}" if self.address else ""
        return f"<BinlogShardReader[{self.shard.id} after {self.transactions.position}{at}]>"

    @property
    def address(self) -> str | None:
        """The server that is read, None while none is."""
        return self._found.server.account.address if self._found is not None else None

    def close(self) -> None:
        self._let_go()

    # ------------------------------------------------------------------ pages

    def read(self) -> ReadResult:
        """Return the next page. Raises ``RelayError`` on what is final."""
        if self._fault is not None:
            raise self._fault
        begun = self.clock()
        deadline = time.monotonic() + WAIT
        failed: str | None = None
        is_idle = is_full = has_lost = False
        while not is_full:
            if not self.transactions.waits:
                has_some = self.transactions.has_changes
                try:
                    if self._events is None and (gap := self._open()) is not None:
                        return self._page(begun, gap=gap)
                    assert self._events is not None
                    batch = self._events.read(0.0 if has_some else max(0.0, deadline - time.monotonic()))
                except Closed:
                    raise
                except Unavailable as error:
                    failed = str(error)
                    if self._lose(error) and not has_lost and not self.transactions.has_changes:
                        has_lost = True
                        continue  # perhaps another one can go on, or it is a gap: what was read comes before that
                    break
                except RelayError as error:
                    self._fault = error  # after what came before it
                    break
                failed = None
                if not batch:
                    is_idle = not has_some
                    break
                self.transactions.feed(batch)
            try:
                is_full = self.transactions.consume()
            except RelayError as error:
                self._fault = error  # as above
                break
            if time.monotonic() >= deadline:
                break
        page = self._ending(self._page(begun, full=is_full))
        if page.finished:
            return page
        if not page.changes and self._fault is not None:
            raise self._fault
        if not page.changes and failed is not None:
            return Unreadable(self.shard, begun, failed)
        self._look(is_idle)
        return page

    def _page(self, begun: float, *, full: bool = False, gap: Gap | None = None) -> Page:
        transactions = self.transactions
        if transactions.position != self._read_before:
            self._read_before = transactions.position
            self.servers.goes_on()
            self._remember()
        changes, size, tables, behind = transactions.take()
        return Page(
            self.shard,
            changes,
            transactions.where(),
            changes[-1].token if changes else None,
            transactions.progress,
            begun,
            records=len(changes),
            size=size,
            full=full or transactions.waits,
            gap=gap,
            behind=behind,
            tables=tables,
            reached=self._reached(),
        )

    def _ending(self, page: Page) -> Page:
        """Return ``page``, as the last one if others have taken this shard's place."""
        if self._end is None or not self.transactions.is_between:
            return page
        try:
            ended = self._end(self.transactions.executed)
        except Unavailable as error:
            if time.monotonic() >= self._told_at + _TELL_EVERY:
                self._told_at = time.monotonic()
                log.warning("source %s: shard %s goes on for now: %s", self.stream.source, self.shard.id, error)
            return page
        if ended is None:
            return page
        journal, more = ended
        # What waits lies after the executed set: the targets tell it.
        return replace(page, position={**self.transactions.where(), **more}, finished=True, full=False, journal=journal)

    def _beat(self, timestamp: int) -> None:
        """Take in a heartbeat: what was logged before it has come."""
        if self._found is None:
            return
        if self._head is not None and not self.transactions.executed.contains(self._head[0]):
            return  # MySQL sends them, too, while it passes over what was read before
        lag = self._found.role.lag if self._found.role.is_replica else 0.0
        reached = min(float(timestamp), self.clock()) - _SLACK - lag
        if reached > (self.transactions.progress or 0.0):
            self.transactions.progress = reached

    def _reached(self) -> float | None:
        """Return up to when everything was read, where the head that was asked for has been."""
        if self._head is None or not self.transactions.executed.contains(self._head[0]):
            return None
        reached, self._head = self._head[1], None
        return reached

    # ------------------------------------------------------------------ servers

    def _binlog(self, server: ServerConnection, executed: GtidSet) -> Events:
        return BinlogEvents(server, executed, self.layouts, self.layouts.wanted)

    def _open(self) -> Gap | None:
        """Connect to a server that can go on. Return what is lost, if none ever can."""
        asked, executed = self.clock(), self.transactions.executed
        found = self.servers.find(executed, self.transactions.local, self._seen, self.transactions.partly)
        if isinstance(found, LostPosition):
            begin = self.transactions.where()
            self.transactions.jump(found.resume)
            end = self.transactions.where()
            return Gap(self.stream.source, self.stream.label, self.shard.id, found.reason, begin, end, asked)  # I9
        self._found = found
        try:
            if found.server.is_mariadb:
                self._learn_state(found.server)
            self._events = self._open_events(found.server, executed)
        except BaseException:
            self._let_go()
            raise
        log.info("source %s: shard %s is read from %s", self.stream.source, self.shard.id, self.address)
        self.transactions.is_local = self._is_local
        self._head = (found.executed, asked)
        if found.role.is_replica:
            self._head = (self._ask_head(found), asked)
        now = time.monotonic()
        self._look_at, self._role_at = now + _LOOK_EVERY, now + _ROLE_EVERY
        return None

    def _lose(self, error: RelayError) -> bool:
        """Let go of a server that cannot be read. Return whether there was one."""
        found = self._found
        if found is not None:
            log.warning("source %s: shard %s: %s", self.stream.source, self.shard.id, error)
            self.servers.failed(found.server.account.address, error)
        self._let_go()
        return found is not None

    def _let_go(self) -> None:
        """Close the connections. What comes next follows the last whole page."""
        for each in (self._events, self._found.server if self._found else None, self._primary):
            if each is not None:
                each.close()
        if self._primary is not None:
            self._primary_at = -math.inf  # it answered
        self._of_primary = parse("")
        self._events = self._found = self._primary = None
        self._head = None
        self.transactions.is_local = None
        self.transactions.abort()

    def _learn_state(self, server: ServerConnection) -> None:
        """Learn how far each server has written each domain, as far as that was read."""
        ((text,),) = server.execute("SELECT @@global.gtid_binlog_state")
        read = {domain: sequence for domain, _, sequence in _gtids(str(self.transactions.executed))}
        for domain, origin, sequence in _gtids(str(text).replace("\n", "")):
            if sequence <= read.get(domain, 0):
                self._seen.setdefault(domain, {})[origin] = sequence

    def _remember(self) -> None:
        for domain, origin, sequence in _gtids(",".join(self.transactions.last.values())):
            self._seen.setdefault(domain, {})[origin] = sequence
        self.transactions.last.clear()

    def _look(self, is_idle: bool) -> None:
        """Ask now and then where the head is, and whether this is still the server to read."""
        now, found = time.monotonic(), self._found
        if found is None:
            return
        try:
            if is_idle and self._head is None and now >= self._look_at:
                self._look_at = now + _LOOK_EVERY
                asked = self.clock()
                self._head = (self._ask_head(found), asked)
            if now >= self._role_at:
                self._role_at = now + _ROLE_EVERY
                before, found.role = found.role, role_of(found.server)
                changed = (found.role.is_replica, found.role.is_read_only) != (before.is_replica, before.is_read_only)
                address = found.server.account.address
                if address not in self.servers.addresses():
                    self._let_go()  # the config was read again
                elif changed or found.role.lag > self.servers.max_lag:
                    executed, local = self.transactions.executed, self.transactions.local
                    better = self.servers.better(address, executed, local, self.transactions.partly)
                    if better is not None:
                        log.info("source %s: shard %s: %s is better", self.stream.source, self.shard.id, better)
                        self._let_go()
        except Unavailable as error:
            self._lose(error)

    def _ask_head(self, found: ReadableServer) -> GtidSet:
        """Return what the shard has executed: its primary, if one answers, else the server that is read."""
        head = self._ask_primary() if found.role.is_replica else None
        return found.server.executed() if head is None else head

    def _ask_primary(self) -> GtidSet | None:
        if self._primary is None and time.monotonic() >= self._primary_at:
            self._primary_at = time.monotonic() + _PRIMARY_EVERY
            self._primary = self.servers.primary()
        if self._primary is not None:
            try:
                return self._primary.executed()
            except Unavailable:
                self._primary.close()
                self._primary = None
        return None

    def _is_local(self, gtid: str) -> bool:
        """Whether only the replica that is read has a transaction.

        MySQL names those of a former primary as it would those that were made on it since: the primary has the former.
        """
        found = self._found
        if found is None or not found.role.is_local(found.server, gtid):
            return False
        if found.server.is_mariadb:
            return True
        asked = parse(gtid)
        if not self._of_primary.contains(asked):
            self._of_primary = self._ask_primary() or self._of_primary
            if self._primary is None and self.servers.has_unasked:
                return False  # a primary that does not answer may have it; one that never had it has lost it (I9)
        return not self._of_primary.contains(asked)


def _gtids(text: str) -> list[tuple[str, str, int]]:
    """Take MariaDB's GTIDs apart: domain, server and sequence number of each."""
    found = []
    for gtid in text.split(",") if text else ():
        domain, server, sequence = gtid.split("-")
        found.append((domain, server, int(sequence)))
    return found

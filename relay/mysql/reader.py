"""Reads one shard from any of its servers that can be read: a failover neither loses nor repeats anything (I1, I3)."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet
from relay.mysql.binlog.files import purged
from relay.mysql.connection import ServerConnection
from relay.mysql.current_server import CurrentServer, OpenEvents
from relay.mysql.errors import BinlogPurged, Closed, Interrupted
from relay.mysql.head import ShardHead
from relay.mysql.positions import BinlogPosition
from relay.mysql.relayed_tables import Layouts
from relay.mysql.reshard import HandoverCheck
from relay.mysql.servers import ShardServers
from relay.mysql.transactions import Consumed, ShardTransactions
from relay.mysql_dialect.snapshot_times import LATENESS
from relay.process.seldom import Seldom
from relay.records import Gap, Shard
from relay.source import LastPage, Page, PageCounts, ReadResult, Unreadable

log = logging.getLogger(__name__)

WAIT = 0.5  # seconds that a read waits for changes
_ROUNDING = 1.0  # seconds: binlogs have whole seconds


class BinlogShardReader:
    """The reader of one shard. ``server``: the server being read. ``transactions``: what was read."""

    streams = True

    def __init__(
        self,
        shard: Shard,
        position: BinlogPosition,
        servers: ShardServers,
        layouts: Layouts,
        open_events: OpenEvents,
        *,
        floor: int = 0,
        find_handover: HandoverCheck | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.stream = layouts.stream
        self.shard = shard
        self.clock = clock
        self.server = CurrentServer(layouts.source, shard.id, servers, open_events)
        self.head = ShardHead(servers, clock)
        self.transactions = ShardTransactions(shard.id, layouts, position, floor, self._is_local, clock)
        self._find_handover = find_handover
        self._has_looked = False
        self._progress: float | None = None  # seconds up to which the shard was read
        # Seconds by the server's clock: the last heartbeat. Then, if they are in doubt, the transactions that it has
        # executed but no longer logs, when they were checked, and the executed position at that time; otherwise None.
        self._heartbeat = 0
        self._unlogged: tuple[GtidSet, float, str] | None = None
        # The last executed position after which the connection was replaced because it sent nothing.
        self._silent_after = ""
        self._paged_position = ""  # the executed position of the last page
        self._warning = Seldom()
        # The error or gap that ends the reading, once everything before it was returned.
        self._error: RelayError | None = None

    def close(self) -> None:
        """Close the connections. Reading continues after the last returned row."""
        self._disconnect()
        if self._find_handover is not None:
            self._find_handover.close()

    def _disconnect(self) -> None:
        self.server.close()
        self.head.close()
        self.transactions.drop_events()
        self._heartbeat, self._unlogged = 0, None

    def read(self) -> ReadResult:
        """Return the next page. Raises ``RelayError`` for errors that a retry cannot repair."""
        if self._error is not None:
            raise self._error
        begun = self.clock()
        deadline = time.monotonic() + WAIT
        failure: str | None = None
        is_full = has_failed_over = False
        while not is_full:
            if not self.transactions.has_events:
                has_changes = self.transactions.has_changes
                try:
                    if not self.server.is_open and (gap := self._open()) is not None:
                        return self._page(begun, gap=gap)
                    events = self.server.read(0.0 if has_changes else max(0.0, deadline - time.monotonic()))
                except Closed:
                    raise
                except Unavailable as error:
                    failure = str(error)
                    if self._leave(error) and not has_failed_over and not self.transactions.has_changes:
                        has_failed_over = True
                        continue  # perhaps another server can continue, or this is a gap
                    break  # changes already read are returned before a gap
                except RelayError as error:
                    self._error = error
                    break
                failure = None
                if not events:
                    break
                self.transactions.feed(events)
            consumed = self.transactions.consume()
            self._advance(consumed)
            if consumed.lost is not None:
                begin, reason = consumed.lost
                return self._page(begun, gap=self._gap(reason, begin, begun))
            is_full, self._error = consumed.is_full, consumed.error
            try:
                self._check_altered(consumed.defined)
            except Unavailable as error:
                failure = str(error)
                self._leave(error)
                break
            except RelayError as error:
                self._error = error
            if self._error is not None or time.monotonic() >= deadline:
                break
        page = self._handed_over(self._page(begun, full=is_full))
        if page.finished:
            return page
        if not page.has_content and self._error is not None:
            raise self._error
        if failure is not None and not page.has_content:  # I1
            return Unreadable(self.shard, begun, failure)
        self._check_server(is_idle=not page.has_content)
        if page.warning is not None and self._warning.is_due():
            log.warning("source %s: shard %s: %s", self.stream.source, self.shard.id, page.warning)
        return page

    def _page(self, begun: float, *, full: bool = False, gap: Gap | None = None) -> Page:
        transactions = self.transactions
        if transactions.executed_position != self._paged_position:
            self._paged_position = transactions.executed_position
            self.server.advanced(transactions.take_last_gtids())
        changes, size, tables, behind = transactions.take()
        statements = transactions.changes.take_schema_changes()
        return Page(
            self.shard,
            changes,
            transactions.position.to_json(),
            transactions.changes.tally.token if statements else changes[-1].token if changes else None,
            self._progress,
            begun,
            counts=PageCounts(len(changes) + len(statements), size, behind),
            pause=0.0 if full or transactions.has_events else None,
            gap=gap,
            tables=tables,
            reached=self._reached(),
            schema_changes=statements,
            warning=self.server.warning,
        )

    def _reached(self) -> float | None:
        """Return ``Page.reached``. Later tokens have no timestamp before the one of `lowest`."""
        transactions = self.transactions
        if not transactions.is_between_transactions:
            return None  # the open transaction already has its token
        reached = self.head.take_reached(transactions.executed)
        if reached is not None:
            changes = transactions.changes
            changes.floor = max(changes.floor, int(reached - LATENESS))  # I7: a snapshot relies on `lowest`
        return reached

    def _handed_over(self, page: Page) -> Page:
        """Return ``page``, marked as the last one if other shards take over from this one."""
        if self._find_handover is None or not self.transactions.is_between_transactions:
            return page
        try:
            handover = self._find_handover(self.transactions.executed)
        except Unavailable as error:
            waits = f"no handover to the shards that replace it yet: {error}"
            return replace(page, warning=f"{page.warning}; {waits}" if page.warning else waits)
        if handover is None:
            return page
        # Events that were not consumed come after the executed set: the targets have them.
        position = replace(self.transactions.position, targets=handover.targets)
        return replace(page, position=position.to_json(), pause=None, end=LastPage(handover.journal))

    def _advance(self, consumed: Consumed) -> None:
        """Move the progress to the last transaction or heartbeat: everything logged before it was read."""
        if consumed.committed is not None:
            self._progress = float(consumed.committed)
        if consumed.heartbeat is not None:
            self._heartbeat = consumed.heartbeat
        found = self.server.found
        # MySQL also sends heartbeats while it skips transactions that were read before.
        if consumed.heartbeat is None or found is None or not self.head.is_read(self.transactions.executed):
            return
        until = min(float(consumed.heartbeat), self.clock()) - _ROUNDING - found.role.lag
        if until > (self._progress or 0.0):
            self._progress = until

    def _open(self) -> Gap | None:
        """Connect to a server that can continue. Return the loss if none ever can."""
        asked, begin = self.clock(), self.transactions.position
        lost = self.server.open(begin)
        if lost is not None:
            self.transactions.skip_to(lost.resume)
            return self._gap(lost.reason, begin, asked)  # I9
        if self.server.found is not None:
            self.head.start(self.server.found, asked)
            self._look_at_tables(self.server.found.server)
        return None

    def _gap(self, reason: str, begin: BinlogPosition, asked: float) -> Gap:
        stream, end = self.stream, self.transactions.position.to_json()
        return Gap(stream.source, stream.label, self.shard.id, reason, begin.to_json(), end, asked)

    def _check_altered(self, defined: Sequence[str]) -> None:
        """Check tables changed by a statement, before their next rows. Raises ``Unavailable``, ``RelayError``."""
        if (found := self.server.found) is not None:
            for table in defined:
                self.transactions.statements.layouts.check(found.server, [table])  # I8

    def _look_at_tables(self, server: ServerConnection) -> None:
        """Look up the tables once. Reading does not depend on the answer."""
        if self._has_looked:
            return
        self._has_looked, statements = True, self.transactions.statements
        try:
            statements.followed.look(statements.layouts.now(server))
        except Unavailable as error:
            what = "its next statements may be published without the columns before them"
            log.warning("source %s: shard %s: %s: %s", self.stream.source, self.shard.id, what, error)

    def _leave(self, error: RelayError) -> bool:
        had_server = self.server.failed(error)
        self._disconnect()
        return had_server

    def _check_server(self, *, is_idle: bool) -> None:
        """Check now and then the head, and whether another server should be read."""
        if (found := self.server.found) is None:
            return
        try:
            self.head.ask_again(found, is_idle)
            self._require_binlogs(found.server, found.role.is_primary)
            if self.server.should_be_left(self.transactions.position):
                self._disconnect()
        except Unavailable as error:
            self._leave(error)

    def _require_binlogs(self, server: ServerConnection, is_primary: bool) -> None:
        """Raise ``BinlogPurged`` for transactions added to a MySQL server's executed set without its binlog (I9).

        The server never sends them, and would report that only on a new connection. A server also stops sending after
        its binlogs were reset and its executed set was restored. Raise ``Interrupted`` then, to connect again (I1).
        """
        if self._unlogged is None:
            if not server.is_mariadb and self.head.is_overdue():
                self._unlogged = purged(server), server.clock(), self.transactions.executed_position
            return
        unlogged, asked, position = self._unlogged
        if self._heartbeat <= asked:
            return  # they may be on their way
        self._unlogged = None
        if lost := unlogged - self.transactions.executed:
            raise BinlogPurged(
                f"{server.account.address}: it has no binlog of {lost}, which was added to its gtid_purged after "
                f"{self.transactions.executed_position} was read"
            )
        # Once for each position, because the server also sends heartbeats while it skips earlier transactions.
        if (
            position == self.transactions.executed_position != self._silent_after
            and is_primary
            and not self.head.is_read(self.transactions.executed)
        ):
            self._silent_after = position
            raise Interrupted(
                f"{server.account.address}: it has executed transactions after {position} but does not send them: its "
                "binlogs may have been reset"
            )

    def _is_local(self, gtid: str) -> bool:
        found = self.server.found
        return found is not None and self.head.is_local(found, gtid)

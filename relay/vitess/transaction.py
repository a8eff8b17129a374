"""The transaction whose events are arriving: its GTID and position, and the rows that wait for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from relay.errors import RelayError
from relay.gtid import GtidError
from relay.mysql_dialect.followed_tables import AppliedStatement
from relay.mysql_dialect.tables import Table
from relay.vitess.failures import BrokenStream
from relay.vitess.position import VStreamPosition, added, including
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard import VitessShard


@dataclass(slots=True)
class VStreamTransaction:
    """One transaction of a shard's stream. Its rows wait until the position at its end has come.

    That is usually in the same answer of vtgate, and then its GTID and position need not be computed.

    ``is_open``: whether BEGIN or a row has come. ``gtid``: "" until vtgate or a position names it. ``timestamp``:
    seconds. ``begun_at``: bytes of the stream before it. ``has_changes``: whether its rows have started to become
    changes; before that they are ``waiting``. ``emptied``: tables that a statement in it empties. ``statements``: its
    published ones. ``executed``: the set at its end in canonical form, "" until that has come.
    """

    is_open: bool = False
    gtid: str = ""
    timestamp: int = 0
    begun_at: int = 0
    has_changes: bool = False
    waiting: list[pb.RowEvent] = field(default_factory=list)
    emptied: list[Table] = field(default_factory=list)
    statements: list[AppliedStatement] = field(default_factory=list)
    executed: str = ""

    def begin(self, event: pb.VEvent, bytes_in: int) -> None:
        """Start at ``event``, after ``bytes_in`` bytes of the stream."""
        self.is_open = True
        self.gtid = event.event_gtid
        self.timestamp = event.timestamp
        self.begun_at = bytes_in

    def end_after(self, executed: str) -> str:
        """Return the executed set at its end, also before that has come. ``executed``: the set before it."""
        try:
            return self.executed or including(executed, self.gtid)
        except (GtidError, ValueError) as error:
            raise BrokenStream(f"cannot add transaction {self.gtid!r} to {executed}: {error}") from None

    def name_after(self, executed: str) -> str:
        """Return its GTID, or else what its end adds to ``executed``; "" if that is nothing."""
        return self.gtid or added(executed, self.end_after(executed))

    def position_after(self, position: VStreamPosition) -> VStreamPosition:
        """Return the position at its end. ``position``: the one before it."""
        executed = self.end_after(position.executed) if self.executed or self.gtid else position.executed
        if position.transaction and (not position.done or self.gtid == position.transaction):
            position = replace(position, transaction="", done={})
        return replace(position, executed=executed)

    def is_ready(self, waiting: int, position: VStreamPosition, shard: VitessShard, settings: VStreamSettings) -> bool:
        """Whether ``waiting`` bytes of rows need not wait for its end. ``RelayError`` if too many have to (I11)."""
        if self.gtid:
            return waiting > settings.page_bytes
        if waiting > settings.largest_unnamed:
            raise RelayError(
                f"shard {shard.qualified}: a transaction after {position.executed} exceeds "
                f"{settings.largest_unnamed >> 20} MiB, and this vtgate sends its GTID only at the end: upgrade to "
                "Vitess v23 or later, or split the transaction and reset the source to a position after this one"
            )
        return False

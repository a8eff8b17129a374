"""The transaction whose events are arriving: its GTID and position, and the rows that wait for them."""

from __future__ import annotations

from dataclasses import replace

from relay.errors import RelayError
from relay.gtid import GtidError
from relay.mysql_dialect.followed_tables import AppliedStatement
from relay.mysql_dialect.tables import Table
from relay.vitess.failures import BrokenStream
from relay.vitess.position import VStreamPosition, added, canonical, including
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard import VitessShard


class VStreamTransaction:
    """One transaction of a shard's stream. Its rows wait until the position at its end has come.

    That is usually in the same answer of vtgate, and then its GTID and position need not be computed.
    """

    __slots__ = (
        "begun_at",
        "emptied",
        "executed",
        "gtid",
        "has_changes",
        "is_open",
        "statements",
        "timestamp",
        "vgtid",
        "waiting",
    )

    def __init__(self) -> None:
        # Whether BEGIN or a row has come.
        self.is_open = False
        self.gtid = ""  # until vtgate or a position names it
        self.timestamp = 0  # seconds
        # Bytes of the stream before the transaction.
        self.begun_at = 0
        # Whether its rows have started to become changes; before that they wait.
        self.has_changes = False
        self.waiting: list[pb.RowEvent] = []
        # Tables that a statement in it empties.
        self.emptied: list[Table] = []
        # The statements in it that are published.
        self.statements: list[AppliedStatement] = []
        # The position at its end, and the executed set of that in canonical form; None and "" until it has come.
        self.vgtid: pb.ShardGtid | None = None
        self.executed = ""

    @property
    def is_empty(self) -> bool:
        """Whether none of its events has come."""
        return not (self.is_open or self.has_changes or self.waiting or self.emptied or self.statements or self.vgtid)

    def begin(self, event: pb.VEvent, bytes_in: int) -> None:
        """Start at ``event``, after ``bytes_in`` bytes of the stream."""
        self.is_open = True
        self.gtid = event.event_gtid
        self.timestamp = event.timestamp
        self.begun_at = bytes_in

    def set_end(self, vgtid: pb.VGtid, shard: VitessShard) -> None:
        """Take the position at its end from ``vgtid``. Raises `BrokenStream` if it has no usable one (I4)."""
        for position in vgtid.shard_gtids:
            if position.shard == shard.name and position.keyspace == shard.keyspace:
                try:
                    self.executed = canonical(position.gtid)
                except GtidError as error:
                    raise BrokenStream(f"a position cannot be read: {error}") from None
                self.vgtid = position
                return
        raise BrokenStream(f"a position lacks {shard.keyspace}/{shard.name}")

    def end_by_gtid(self, executed: str) -> str:
        """Return ``executed``, the set before it, plus its GTID."""
        return _including(executed, self.gtid)

    def end_after(self, executed: str) -> str:
        """Return the executed set at its end, also before that has come. ``executed``: the set before it."""
        return self.executed or _including(executed, self.gtid)

    def name_after(self, executed: str) -> str:
        """Return its GTID, or else what its end adds to ``executed``; "" if that is nothing."""
        return self.gtid or added(executed, self.end_after(executed))

    def position_after(self, position: VStreamPosition) -> VStreamPosition:
        """Return the position at its end. ``position``: the one before it."""
        executed = position.executed
        if self.vgtid is not None:
            executed = self.executed
        elif self.gtid:
            executed = _including(executed, self.gtid)
        if position.transaction and (not position.done or self.gtid == position.transaction):
            position = replace(position, transaction="", done={})
        return position.advanced_to(executed)

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


def _including(executed: str, transaction: str) -> str:
    try:
        return including(executed, transaction)
    except (GtidError, ValueError) as error:
        raise BrokenStream(f"cannot add transaction {transaction!r} to {executed}: {error}") from None

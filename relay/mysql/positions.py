"""How far a shard was read, and the JSON for that in checkpoints, gaps and plans."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from relay.gtid import GtidSet, parse
from relay.mysql.binlog.events import TransactionBegin
from relay.mysql_dialect.streamed_transaction import PublishedRows, furthest, position_fields
from relay.records import Position


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """What was read and published. Reading continues with all other transactions, from any server (I1, I3)."""

    gtid: str  # the GTID set of all transactions that were read completely, with the flavour in front
    partial: Mapping[str, PublishedRows] = field(default_factory=dict)
    """By GTID: the published rows of relayed tables in transactions read in part, the next one first (I4)."""
    local: GtidSet = field(default_factory=lambda: parse(""))
    """Transactions in ``gtid`` or ``partial`` that only a replica has, because it made them itself."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """By shard: the GTID set after which each target of a reshard is read. Only in a shard's last position."""
    made_at: Mapping[str, int] = field(default_factory=dict)
    """By GTID: when the transactions in ``partial`` were made, if known. See ``PartlyRead.begin``."""
    left_out: tuple[str, ...] = ()
    """The tables that have lost their key and whose rows are left out since. A gap reports this (I9)."""

    @classmethod
    def from_json(cls, raw: Position) -> Self:
        """Read a position. Raises ``KeyError`` without ``gtid``, ``GtidError``."""
        local, targets = parse(raw.get("local", "")), raw.get("targets", {})
        left_out = tuple(raw.get("left_out", ()))
        return cls(raw["gtid"], raw.get("rows_of", {}), local, targets, raw.get("made_at", {}), left_out)

    @property
    def executed(self) -> GtidSet:
        return parse(self.gtid)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The transactions read in part whose rest any server has, without those that only a replica has."""
        return tuple(gtid for gtid in self.partial if not self.local.contains(parse(gtid)))

    @property
    def needed(self) -> GtidSet:
        """What another server of the shard needs in order to lack nothing that was published, even in part."""
        needed = self.executed - self.local
        for gtid in self.unfinished:
            needed = needed | parse(gtid)
        return needed

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for checkpoints: equal positions give equal bytes."""
        local, left_out = self.local.position if self.local else "", list(self.left_out)
        more = {"local": local, "targets": dict(self.targets), "made_at": dict(self.made_at), "left_out": left_out}
        fields = {name: value for name, value in more.items() if value}
        return {"gtid": self.gtid, **position_fields(self.partial), **fields}


class PartlyRead:
    """The transactions published in part, which any server may end: several, as servers commit in different orders."""

    def __init__(self, position: BinlogPosition) -> None:
        self._rows: dict[str, PublishedRows] = dict(position.partial)
        # See ``BinlogPosition.made_at``; and the last transaction that began.
        self._made_at: dict[str, int] = dict(position.made_at)
        self._begun: tuple[str, int | None] = ("", None)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def rows(self, gtid: str) -> PublishedRows | None:
        return self._rows.get(gtid)

    def begin(self, begun: TransactionBegin) -> bool:
        """Begin a transaction. Return whether rows of another one with its GTID, which a crash cut off, were published.

        In MySQL, all servers have one time for a transaction. In MariaDB, the server that made it has the latest time:
        the others have the time of its last statement.
        """
        at, before = begun.committed_at or begun.timestamp, self._made_at.get(begun.gtid)
        is_exact = bool(begun.committed_at) or begun.made_here
        self._begun = begun.gtid, at if is_exact else None
        if before is None:
            return False
        return at != before if is_exact else at > before  # I1: that many of its rows would be skipped

    def position(self, executed: str, local: GtidSet, begun: str | None, rows: PublishedRows) -> BinlogPosition:
        """Return the position after ``executed``. ``begun``: the open transaction; ``rows``: its rows read so far."""
        partial = dict(self._rows)
        if begun is not None and (done := furthest(rows, partial.pop(begun, {}))):
            partial = {begun: done, **partial}
        known = dict([self._begun]) | self._made_at
        made_at = {gtid: at for gtid in partial if (at := known.get(gtid)) is not None}
        return BinlogPosition(executed, partial, local, made_at=made_at)

    def leave(self, gtid: str, rows: PublishedRows) -> None:
        """Stop reading the open transaction, after these rows of it. Another server may send it again."""
        if done := furthest(rows, self._rows.get(gtid, {})):
            self._rows[gtid] = done
            if (at := self._begun[1]) is not None:
                self._made_at.setdefault(gtid, at)

    def forget(self, gtid: str) -> None:
        """Forget a transaction that was read to its end, or that turned out to be a different one."""
        self._rows.pop(gtid, None)
        self._made_at.pop(gtid, None)

    def clear(self) -> None:
        self._rows.clear()
        self._made_at.clear()

"""How far a shard has been read, and the JSON that checkpoints, gaps and plans have of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.gtid import GtidSet, parse
from relay.mysql_dialect.streamed_transaction import PublishedRows, position_fields
from relay.records import Position


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """What was read and published. The next transactions are the ones not in it, from whatever server (I1, I3).

    Checkpoints hold its JSON. Equal positions must give equal bytes.
    """

    gtid: str
    """The GTID set of all transactions that were read completely, with the flavour in front."""
    partial: Mapping[str, PublishedRows] = field(default_factory=dict)
    """By GTID: the rows of relayed tables that were published of transactions read in part, the next one first (I4)."""
    local: GtidSet = field(default_factory=lambda: parse(""))
    """Transactions in ``gtid`` or ``partial`` that only a replica has: it made them itself."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """By shard: the GTID set after which each target of a reshard is read. Only in the last position of a shard."""
    made_at: Mapping[str, int] = field(default_factory=dict)
    """By GTID: when the transactions in ``partial`` were made, if that is known. See ``PartlyRead.begin``."""

    @classmethod
    def from_json(cls, raw: Position) -> BinlogPosition:
        """Read a position. Raises ``KeyError`` without ``gtid``, ``GtidError``."""
        local, targets = parse(raw.get("local", "")), raw.get("targets", {})
        return cls(raw["gtid"], raw.get("rows_of", {}), local, targets, raw.get("made_at", {}))

    @property
    def executed(self) -> GtidSet:
        return parse(self.gtid)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The transactions read in part whose rest any server has, except ones that only a replica has."""
        return tuple(gtid for gtid in self.partial if not self.local.contains(parse(gtid)))

    @property
    def needed(self) -> GtidSet:
        """What another server of the shard has to have, so that it lacks nothing that was published, even in part."""
        needed = self.executed - self.local
        for gtid in self.unfinished:
            needed = needed | parse(gtid)
        return needed

    def to_json(self) -> dict[str, Any]:
        position: dict[str, Any] = {"gtid": self.gtid, **position_fields(self.partial)}
        if self.local:
            position["local"] = self.local.position
        if self.targets:
            position["targets"] = dict(self.targets)
        if self.made_at:
            position["made_at"] = dict(self.made_at)
        return position

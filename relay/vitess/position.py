"""The names of a shard of a keyspace, how far it has been read, and the JSON that checkpoints keep of that.

``{"gtid": ...}`` covers everything up to an executed set. In the middle of a transaction, ``transaction`` names it,
``rows_done`` counts its published rows and ``rows_of`` counts them by table: reading resumes before the transaction
and skips those rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidError, GtidSet
from relay.mysql_dialect.streamed_transaction import PublishedRows, position_fields
from relay.records import Position, Shard, Start, StreamId
from relay.vitess.failures import BrokenStream
from relay.vitess.proto import vtgate_pb2 as pb

_RESHARD = 1  # a journal's migration type


@dataclass(frozen=True, slots=True)
class VitessShard:
    """A shard as vtgate, tokens and messages name it."""

    source: str
    keyspace: str
    name: str  # in the topology of ``keyspace``
    qualified: str  # ``<source>/<keyspace>/<shard>``: globally unique

    @classmethod
    def of(cls, stream: StreamId, shard: Shard, keyspace: str) -> VitessShard:
        """Return the names of ``shard``, which is in ``keyspace`` unless it names another."""
        other, _, name = shard.name.rpartition("/")
        return cls(stream.source, other or keyspace, name, stream.qualified(shard.id))

    def is_ended_by(self, journal: pb.Journal) -> bool:
        """Whether the journal belongs to a reshard that ends the shard."""
        here = pb.KeyspaceShard(keyspace=self.keyspace, shard=self.name)
        return journal.migration_type == _RESHARD and here in journal.participants


@dataclass(frozen=True, slots=True)
class VStreamPosition:
    executed: str  # in canonical form, with its flavour in front
    transaction: str = ""  # the GTID of the next transaction, if some of its rows are published
    done: PublishedRows = field(default_factory=dict)  # how many rows of ``transaction`` are published
    left_out: tuple[str, ...] = ()  # tables left out since they lost their key or moved elsewhere, as a gap says
    # By name of a moved and removed table: the executed set when another table got the name; "" before that.
    remade: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, position: Position | Start, shard: str) -> VStreamPosition:
        """Read a position, or a start that has one. Raises ``RelayError`` naming ``shard``."""
        try:
            executed = canonical(position["gtid"])
        except (KeyError, TypeError, GtidError) as error:
            raise RelayError(
                f"shard {shard}: cannot start at {dict(position)!r} ({error}): expected a position such as "
                '{"gtid": "MySQL56/..."} or {"gtid": "MariaDB/..."}'
            ) from None
        transaction = position.get("transaction", "")
        done = position.get("rows_of", {}).get(transaction, {})
        return cls(executed, transaction, done, tuple(position.get("left_out", ())), position.get("remade", {}))

    def to_json(self) -> dict[str, Any]:
        remade = {"remade": dict(self.remade)} if self.remade else {}
        left_out = {"left_out": list(self.left_out)} if self.left_out else {}
        partial = position_fields({self.transaction: self.done} if self.done else {})
        return {"gtid": self.executed, **partial, **left_out, **remade}

    @property
    def needed(self) -> GtidSet:
        """The set that a tablet needs, so that it has every transaction that is published, even in part."""
        return gtid.parse(including(self.executed, self.transaction) if self.transaction else self.executed)

    def check_history(self, transaction: str, executed: str, shard: VitessShard) -> None:
        """Raise ``RelayError`` if another transaction has the place of the one whose rows are published in part.

        ``transaction``: the GTID of the next transaction. ``executed``: the set at its end.
        """
        if not self.done or transaction in ("", self.transaction) or not executed.startswith("MariaDB/"):
            return
        if gtid.parse(executed).contains(gtid.parse(f"MariaDB/{self.transaction}")):  # I10
            raise RelayError(
                f"shard {shard.qualified} is at {transaction} without {self.transaction}, of which rows were read: the "
                f"database has lost it. Reset the source: `relay reset CONFIG {shard.source} --to ...`"
            )


def position_in(vgtid: pb.VGtid, shard: VitessShard) -> tuple[pb.ShardGtid, str]:
    """Return the position of ``shard``, and its executed set in canonical form. Raises `BrokenStream` without one."""
    for position in vgtid.shard_gtids:
        if position.shard == shard.name and position.keyspace == shard.keyspace:
            try:
                return position, canonical(position.gtid)
            except GtidError as error:
                raise BrokenStream(f"vtgate sent a position that cannot be read: {error}") from None  # I4
    raise BrokenStream(f"vtgate sent a position without {shard.keyspace}/{shard.name}")


def canonical(text: str) -> str:
    """Return an executed set in canonical form, flavour in front. ``GtidError`` for `current`, "" and other texts."""
    if text.startswith("MariaDB/") and "," not in text and text.count("-") == 2:
        return text  # a single GTID is in canonical form
    found = gtid.parse(text)
    if not found:
        raise GtidError(f"{text!r} is an empty GTID set")
    return found.position


def including(executed: str, transaction: str) -> str:
    """Return the executed set plus one transaction, whose GTID has no flavour."""
    flavour = executed.partition("/")[0]
    return (gtid.parse(executed) | gtid.parse(f"{flavour}/{transaction}")).position


def added(before: str, after: str) -> str:
    """Return the GTID of the one transaction between two executed sets, for servers that do not name it."""
    return (gtid.parse(after) - gtid.parse(before)).last

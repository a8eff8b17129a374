"""How far a shard has been read, and the JSON that checkpoints keep of it.

``{"gtid": ...}`` covers everything up to an executed set. In the middle of a transaction, ``transaction`` names it,
``rows_done`` counts its published rows and ``rows_of`` counts them by table: reading resumes before the transaction
and skips them. During a copy, ``copied`` lists the copied tables and ``table_pks`` holds vtgate's own position in the
table being copied. Checkpoints hold this JSON: any change must keep reading what older versions wrote.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidError
from relay.lineage import Position, Start
from relay.sql.published_rows import PublishedRows, position_fields, rows_in_position
from relay.vitess.proto import vtgate_pb2 as pb


@dataclass(frozen=True, slots=True)
class VStreamPosition:
    """A position in the stream of one shard."""

    executed: str
    """The executed set in canonical form, flavour in front; "" until the first batch of a copy gives one."""
    copied: tuple[str, ...] | None = None
    """The tables that have been copied; None if no copy is under way."""
    pks: tuple[pb.TableLastPK, ...] = ()
    """The last primary key copied of the table being copied."""
    transaction: str = ""
    """The GTID of the next transaction, if some of its rows are published."""
    done: PublishedRows = field(default_factory=dict)
    """How many rows of ``transaction`` are published."""

    @classmethod
    def from_json(cls, position: Position | Start, shard: str) -> VStreamPosition:
        """Read a position, or a start such as ``{"type": "copy"}``. Raises ``RelayError`` naming ``shard``."""
        if position.get("type") == "copy":
            return cls("", ())
        try:
            executed = canonical(position["gtid"])
            pks = tuple(
                pb.TableLastPK(table_name=pk["table"], lastpk=pb.QueryResult.FromString(base64.b64decode(pk["lastpk"])))
                for pk in position.get("table_pks") or ()
            )
        except (KeyError, TypeError, GtidError, DecodeError, binascii.Error) as error:
            raise RelayError(
                f"shard {shard}: cannot start at {dict(position)!r} ({error}): expected a position such as "
                '{"gtid": "MySQL56/..."} or {"gtid": "MariaDB/..."}'
            ) from None
        copied = tuple(position["copied"]) if "copied" in position else None
        transaction = position.get("transaction", "")
        return cls(executed, copied, pks, transaction, rows_in_position(position).get(transaction, {}))

    def to_json(self) -> dict[str, Any] | None:
        """Return the position as JSON; None if a stream could not resume at it (I4)."""
        if not self.executed:
            return None
        found: dict[str, Any] = {"gtid": self.executed}
        if self.copied is not None:
            found["copied"] = list(self.copied)
            found["table_pks"] = [
                {"table": pk.table_name, "lastpk": base64.b64encode(pk.lastpk.SerializeToString()).decode()}
                for pk in self.pks
            ]
        if self.done:
            found |= position_fields({self.transaction: self.done})
        return found

    @property
    def copying(self) -> list[str]:
        """The table whose copy is incomplete, if any."""
        return [pk.table_name for pk in self.pks]

    def may_cover_rows_of(self, table: str) -> bool:
        """Whether rows of ``table`` may have been published: not before its copy starts."""
        return self.copied is None or table in self.copied or table in self.copying

    def advanced_to(self, executed: str) -> VStreamPosition:
        """Return the position after the transaction that ends at ``executed``."""
        # Called for each transaction, and several times faster than `replace`.
        return VStreamPosition(executed, self.copied, self.pks, self.transaction, self.done)


def canonical(text: str) -> str:
    """Return the canonical form of an executed set, flavour in front.

    Raises ``GtidError`` for `current`, an empty set and anything that is not a set.
    """
    if text.startswith("MariaDB/") and "," not in text and text.count("-") == 2:
        return text  # a single GTID is in canonical form
    found = gtid.parse(text)
    if not found:
        raise GtidError(f"{text!r} is an empty GTID set")
    return found.position


def including(executed: str, transaction: str) -> str:
    """Return the executed set plus one transaction, whose GTID has no flavour."""
    # The usual case, several times faster than parsing: the next transaction of the only domain.
    if executed.startswith("MariaDB/") and "," not in executed:
        domain, _, sequence = executed[8:].partition("-")
        mine, _, theirs = transaction.partition("-")
        if domain == mine and int(theirs.rpartition("-")[2]) > int(sequence.rpartition("-")[2]):
            return f"MariaDB/{transaction}"
    flavour = executed.partition("/")[0]
    return (gtid.parse(executed) | gtid.parse(f"{flavour}/{transaction}")).position


def added(before: str, after: str) -> str:
    """Return the GTID of the one transaction between two executed sets, for servers that do not name it."""
    if not before:
        return gtid.parse(after).last
    return (gtid.parse(after) - gtid.parse(before)).last

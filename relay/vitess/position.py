"""Where the reading of a shard stands, and the JSON of it that checkpoints hold.

``{"gtid": ...}`` is everything up to an executed set. In the middle of a transaction ``transaction`` names it,
``rows_done`` says how many of its rows are done, ``rows_of`` of which tables: reading begins before it, and skips them.
While tables are copied ``copied`` has those that are done, and ``table_pks`` vtgate's own place in the one under way.
Change it only so that older positions are still understood.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidError, GtidSet
from relay.sql.done import Done, of_position, to_position
from relay.vitess.proto import vtgate_pb2 as pb


@dataclass(frozen=True, slots=True)
class VStreamPosition:
    """``executed``: the set, flavour in front, canonical; "" before the first of a copy is known.

    ``copied``: the tables that were copied, None if none are to be. ``pks``: of the table being copied.
    ``transaction``, ``done``: of the next transaction, so many rows are done.
    """

    executed: str
    copied: tuple[str, ...] | None = None
    pks: tuple[pb.TableLastPK, ...] = ()
    transaction: str = ""
    done: Done = field(default_factory=dict)

    @classmethod
    def of(cls, position: Mapping[str, Any], shard: str) -> VStreamPosition:
        """Read a position or a start: ``{"type": "copy"}`` too. Raises ``RelayError``."""
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
                f"shard {shard}: {dict(position)!r} is no position to begin at ({error}): "
                'expected {"gtid": "MySQL56/..."} or {"gtid": "MariaDB/..."}'
            ) from None
        copied = tuple(position["copied"]) if "copied" in position else None
        transaction = position.get("transaction", "")
        return cls(executed, copied, pks, transaction, of_position(position).get(transaction, {}))

    def to_json(self) -> dict[str, Any] | None:
        """Return the position; None before there is one that could be resumed at (I4)."""
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
            found |= to_position({self.transaction: self.done})
        return found

    def past(self, executed: str) -> VStreamPosition:
        """Return the place after the transaction that ends at ``executed``."""
        return VStreamPosition(
            executed, self.copied, self.pks, self.transaction, self.done
        )  # for each: not by `replace`


def canonical(text: str) -> str:
    """Return the canonical text of a position, flavour in front. GtidError for `current`, nothing, or no set."""
    if text.startswith("MariaDB/") and "," not in text and text.count("-") == 2:
        return text  # one GTID: nothing to sort
    found = gtid.parse(text)
    if not found:
        raise GtidError(f"{text!r} is no set that anything was executed in")
    return found.position


def including(executed: str, transaction: str) -> str:
    """Return the executed set with one more transaction, ``transaction`` being its GTID without flavour."""
    # By far the most: a domain of its own goes on.
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
    return _last(gtid.parse(after) - gtid.parse(before))


def _last(difference: GtidSet) -> str:
    return difference.last

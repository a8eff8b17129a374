"""The change: the one unit that flows through sources, Kafka and consumers.

Plain data without behaviour. Its fields are the Avro fields of ``schemas/change.avsc``: change both
together, and only with new golden files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from relay.token import EventToken

MARK = "snapshot"
"""The attribute of the READs without a key that mark a snapshot in every partition: ``begin`` or ``end``.

Their ``Snapshot.as_of`` is that of the begin: a row that is older, and that no READ since found, is gone.
"""

REDRIVEN = "redriven"
"""The attribute of a change that is sent again in full, long after an `OMITTED` stub took its place in the order.

It completes what the stub left incomplete, and says nothing of what came after the stub.
"""


class Operation(StrEnum):
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    READ = "READ"  # a snapshot row
    TRUNCATE = "TRUNCATE"


class Images(StrEnum):
    """Which row images a change carries, so that a null image is never mistaken for a null row."""

    NEW_AND_OLD = "NEW_AND_OLD"
    NEW = "NEW"
    OLD = "OLD"
    KEYS_ONLY = "KEYS_ONLY"
    OMITTED = "OMITTED"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a READ row comes from: the snapshot, and the clock (seconds) before its page was read."""

    id: str
    as_of: int


@dataclass(slots=True)  # not frozen, as `Change` is not: there is one for each change
class Transaction:
    id: str
    order: int
    last: bool


@dataclass(frozen=True, slots=True)
class Uncarriable:
    """Stands where an image would that cannot be carried exactly (I8). ``item``: the image as its source types it.

    A change that has one is refused when it is encoded, for ``reason``.
    """

    item: Mapping[str, Any]
    reason: str


@dataclass(slots=True)  # not frozen: that would triple the time it takes to make one
class Change:
    """One change of one item or row. Only the publisher writes to it: the last two times, when it is sent.

    ``key``: the full primary key by original column name, hash key column(s) first; values are ``str``
    (DynamoDB S, and N in canonical form), ``bytes`` (B), or the SQL column's Python value.
    ``old``, ``new``: a ``str`` of DynamoDB-typed JSON, a mapping by original column name for typed rows, or
    `Uncarriable`.
    ``resume_timestamp``: seconds; ``committed_at``, ``relayed_at``: microseconds since the epoch.
    """

    event_id: str
    operation: Operation
    source: str
    table: str
    key: Mapping[str, Any] | None
    old: Any | None
    new: Any | None
    images: Images
    token: EventToken | None
    committed_at: int
    relayed_at: int = 0
    resume_timestamp: int = 0
    snapshot: Snapshot | None = None
    transaction: Transaction | None = None
    keyspace_id: bytes | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


def event_id(shard: str, position: str, table: str, key_bytes: bytes, n: int) -> str:
    """Name a change for ever: the ``n``-th, from 0, of this key in the transaction or record at ``position``.

    ``shard`` and ``position`` are those of the origin, where a reshard's replication applied the change.
    The same change has the same id after crashes, replays and reshards: 32 hex digits.
    """
    return event_ids(shard, table)(position, key_bytes, n)


def event_ids(shard: str, table: str) -> Callable[..., str]:
    """Return ``event_id`` for the changes of one table in one shard: ``name(position, key_bytes, n=0)``."""
    # The lengths keep ("a", "bc") and ("ab", "c") apart.
    begun = blake2b(_part(shard.encode()), digest_size=16)
    middle = _part(table.encode())
    first = _part(bytes(4))
    # Changes of one transaction come one after the other.
    last, placed = "", _part(b"") + middle

    def name(position: str, key_bytes: bytes, n: int = 0) -> str:
        nonlocal last, placed
        if position != last:
            last, placed = position, _part(position.encode()) + middle
        identity = begun.copy()
        number = first if n == 0 else _part(n.to_bytes(4, "big"))
        identity.update(placed + len(key_bytes).to_bytes(4, "big") + key_bytes + number)
        return identity.hexdigest()

    return name


def _part(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part

"""The change: the unit that flows from the sources through Kafka to the consumers.

Its fields are the Avro fields of ``schemas/change.avsc``: change both together, and only with new golden files. Its id
depends only on the place where it was first made::

    >>> event_id("shop/commerce/-80", "0-1-42", "orders", b"7", n=0)
    '63af0b8a2bc01c19be10fe5c476f8b32'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, overload

from relay.table import Column
from relay.token import EventToken

if TYPE_CHECKING:
    from relay.native._core import ChangeBlock

MARK = "snapshot"
"""The attribute of a READ without a key, in every partition: ``begin`` or ``end`` of a snapshot, or ``repartition``.

The marks of a snapshot have the ``Snapshot.as_of`` of the beginning. A stored row that is older and had no READ since
was deleted. After ``repartition``, the keys of the table are spread over as many partitions as ``partitions`` says.
"""

REDRIVEN = "redriven"
"""The attribute of a change that is sent again, later than its place in the order: ``true``, or `UNDECODED`.

``true``: an ``OMITTED`` stub was published in its place. It completes the row that the stub left incomplete, unless a
later change of the item has since been applied.
"""

UNDECODED = "undecoded"
"""The value of `REDRIVEN` of a change that a consumer could not decode in its place. It replaces only older changes."""


class Operation(StrEnum):
    """What happened to the row. READ is a row of a snapshot."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    READ = "READ"
    TRUNCATE = "TRUNCATE"


class Images(StrEnum):
    """The row images that the source provides. OMITTED: they exist, but only in the dead letters."""

    NEW_AND_OLD = "NEW_AND_OLD"
    NEW = "NEW"
    OLD = "OLD"
    KEYS_ONLY = "KEYS_ONLY"
    OMITTED = "OMITTED"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The snapshot of a READ row. ``as_of``: seconds since the epoch; the row is at least as new as this."""

    id: str
    as_of: int


@dataclass(slots=True)  # not frozen, because one is made for every change: see `Change`
class Transaction:
    """A change's place in a transaction. ``id``: the GTID. ``order``: counts from 0. ``last``: whether it is last."""

    id: str
    order: int
    last: bool


@dataclass(frozen=True, slots=True)
class Uncarriable:
    """An image that Avro cannot carry exactly (I8), as ``item`` in the source's types. The encoder refuses it."""

    item: Mapping[str, Any]
    reason: str


@dataclass(slots=True)  # not frozen: making a frozen one takes three times as long
class Change:
    """One change of one item or row.

    ``event_id``: the id that `event_id` makes. ``source``, ``table``: the names in the config and at the source.
    ``key``: the full primary key by column name, the hash key's columns first. Values are ``str`` for DynamoDB's S and
    for N in canonical form, ``bytes`` for B, the column's Python value for SQL. None for TRUNCATE and snapshot marks.
    ``old``, ``new``: the image as DynamoDB-typed JSON text, as a mapping by column name for typed rows, or
    `Uncarriable`; None as ``images`` says. In a change read from Kafka, DynamoDB items are mappings, too. ``token``:
    None for READ. ``snapshot``: READ only. ``transaction``: SQL only. ``keyspace_id``: Vitess only. ``committed_at``:
    the source's time, in microseconds since the epoch. ``relayed_at``, in microseconds, and ``resume_timestamp``, in
    seconds, are 0 until the publisher sends the change. ``attributes``: values by name that only this kind of source
    has, and `MARK` and `REDRIVEN`.
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


TO_CONTINUE = (
    "Nothing was skipped. To publish such changes without their images and keep them in full as dead letters, set "
    "`on_unencodable: dead_letter` on the source"
)


def refusal(change: Change, fault: object, manner: str = "exactly") -> str:
    """Return why a change cannot be carried, with its key and its position."""
    at = ""
    if change.token is not None:
        position = change.token.position
        if len(position) > 300 and change.transaction is not None:  # the executed set of a server with many origins
            position = change.transaction.id
        at = f" at {position} of {change.token.shard}"
    if change.snapshot is not None:
        at = f" in snapshot {change.snapshot.id}"
    shown = repr(dict(change.key)) if change.key is not None else "none"
    if len(shown) > 300:
        shown = shown[:300] + "..."
    what = f"{change.source}: the {change.operation} of {change.table}, key {shown}{at}"
    return f"{what}, cannot be carried {manner}: {fault}"


class ChangeParts(Sequence[Change]):
    """Changes in order. Some are in blocks of the compiled core, which create a `Change` only on demand."""

    def __init__(self, parts: Sequence[list[Change] | ChangeBlock]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Change]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, at: int) -> Change: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Change]: ...
    def __getitem__(self, at: int | slice) -> Change | Sequence[Change]:
        if isinstance(at, slice):
            return list(self)[at]
        left = at if at >= 0 else at + len(self)
        for part in self.parts if left >= 0 else ():
            if left < len(part):
                return part[left]
            left -= len(part)
        raise IndexError(f"there is no change {at} of {len(self)}")


KnownBy = Literal["rows", "statement", "database"]
"""How the columns are known: by the last rows, by what statements imply, or from ``information_schema``."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table as they are published, and the names of its primary key."""

    columns: tuple[Column, ...]
    primary: tuple[str, ...]
    # Columns that are not published, with ``exclude``, ``mask`` or ``hash``.
    protected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """One table of a statement, before and after it, None if there is none, or if its columns are not known (I8)."""

    table: str
    before: TableColumns | None
    before_by: KnownBy | None  # None if they are not known
    after: TableColumns | None
    after_by: KnownBy | None
    renamed_to: str | None = None  # its name after it, if that changes


class StatementText(StrEnum):
    """How much of a statement's text is published."""

    COMPLETE = "COMPLETE"
    WITHOUT_VALUES = "WITHOUT_VALUES"
    OMITTED = "OMITTED"


@dataclass(slots=True)
class SchemaChange:
    """A statement that defines, changes or empties relayed tables, in one shard."""

    event_id: str  # as `event_id` makes it
    kind: str  # such as ``ALTER``
    source: str
    database: str  # or keyspace
    statement: str
    text: StatementText
    tables: tuple[AlteredTable, ...]
    token: EventToken
    transaction: str  # its GTID
    committed_at: int  # microseconds since the epoch
    # The tables whose rows it may have changed without a change, with reasons; those of them that a snapshot reads
    # again; and its text without values, for their gaps. Not in its record.
    unseen: Mapping[str, str] = field(default_factory=dict)
    reread: tuple[str, ...] = ()
    shown: str = ""


def event_id(shard: str, position: str, table: str, key_bytes: bytes, n: int) -> str:
    """Return the id of a change: 32 hex digits, the same after every crash, replay and reshard (I3).

    ``shard``, ``position``: as in the change's token, or in its origin if it has one; for an SQL source ``position`` is
    the transaction's GTID. ``n``: counts the changes of this key in the transaction or record, from 0.
    """
    return event_ids(shard, table)(position, key_bytes, n)


def event_ids(shard: str, table: str) -> Callable[..., str]:
    """Return a function ``name(position, key_bytes, n=0)``: `event_id` for one table in one shard."""
    # The lengths keep ("a", "bc") and ("ab", "c") apart.
    common = blake2b(_part(shard.encode()), digest_size=16)
    middle = _part(table.encode())
    first = _part(bytes(4))
    # The changes of a transaction come one after another, with the same position.
    last, prefix = "", _part(b"") + middle

    def name(position: str, key_bytes: bytes, n: int = 0) -> str:
        nonlocal last, prefix
        if position != last:
            last, prefix = position, _part(position.encode()) + middle
        identity = common.copy()
        number = first if n == 0 else _part(n.to_bytes(4, "big"))
        identity.update(prefix + len(key_bytes).to_bytes(4, "big") + key_bytes + number)
        return identity.hexdigest()

    return name


def _part(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part

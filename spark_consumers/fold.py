"""What a change makes of a stored row, and what many changes make of it: plain functions, no Spark.

The rule of the copy (seed 004, "Data Dump, Keeping It Up To Date"). A batch is folded with the rule that one change
is stored by, from the state that really is stored, so a batch ends as its changes one by one would. A change of the
rule goes through the properties in ``tests/spark_consumers/test_convergence.py``.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from relay.change import REDRIVEN, Images, Operation, Snapshot
from relay.keyrange import KeyRange, shard_range
from relay.lineage import INCARNATION
from relay.token import EventToken, Order, compare

KeyT = TypeVar("KeyT", bound=Hashable)
T = TypeVar("T")

READ_WITHIN = 130
"""Seconds after its ``as_of`` within which a row was read: sources' margin, and as much for clocks that differ."""


class ChangeLike(Protocol):
    """What the rule asks of a change; ``relay.change.Change`` has it."""

    @property
    def event_id(self) -> str: ...
    @property
    def operation(self) -> Operation: ...
    @property
    def new(self) -> Any: ...
    @property
    def images(self) -> Images: ...
    @property
    def token(self) -> EventToken | None: ...
    @property
    def snapshot(self) -> Snapshot | None: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row of the copy, tombstones included.

    ``item``: the row, opaque to the rule; None for a tombstone. ``incomplete``: the item is older than the token,
    since the change came without the image it needs. ``read_as_of``: of the latest snapshot that stored it, in
    seconds, whatever was stored since; 0 if none did.
    """

    item: Any
    token: EventToken | None
    event_id: str
    deleted: bool = False
    incomplete: bool = False
    read_as_of: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether it is known that there is no such row: of one that came as a stub nothing is."""
        return self.deleted and not self.incomplete


class Verdict(StrEnum):
    APPLIED = "applied"
    IGNORED = "ignored"
    UNKNOWN = "unknown"  # stored, because no order was known (I5)


@dataclass(slots=True)
class VerdictCounts:
    """``unknown`` and ``incomplete`` are among ``applied``."""

    applied: int = 0
    ignored: int = 0
    unknown: int = 0
    incomplete: int = 0


def store(stored: StoredRow | None, change: ChangeLike) -> tuple[StoredRow | None, Verdict]:
    """Return the row after ``change`` (``stored`` itself if it is ignored), and why.

    Not for what has no key: TRUNCATE (`truncate`) and the marks of a snapshot (`sweep`).
    """
    verdict = _verdict(stored, change)
    if verdict is Verdict.IGNORED:
        return stored, verdict
    read = stored.read_as_of if stored is not None else 0
    if change.operation is Operation.READ and change.snapshot is not None:
        read = max(read, change.snapshot.as_of)
    if change.operation is Operation.DELETE:
        return StoredRow(None, change.token, change.event_id, deleted=True, read_as_of=read), verdict
    if change.new is not None:
        return StoredRow(change.new, change.token, change.event_id, read_as_of=read), verdict
    # I8: what the row is now is not known, so the row that was is kept, and says so.
    kept = stored.item if stored is not None else None
    deleted = stored is None or stored.deleted
    after = StoredRow(kept, change.token, change.event_id, deleted=deleted, incomplete=True, read_as_of=read)
    return after, verdict


def _verdict(stored: StoredRow | None, change: ChangeLike) -> Verdict:
    if REDRIVEN in change.attributes:
        # Long out of its order: it completes its own stub. Whatever else is stored is newer, whether or not the tokens
        # can say so (I5), and where nothing is stored a tombstone was collected.
        completes = stored is not None and stored.incomplete and stored.event_id == change.event_id
        return Verdict.APPLIED if completes else Verdict.IGNORED
    if stored is None:
        return Verdict.APPLIED
    if change.operation is Operation.READ:
        read = change.snapshot
        newer = (
            read is not None
            and read.as_of >= stored.read_as_of  # not of a page that was read before
            and (stored.token is None or stored.token.timestamp < read.as_of)
        )
        return Verdict.APPLIED if newer else Verdict.IGNORED
    if stored.token is None:
        return Verdict.APPLIED
    order = compare(stored.token, change.token)
    if order is Order.NEWER:
        return Verdict.IGNORED
    if order is Order.EQUAL and stored.event_id == change.event_id and not stored.incomplete:
        # I7: a replay of the very change that is stored. It may be the stub of one that came whole since.
        return Verdict.IGNORED
    return Verdict.UNKNOWN if order is Order.UNKNOWN else Verdict.APPLIED


def truncate(stored: StoredRow, change: ChangeLike, beside: Iterable[ChangeLike] = ()) -> tuple[StoredRow, Verdict]:
    """Return a row after its table was truncated in one shard. ``beside``: the truncations of other shards with it.

    The truncation of one shard is no deletion in another. Which shard holds a row now is known by the one that last
    told of it: the same, or those that its key range went to. A row that may be somewhere else, or younger, is kept and
    says that it may be wrong.
    """
    if stored.is_gone:
        return stored, Verdict.IGNORED
    order = compare(stored.token, change.token) if stored.token is not None else _read_order(stored, change)
    if order is Order.NEWER or not _may_hold(change, stored):
        return stored, Verdict.IGNORED
    if order is Order.UNKNOWN or not _held_only_by([change, *beside], stored):
        kept = replace(stored, incomplete=True)
        return kept, Verdict.IGNORED if kept == stored else Verdict.UNKNOWN
    after = StoredRow(None, change.token, change.event_id, deleted=True, read_as_of=stored.read_as_of)
    return after, Verdict.APPLIED


def _read_order(stored: StoredRow, change: ChangeLike) -> Order:
    """Return how old a row without a token is beside ``change``: it was read some time after its ``read_as_of``."""
    if change.token is None or change.token.timestamp >= stored.read_as_of + READ_WITHIN:
        return Order.OLDER
    return Order.NEWER if change.token.timestamp < stored.read_as_of else Order.UNKNOWN


def _may_hold(change: ChangeLike, stored: StoredRow) -> bool:
    return _range(change.token).intersects(_range(stored.token))


def _held_only_by(changes: Iterable[ChangeLike], stored: StoredRow) -> bool:
    """Whether the shards of those ``changes`` that are younger cover all that a row may be in."""
    row = stored.token
    orders = ((c.token, _read_order(stored, c) if row is None else compare(row, c.token)) for c in changes)
    younger = [token for token, order in orders if order is Order.OLDER]
    if any(token is not None and row is not None and token.shard == row.shard for token in younger):
        return True
    wanted = _range(row)
    ranges = sorted({_range(token) for token in younger}, key=lambda found: (found.start, found.end))
    at = wanted.start
    for found in ranges:
        if found.start <= at and (not found.end or found.end > at):
            if not found.end or (wanted.end and wanted.end <= found.end):
                return True
            at = found.end
    return False


@lru_cache(maxsize=1024)
def _range_of(shard: str) -> KeyRange:
    try:
        return shard_range(shard.rpartition("/")[2].partition(INCARNATION)[0])
    except ValueError:
        return KeyRange()  # nothing is known of it


def _range(token: EventToken | None) -> KeyRange:
    return KeyRange() if token is None else _range_of(token.shard)


def sweep(stored: StoredRow, end: ChangeLike) -> tuple[StoredRow, Verdict]:
    """Return a row after the end of a snapshot, whose ``as_of`` is that of its begin.

    A row that is older than the begin, and that neither this snapshot nor a later one found, is no longer in the
    source: its deletion was lost. It keeps token and event, so that a replay does not bring it back.
    """
    begin = end.snapshot.as_of if end.snapshot is not None else 0
    younger = stored.token is not None and stored.token.timestamp >= begin
    if stored.is_gone or younger or stored.read_as_of >= begin:
        return stored, Verdict.IGNORED
    # No READ from before the begin brings it back; one less, so that what a replay brings back is swept again.
    read = max(stored.read_as_of, begin - 1)
    return replace(stored, item=None, deleted=True, incomplete=False, read_as_of=read), Verdict.APPLIED


def fold(stored: StoredRow | None, changes: Iterable[ChangeLike], counts: VerdictCounts) -> StoredRow | None:
    """Apply the changes of one item, in their order (I2), and count what became of each."""
    for change in changes:
        after, verdict = store(stored, change)
        tally(counts, verdict, after)
        stored = after
    return stored


def tally(counts: VerdictCounts, verdict: Verdict, after: StoredRow | None) -> None:
    if verdict is Verdict.IGNORED:
        counts.ignored += 1
        return
    counts.applied += 1
    counts.unknown += verdict is Verdict.UNKNOWN
    counts.incomplete += after is not None and after.incomplete


class Placed(Protocol):
    """Something of a batch, at a partition and offset of its topic."""

    @property
    def place(self) -> tuple[int, int]: ...
    @property
    def event_id(self) -> str: ...


PlacedT = TypeVar("PlacedT", bound=Placed)


def stretches(
    changes: Iterable[PlacedT], truncations: Iterable[PlacedT]
) -> Iterator[tuple[list[PlacedT], list[tuple[PlacedT, list[int]]]]]:
    """Yield the changes of a table between its truncations, and then the truncations with the partitions they are for.

    A row that is read again after a truncation has no token to protect it, so only the order of each partition tells
    that it is younger.
    """
    places: dict[int, list[int]] = {}
    numbered: dict[int, dict[str, tuple[PlacedT, list[int]]]] = {}
    for one in sorted(truncations, key=lambda each: each.place):
        partition, offset = one.place
        offsets = places.setdefault(partition, [])
        # The same truncation is in every partition.
        numbered.setdefault(len(offsets), {}).setdefault(one.event_id, (one, []))[1].append(partition)
        offsets.append(offset)
    between: dict[int, list[PlacedT]] = {}
    for one in changes:
        partition, offset = one.place
        between.setdefault(bisect(places.get(partition, []), offset), []).append(one)
    for number in range(max([*between, *numbered], default=-1) + 1):
        yield between.get(number, []), list(numbered.get(number, {}).values())


def by_item(
    rows: Iterable[T], key: Callable[[T], KeyT], place: Callable[[T], tuple[int, int]]
) -> Mapping[KeyT, Sequence[T]]:
    """Return the rows of each item in the order of (partition, offset), which is that of the source (I2)."""
    items: dict[KeyT, list[T]] = {}
    for row in rows:
        items.setdefault(key(row), []).append(row)
    for of_one in items.values():
        of_one.sort(key=place)
    return items

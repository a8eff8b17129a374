"""The rule of the copy, without Spark: how one change, or many, affect a stored row.

A batch is folded change by change from the stored row, so it ends as if each change had been written alone.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Self

from relay.change import REDRIVEN, UNDECODED, Images, Operation, Snapshot
from relay.keyrange import KeyRange, shard_range
from relay.records import INCARNATION
from relay.token import EventToken, Order, compare

READ_WITHIN = 130
"""A row was read at most this many seconds after its ``as_of``: the sources' margin, plus as much for clock skew."""

PartitionOffset = tuple[int, int]  # of a record in Kafka


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a record. Within one partition of a topic, an item's changes are in the order of the source (I2).

    An item may move to another partition. Its tokens there have later timestamps than all before.
    """

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ChangeHead:
    """A change without its images. ``new``: represents the new image, None if there is none; opaque to the rule."""

    key: tuple[str, ...]
    place: Place
    event_id: str
    operation: Operation
    new: Any
    images: Images
    token: EventToken | None
    snapshot: Snapshot | None
    attributes: Mapping[str, str]  # only the attributes that the rule reads
    mark: str | None = None  # "begin" or "end" of a snapshot

    @property
    def partition_offset(self) -> PartitionOffset:
        return self.place.partition, self.place.offset


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row of the copy, tombstones included.

    ``item``: the row, opaque to the rule; None for a tombstone. ``incomplete``: the item is older than the token: its
    change came without the image. ``read_as_of``: ``as_of`` of the last snapshot that stored the row, in seconds,
    whatever was stored since; 0 if none did. ``place``: the place of the change; None once its topic was created again.
    """

    item: Any
    token: EventToken | None
    event_id: str
    deleted: bool = False
    incomplete: bool = False
    read_as_of: int = 0
    place: Place | None = None

    @property
    def is_known_deleted(self) -> bool:
        """Whether the source certainly lacks the row. A row that only came as a stub may exist."""
        return self.deleted and not self.incomplete


class Verdict(StrEnum):
    APPLIED = "applied"
    IGNORED = "ignored"
    UNKNOWN = "unknown"  # stored although the order is unknown (I5)


@dataclass(slots=True)
class VerdictCounts:
    """Counts of verdicts. ``unknown`` and ``incomplete`` are included in ``applied``."""

    applied: int = 0
    ignored: int = 0
    unknown: int = 0
    incomplete: int = 0

    def count(self, verdict: Verdict, after: StoredRow | None) -> None:
        """Count one change, which leaves the row as ``after``."""
        if verdict is Verdict.IGNORED:
            self.ignored += 1
            return
        self.applied += 1
        self.unknown += verdict is Verdict.UNKNOWN
        self.incomplete += after is not None and after.incomplete

    def add(self, more: Self) -> None:
        self.applied += more.applied
        self.ignored += more.ignored
        self.unknown += more.unknown
        self.incomplete += more.incomplete


def store(stored: StoredRow | None, change: ChangeHead) -> tuple[StoredRow | None, Verdict]:
    """Return the row after a ``change`` with a key (``stored`` itself if the change is ignored), and the verdict."""
    verdict = _verdict(stored, change)
    if verdict is Verdict.IGNORED:
        return stored, verdict
    read = stored.read_as_of if stored is not None else 0
    # A stub is completed by the same change, which already has its place among the others.
    place = stored.place if stored is not None and REDRIVEN in change.attributes else change.place
    if change.operation is Operation.READ and change.snapshot is not None:
        read = max(read, change.snapshot.as_of)
    if change.operation is Operation.DELETE:
        return StoredRow(None, change.token, change.event_id, deleted=True, read_as_of=read, place=place), verdict
    if change.new is not None:
        return StoredRow(change.new, change.token, change.event_id, read_as_of=read, place=place), verdict
    # I8: the new row is unknown, so the old one is kept and marked incomplete.
    kept = stored.item if stored is not None else None
    deleted = stored is None or stored.deleted
    after = StoredRow(kept, change.token, change.event_id, deleted, incomplete=True, read_as_of=read, place=place)
    return after, verdict


def _verdict(stored: StoredRow | None, change: ChangeHead) -> Verdict:
    is_late = change.attributes.get(REDRIVEN) == UNDECODED
    # A redriven change comes long after its place in the order, so it may only complete its own stub, or the row that
    # its target has refused. Any other stored row is newer, even if the tokens do not show it (I5); if no row is
    # stored, a tombstone was collected.
    completes = stored is not None and stored.incomplete and stored.event_id == change.event_id
    if REDRIVEN in change.attributes and (completes or not is_late):
        return Verdict.APPLIED if completes else Verdict.IGNORED
    if stored is None:
        return Verdict.APPLIED
    if change.operation is Operation.READ:
        read = change.snapshot
        newer = (
            read is not None
            and read.as_of >= stored.read_as_of  # otherwise the page was read earlier
            and (stored.token is None or stored.token.timestamp < read.as_of)
        )
        return Verdict.APPLIED if newer else Verdict.IGNORED
    if stored.token is None:
        was_read = is_late and change.token is not None and change.token.timestamp < stored.read_as_of
        return Verdict.IGNORED if was_read or _is_replay(stored, change) else Verdict.APPLIED  # I7
    order = compare(stored.token, change.token)
    if order is Order.NEWER or (is_late and order is not Order.OLDER):  # I7: the stored row may be later
        return Verdict.IGNORED
    if order is Order.EQUAL and stored.event_id == change.event_id and not stored.incomplete:
        # I7: a replay of the stored change. It may be a stub that was completed since.
        return Verdict.IGNORED
    if order is not Order.OLDER and _is_replay(stored, change):  # I7: changes of one transaction have one token
        return Verdict.IGNORED
    return Verdict.UNKNOWN if order is Order.UNKNOWN else Verdict.APPLIED


def _is_replay(stored: StoredRow, change: ChangeHead) -> bool:
    """Whether the topic has ``change`` at or before the stored one, so that it is applied again, or too late.

    `relay repartition` moves items between partitions. If the one with the later changes is read first, a row that a
    snapshot has read may meet changes that it already has.
    """
    before, place = stored.place, change.place
    if before is None or before.topic != place.topic:
        return False
    if before.partition != place.partition:  # I7
        return change.token is not None and 0 < change.token.timestamp < stored.read_as_of  # I5: 0 is unknown
    return place.offset <= before.offset


def truncate(stored: StoredRow, change: ChangeHead, others: Iterable[EventToken] = ()) -> tuple[StoredRow, Verdict]:
    """Return a row after its table was truncated in one shard. ``others``: the tokens of truncations in other shards.

    The truncation of one shard deletes nothing in another. A row is in the shard of its token, or in the shards that
    took over that shard's key range. A row that may be in another shard, or may be younger, is kept and marked
    incomplete.
    """
    if stored.is_known_deleted:
        return stored, Verdict.IGNORED
    order = _order_of_row(stored, change.token)
    if order is Order.NEWER or not _range(change.token).intersects(_range(stored.token)):
        return stored, Verdict.IGNORED
    if order is Order.UNKNOWN or not _held_only_by([change.token, *others], stored):
        kept = replace(stored, incomplete=True)
        return kept, Verdict.IGNORED if kept == stored else Verdict.UNKNOWN
    after = replace(stored, item=None, token=change.token, event_id=change.event_id, deleted=True, incomplete=False)
    return after, Verdict.APPLIED


def needed_later(truncations: Iterable[EventToken | None]) -> list[EventToken]:
    """Return the tokens of ``truncations``, which are in order, that later ones of other shards need: the newest of
    each shard, unless it is the complete key space.
    """
    newest: dict[str, EventToken] = {}
    for token in truncations:
        if token is None or _range(token).complete:
            continue
        if compare(newest.get(token.shard), token) is not Order.NEWER:
            newest[token.shard] = token
    return list(newest.values())


def _order_of_row(stored: StoredRow, token: EventToken | None) -> Order:
    """Return the order of a row relative to a truncation. A row without a token was read soon after ``read_as_of``."""
    if stored.token is not None:
        return compare(stored.token, token)
    if token is None or token.timestamp >= stored.read_as_of + READ_WITHIN:
        return Order.OLDER
    return Order.NEWER if token.timestamp < stored.read_as_of else Order.UNKNOWN


def _held_only_by(truncations: Iterable[EventToken | None], stored: StoredRow) -> bool:
    """Whether the shards of those ``truncations`` that are younger than the row cover every shard that may hold it."""
    row = stored.token
    younger = [token for token in truncations if _order_of_row(stored, token) is Order.OLDER]
    if any(token is not None and row is not None and token.shard == row.shard for token in younger):
        return True
    wanted = _range(row)
    covered_to = wanted.start
    for found in sorted({_range(token) for token in younger}, key=attrgetter("start", "end")):
        if found.start <= covered_to and (not found.end or found.end > covered_to):
            if not found.end or (wanted.end and wanted.end <= found.end):
                return True
            covered_to = found.end
    return False


@lru_cache(maxsize=1024)
def _range_of(shard: str) -> KeyRange:
    try:
        return shard_range(shard.rpartition("/")[2].partition(INCARNATION)[0])
    except ValueError:
        return KeyRange()  # the name is not a key range: the shard may hold any row


def _range(token: EventToken | None) -> KeyRange:
    return KeyRange() if token is None else _range_of(token.shard)


def sweep(stored: StoredRow, end: ChangeHead) -> tuple[StoredRow, Verdict]:
    """Return a row after the end of a snapshot. ``end`` has the ``as_of`` of the snapshot's begin.

    A row older than the begin that neither this snapshot nor a later one found is no longer in the source: its deletion
    was lost. It keeps its token and event id, so that a replay does not bring it back.
    """
    begin = end.snapshot.as_of if end.snapshot is not None else 0
    younger = stored.token is not None and stored.token.timestamp >= begin
    if stored.is_known_deleted or younger or stored.read_as_of >= begin:
        return stored, Verdict.IGNORED
    # No READ from before the begin brings it back. Minus one, so that a row that a replay brings back is swept again.
    read = max(stored.read_as_of, begin - 1)
    return replace(stored, item=None, deleted=True, incomplete=False, read_as_of=read), Verdict.APPLIED


def fold(stored: StoredRow | None, changes: Iterable[ChangeHead], counts: VerdictCounts) -> StoredRow | None:
    """Apply the changes of one item, in their order (I2), and count the verdicts."""
    for change in changes:
        stored, verdict = store(stored, change)
        counts.count(verdict, stored)
    return stored


def split_at_truncations(
    changes: Iterable[ChangeHead], truncations: Iterable[ChangeHead]
) -> Iterator[tuple[list[ChangeHead], list[tuple[ChangeHead, list[int]]]]]:
    """Yield a table's changes up to its next truncations, and those truncations, each with its partitions.

    A row that is read again after a truncation has no token to protect it: only its offset says that it is younger.
    """
    offsets: defaultdict[int, list[int]] = defaultdict(list)
    numbered: defaultdict[int, dict[str, tuple[ChangeHead, list[int]]]] = defaultdict(dict)
    for truncation in sorted(truncations, key=attrgetter("partition_offset")):
        partition, offset = truncation.partition_offset
        # Each truncation is in every partition.
        same = numbered[len(offsets[partition])].setdefault(truncation.event_id, (truncation, []))
        same[1].append(partition)
        offsets[partition].append(offset)
    between: defaultdict[int, list[ChangeHead]] = defaultdict(list)
    for change in changes:
        partition, offset = change.partition_offset
        between[bisect(offsets[partition], offset)].append(change)
    for number in range(max([*between, *numbered], default=-1) + 1):
        yield between[number], list(numbered[number].values())


def group_by_item(changes: Iterable[ChangeHead]) -> Mapping[tuple[str, ...], Sequence[ChangeHead]]:
    """Return each item's changes ordered by partition and offset, which is the source's order (I2)."""
    items: defaultdict[tuple[str, ...], list[ChangeHead]] = defaultdict(list)
    for change in changes:
        items[change.key].append(change)
    for of_item in items.values():
        of_item.sort(key=attrgetter("partition_offset"))
    return items

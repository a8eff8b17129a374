"""Compares the topic, the cache, the log and the copy with the writers' record. Each check returns the problems."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, Read, RecordedWrite, version_of
from relay.kafka.changes import ReceivedChange

_SHOWN = 5


def changed_item(change: ReceivedChange) -> Item:
    key = change.key or {}
    return key[HASH_KEY], str(key[RANGE_KEY])


def changes_by_item(changes: Iterable[ReceivedChange]) -> dict[Item, list[ReceivedChange]]:
    """Return each item's changes in their order on the topic."""
    found: dict[Item, list[ReceivedChange]] = defaultdict(list)
    for change in sorted(changes, key=lambda each: (each.partition, each.offset)):
        found[changed_item(change)].append(change)
    return found


def check_topic(
    history: Mapping[Item, Sequence[RecordedWrite]],
    changes: Sequence[ReceivedChange],
    key: Callable[[Item], object] = itemgetter(0),
) -> list[str]:
    """Check that each write is on the topic once, in order per item, and one partition per key (I1, I2, I3).

    ``changes``: the changes of the stream, without READs. ``key``: the key of the records, by default the hash key.
    """
    by_item = changes_by_item(changes)
    partitions: dict[object, set[int]] = defaultdict(set)
    for change in changes:
        partitions[key(changed_item(change))].add(change.partition)
    ids = Counter(change.event_id for change in changes)
    return [
        *(f"{item}: {problem}" for item in history for problem in _check_item(history[item], by_item.get(item, []))),
        *(f"{item}: on the topic, but never written" for item in by_item.keys() - history.keys()),
        *(f"key {name}: in partitions {sorted(found)}" for name, found in partitions.items() if len(found) > 1),
        *(f"event_id {event_id}: {times} times" for event_id, times in ids.items() if times > 1),
    ]


def _check_item(writes: Sequence[RecordedWrite], changes: Sequence[ReceivedChange]) -> Iterator[str]:
    written = [write.version for write in writes if write.streamed]
    found = [version_of(change.new) for change in changes]
    if written != found:
        both = zip(written, found, strict=False)
        first = next((n for n, (a, b) in enumerate(both) if a != b), min(len(written), len(found)))
        yield (
            f"{len(written)} writes, {len(found)} changes on the topic; they differ from number {first} on: written "
            f"{written[first : first + _SHOWN]}, found {found[first : first + _SHOWN]}"
        )
        return
    before = _before_the_stream(writes)
    for change in changes:
        old, new = version_of(change.old), version_of(change.new)
        operation = "DELETE" if new is None else "INSERT" if before is None else "UPDATE"
        if (change.operation, old) != (operation, before):
            yield f"version {new} is {change.operation} over {old}, not {operation} over {before}"
        before = new


def check_snapshot(history: Mapping[Item, Sequence[RecordedWrite]], reads: Iterable[ReceivedChange]) -> list[str]:
    """Check that a snapshot read each row at most once, at a version that it had, and all rows that never changed."""
    found: dict[Item, list[int | None]] = defaultdict(list)
    for read in reads:
        found[changed_item(read)].append(version_of(read.new))
    problems = []
    for item, versions in found.items():
        if len(versions) > 1:
            problems.append(f"{item}: {len(versions)} READs")
        if strange := set(versions) - {write.version for write in history.get(item, ())}:
            problems.append(f"{item}: a READ of version {strange.pop()}, which was never written")
    unchanged = {item for item, writes in history.items() if not any(write.streamed for write in writes)}
    return [*problems, *(f"{item}: no READ, though nothing changed it" for item in unchanged - found.keys())]


def versions_before(history: Mapping[Item, Sequence[RecordedWrite]]) -> dict[Item, int]:
    """Return the versions of the items that were in the table before the relay started."""
    found = ((item, _before_the_stream(writes)) for item, writes in history.items())
    return {item: version for item, version in found if version is not None}


def _before_the_stream(writes: Iterable[RecordedWrite]) -> int | None:
    return next((write.version for write in writes if not write.streamed), None)


def final_versions(history: Mapping[Item, Sequence[RecordedWrite]]) -> dict[Item, int]:
    """Return the last version of each item that is not deleted at the end."""
    return {item: writes[-1].version for item, writes in history.items() if writes and writes[-1].version is not None}


def check_versions(what: str, expected: Mapping[Item, int], found: Mapping[Item, int | None]) -> list[str]:
    """Check that ``found`` has the same items at the same versions. ``what``: the name of ``found`` in the problems."""
    return [
        f"{what}: {item} is at version {found.get(item)}, not {expected.get(item)}"
        for item in sorted(expected.keys() | found.keys())
        if expected.get(item) != found.get(item)
    ]


def stale_reads(
    reads: Sequence[Read],
    changes: Mapping[Item, Sequence[ReceivedChange]],
    before: Mapping[Item, int],
    applied_at: Callable[[ReceivedChange], float | None],
) -> list[str]:
    """Check that each read is at least as new as the last invalidation applied before it started (I6).

    ``changes``: the changes of each item, in order. ``before``: the versions of items that existed earlier.
    ``applied_at``: returns when the invalidation for a change was in the cache.
    """
    problems = []
    applied: dict[Item, list[float]] = {}
    for item, of_item in changes.items():
        times: list[float] = []
        for change in of_item:
            when = applied_at(change)
            if when is None:
                break
            times.append(max(when, times[-1]) if times else when)
        applied[item] = times
    for read in reads:
        # State 0 is the item before its first change, state n the item after its n-th change.
        states = [before.get(read.item), *(version_of(change.new) for change in changes.get(read.item, ()))]
        oldest_allowed = bisect_left(applied.get(read.item, ()), read.started)
        if read.version not in states[oldest_allowed:]:
            problems.append(
                f"{read.item}: a read at {read.started:.3f} returned version {read.version}, though the invalidation "
                f"for version {states[oldest_allowed]} had been applied before"
            )
    return problems

"""Compares the topic, the cache, the log and the copy with the writers' record. Each check returns the problems."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, RecordedWrite, version_of
from relay.kafka.changes import ReceivedChange

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PublishedChange:
    """A change as a reader of the topic sees it. ``version`` is None for a delete. ``columns``: the new row's.

    ``position``, ``shard``: from its token; a READ has none.
    """

    item: Item
    version: int | None
    operation: str
    partition: int
    offset: int
    event_id: str
    old_version: int | None
    position: str
    shard: str
    columns: frozenset[str]


def published_change(change: ReceivedChange) -> PublishedChange:
    """Return a change of an item in the form of the checks."""
    key, token = change.key or {}, change.token
    return PublishedChange(
        item=(key[HASH_KEY], str(key[RANGE_KEY])),
        version=version_of(change.new),
        operation=change.operation,
        partition=change.partition,
        offset=change.offset,
        event_id=change.event_id,
        old_version=version_of(change.old),
        position=token.position if token else "",
        shard=token.shard if token else "",
        columns=frozenset(change.new or ()),
    )


def check_topic(
    history: Mapping[Item, Sequence[RecordedWrite]],
    changes: Iterable[PublishedChange],
    key: Callable[[Item], object] = itemgetter(0),
) -> list[str]:
    """Check that each write is on the topic once, in order per item, and one partition per key (I1, I2, I3).

    ``changes``: the changes of the stream, without READs. ``key``: the key of the records, by default the hash key.
    """
    by_item: dict[Item, list[PublishedChange]] = defaultdict(list)
    partitions: dict[object, set[int]] = defaultdict(set)
    ids: Counter[str] = Counter()
    for change in sorted(changes, key=lambda each: (each.partition, each.offset)):
        by_item[change.item].append(change)
        partitions[key(change.item)].add(change.partition)
        ids[change.event_id] += 1
    return [
        *(f"{item}: {problem}" for item in history for problem in _check_item(history[item], by_item.get(item, []))),
        *(f"{item}: on the topic, but never written" for item in by_item.keys() - history.keys()),
        *(f"key {name}: in partitions {sorted(found)}" for name, found in partitions.items() if len(found) > 1),
        *(f"event_id {event_id}: {times} times" for event_id, times in ids.items() if times > 1),
    ]


def _check_item(writes: Sequence[RecordedWrite], changes: Sequence[PublishedChange]) -> Iterator[str]:
    written = [write.version for write in writes if write.streamed]
    found = [change.version for change in changes]
    if written != found:
        first = next(
            (n for n, (a, b) in enumerate(zip(written, found, strict=False)) if a != b), min(len(written), len(found))
        )
        yield (
            f"{len(written)} writes, {len(found)} changes on the topic; they differ from number {first} on: written "
            f"{written[first : first + _SHOWN]}, found {found[first : first + _SHOWN]}"
        )
        return
    before = _before_the_stream(writes)
    for change in changes:
        operation = "DELETE" if change.version is None else "INSERT" if before is None else "UPDATE"
        if (change.operation, change.old_version) != (operation, before):
            yield (
                f"version {change.version} is {change.operation} over {change.old_version}, "
                f"not {operation} over {before}"
            )
        before = change.version


def check_snapshot(history: Mapping[Item, Sequence[RecordedWrite]], reads: Iterable[PublishedChange]) -> list[str]:
    """Check that a snapshot read each row at most once, at a version that it had, and all rows that never changed."""
    found: dict[Item, list[int | None]] = defaultdict(list)
    for read in reads:
        found[read.item].append(read.version)
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


def check_versions(what: str, expected: Mapping[Item, int], found: Mapping[Item, int]) -> list[str]:
    """Check that ``found`` has the same items at the same versions. ``what``: names it in the problems."""
    return [
        f"{what}: {item} is at version {found.get(item)}, not {expected.get(item)}"
        for item in sorted(expected.keys() | found.keys())
        if expected.get(item) != found.get(item)
    ]

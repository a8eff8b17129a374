"""Compares what came out with what the writers know they put in. Every function returns the problems found."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from relay.avro.decode import decode
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, RecordedWrite, version_in
from relay.errors import RelayError

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PublishedChange:
    """One change as a reader of the topic sees it. ``version`` None is a delete. ``columns``: of a new row."""

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


def read_topic(client: Mapping[str, Any], topic: str, schemas: Any) -> list[PublishedChange]:
    """Read the changes of ``topic`` from its beginning to its present end."""
    return [event(*found) for found in read_changes(client, topic, schemas)]


def read_changes(client: Mapping[str, Any], topic: str, schemas: Any) -> list[tuple[int, int, dict[str, Any]]]:
    """Return partition, offset and decoded value of all of ``topic``, as a read_committed consumer sees it."""
    consumer = Consumer(
        {
            **client,
            "group.id": f"{topic}.truth",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        # The last stable offsets: what is committed by now.
        waiting = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
        waiting = {p: end for p, end in waiting.items() if end > 0}
        consumer.assign([TopicPartition(topic, p, 0) for p in waiting])
        found = []
        while waiting:
            message = consumer.poll(10.0)
            if message is None:
                raise RelayError(f"{topic}: nothing comes, though partitions {sorted(waiting)} hold more")
            error, where, offset = message.error(), message.partition() or 0, message.offset() or 0
            if error is None:
                found.append((where, offset, decode(schemas, message.value() or b"")))
                offset += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise RelayError(f"{topic}: {error.str()}")
            if offset >= waiting.get(where, offset + 1):
                del waiting[where]
        return found
    finally:
        consumer.close()


def event(partition: int, offset: int, change: Mapping[str, Any]) -> PublishedChange:
    """Return the event of a decoded change."""
    new = change["new"]
    return PublishedChange(
        item=(change["key"][HASH_KEY], str(change["key"][RANGE_KEY])),
        version=_version(new),
        operation=change["operation"],
        partition=partition,
        offset=offset,
        event_id=change["event_id"],
        old_version=_version(change["old"]),
        position=change["token"]["position"],
        shard=change["token"]["shard"],
        columns=frozenset(new) if isinstance(new, Mapping) else frozenset(),
    )


def _version(image: str | Mapping[str, Any] | None) -> int | None:
    return version_in(image) if image is not None else None


def check_topic(history: Mapping[Item, Sequence[RecordedWrite]], events: Iterable[PublishedChange]) -> list[str]:
    """Every write exactly once, in order per item, and one partition per hash key (I1, I2, I3)."""
    seen: dict[Item, list[PublishedChange]] = defaultdict(list)
    partitions: dict[str, set[int]] = defaultdict(set)
    ids: Counter[str] = Counter()
    for one in sorted(events, key=lambda e: (e.partition, e.offset)):
        seen[one.item].append(one)
        partitions[one.item[0]].add(one.partition)
        ids[one.event_id] += 1
    return [
        *(f"{item}: {problem}" for item in history for problem in _check_item(history[item], seen.get(item, []))),
        *(f"{item}: on the topic, but never written" for item in seen.keys() - history.keys()),
        *(f"hash key {key}: in partitions {sorted(where)}" for key, where in partitions.items() if len(where) > 1),
        *(f"event_id {name}: {times} times" for name, times in ids.items() if times > 1),
    ]


def _check_item(writes: Sequence[RecordedWrite], events: Sequence[PublishedChange]) -> Iterator[str]:
    expected = [write.version for write in writes]
    got = [one.version for one in events]
    if expected != got:
        first = next(
            (n for n, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), min(len(expected), len(got))
        )
        yield (
            f"{len(expected)} writes, {len(got)} changes on the topic; they part at number {first}: "
            f"{expected[first : first + _SHOWN]} against {got[first : first + _SHOWN]}"
        )
        return
    before: int | None = None
    for one in events:
        operation = "DELETE" if one.version is None else "INSERT" if before is None else "UPDATE"
        if (one.operation, one.old_version) != (operation, before):
            yield f"version {one.version} is {one.operation} over {one.old_version}, not {operation} over {before}"
        before = one.version


def final_versions(history: Mapping[Item, Sequence[RecordedWrite]]) -> dict[Item, int]:
    """The version each living item ends at."""
    return {item: writes[-1].version for item, writes in history.items() if writes and writes[-1].version is not None}


def check_versions(what: str, expected: Mapping[Item, int], found: Mapping[Item, int]) -> list[str]:
    """The same items at the same versions."""
    return [
        f"{what}: {item} is at version {found.get(item)}, not {expected.get(item)}"
        for item in sorted(expected.keys() | found.keys())
        if expected.get(item) != found.get(item)
    ]

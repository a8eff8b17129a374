"""Reads committed records of topics, to their ends or for ever. The worker does not use it."""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.errors import Unavailable, group_refused
from relay.kafka import topics
from relay.kafka.partition_offsets import Partition, offset_bounds

_PATIENCE = 60.0  # seconds without progress after which a read to the end fails

_REFRESH = 15.0  # seconds between two looks of a client for added partitions, which its group then reads
_TIMES_WITHIN = 30.0  # seconds


def read_all_committed(
    admin: AdminClient,
    config: Config,
    topic: str,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    patience: float = _PATIENCE,
) -> Iterator[Message]:
    """Yield the committed records of ``topic``, if it exists, to its end by ``isolation``. Raises ``Unavailable``."""
    found = topics.list_topics(admin, config).get(topic)
    if found is None:
        return
    ends = offset_bounds(admin, [(topic, number) for number in found.partitions], isolation=isolation)
    yield from read_committed(config, ends, lambda: None, exit_at_end=True, patience=patience)


def open_reader(config: Config, client: str, group: str, settings: Mapping[str, Any]) -> Consumer:
    """Return a consumer of committed records that reports the ends of partitions and stores no offsets by itself."""
    common = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",  # I3
        # The pause before it fetches again after its queue was full. The default is a second, in which it runs empty.
        "fetch.queue.backoff.ms": 20,
        "topic.metadata.refresh.interval.ms": int(_REFRESH * 1000),  # I1
    }
    return Consumer({**config.client(client), **common, **settings}, logger=topics.SILENT_LOG)


def read_committed(
    config: Config,
    ends: Mapping[Partition, tuple[int, int]],
    flush: Callable[[], object],
    *,
    exit_at_end: bool,
    patience: float = _PATIENCE,
    look: Callable[[Consumer], object] | None = None,
) -> Generator[Message, None, None]:
    """Yield the committed records of some partitions, in order per partition. Raises ``Unavailable``.

    ``ends``: for each partition, the first offset to read and the end offset. ``exit_at_end``: stop at the end offsets,
    however long that takes while records arrive, with at most ``patience`` seconds without one. ``flush``: called
    whenever no record is waiting. ``look``: called before each record; may assign more partitions, without an end.
    """
    # librdkafka requires a group. Partitions are assigned and nothing is committed, so it never exists.
    group = f"{config.name}.tail"
    consumer = open_reader(config, "tail", group, {"auto.offset.reset": "earliest"})
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(*where, first) for where, (first, _) in ends.items()])
        unread = {where for where, (first, end) in ends.items() if first < end}
        advanced_at = time.monotonic()
        while unread or not exit_at_end:
            if look is not None:
                look(consumer)
            message = consumer.poll(0)
            if message is None:
                flush()
                message = consumer.poll(0.5)
            if message is None:
                if exit_at_end and time.monotonic() - advanced_at > patience:
                    left = ", ".join(f"{topic}[{number}]" for topic, number in sorted(unread)[:3])
                    raise Unavailable(f"cannot read {left} to the end: nothing arrived for {patience:.0f} s")
                continue
            problem, where = message.error(), (message.topic() or "", message.partition() or 0)
            if problem is not None and problem.code() != KafkaError._PARTITION_EOF:
                raise read_failure(problem, where, group)
            if where in unread:  # others may grow for ever
                advanced_at = time.monotonic()
            offset, end = message.offset() or 0, ends.get(where, (0, 0))[1]
            if problem is None and not (exit_at_end and offset >= end):
                yield message
            # The last offset may be a transaction marker, which is never delivered: the end is reached with the record
            # before it, with the end-of-partition event, or past it.
            if offset >= (end - 1 if problem is None else end):
                unread.discard(where)
        flush()


def read_failure(error: KafkaError, where: tuple[str, int], group: str) -> Unavailable:
    """Return the error to raise for a failed read of a partition; without a topic, of all that ``group`` reads."""
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return group_refused(group)
    topic, partition = where
    return Unavailable(f"cannot read {f'{topic}[{partition}]' if topic else 'the topics'}: {error.str()}")


def times_at(config: Config, offsets: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], float]:
    """Return the time, in seconds, of the first record of each partition from an offset on, where there is one."""
    found: dict[tuple[str, str], float] = {}
    consumer = open_reader(config, "times", f"{config.name}.times", {})
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, int(number), offset) for (topic, number), offset in offsets.items()])
        seen: set[tuple[str, str]] = set()
        deadline = time.monotonic() + _TIMES_WITHIN
        while len(seen) < len(offsets) and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None or message.topic() is None:  # an error of the group belongs to no partition
                continue
            where = message.topic() or "", str(message.partition())
            if message.error() is None and where not in seen and (at := message.timestamp()[1]) > 0:
                found[where] = at / 1000
            seen.add(where)
            consumer.pause([TopicPartition(where[0], int(where[1]))])  # otherwise they wait for all its records
    return found

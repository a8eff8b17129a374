"""Reading what is committed on some partitions, once over or for ever: for commands, not for the worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.errors import Unavailable
from relay.kafka import topics


def everything(admin: AdminClient, config: Config, topic: str) -> Iterator[Message]:
    """Yield every committed record that ``topic`` holds now; none if there is no such topic. ``Unavailable``."""
    found = topics.existing(admin, config).get(topic)
    if found is None:
        return
    ends = topics.bounds(admin, [(topic, number) for number in found.partitions])
    yield from committed(config, ends, lambda: None, from_beginning=True, exit_at_end=True)


def committed(
    config: Config,
    ends: Mapping[topics.Partition, tuple[int, int]],
    flush: Callable[[], object],
    *,
    from_beginning: bool,
    exit_at_end: bool,
) -> Generator[Message, None, None]:
    """Yield the records of some partitions, each one's in order. ``ends``: the first offset and the end of each.

    ``from_beginning``: begin at the first offset, not at the end. ``exit_at_end``: stop at the ends. ``flush`` is
    called whenever no record waits. Raises ``Unavailable``.
    """
    settings: dict[str, Any] = {
        **config.client("tail"),
        # Demanded by librdkafka; partitions are assigned and nothing is committed, so no group forms.
        "group.id": f"{config.name}.tail",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",  # I3
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings, logger=topics.SILENT)
    with contextlib.closing(consumer):
        starts = {where: low if from_beginning else high for where, (low, high) in ends.items()}
        consumer.assign([TopicPartition(*where, offset) for where, offset in starts.items()])
        unread = {where for where, (_, high) in ends.items() if starts[where] < high}
        while unread or not exit_at_end:
            message = consumer.poll(0)
            if message is None:
                flush()
                message = consumer.poll(0.5)
            if message is None:
                continue
            where = (message.topic() or "", message.partition() or 0)
            offset, end = message.offset() or 0, ends[where][1]
            problem = message.error()
            if problem is not None and problem.code() != KafkaError._PARTITION_EOF:
                raise Unavailable(f"cannot read {where[0]}[{where[1]}]: {problem.str()}")
            if problem is None and not (exit_at_end and offset >= end):
                yield message
            # The last offset may be a transaction's marker, which is never handed out: the end is reached
            # with the record before it, with the event that says so, or past it.
            if offset >= (end - 1 if problem is None else end):
                unread.discard(where)
        flush()

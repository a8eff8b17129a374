"""What consumers have not read yet. Their committed offsets tell, also while nobody runs them."""

from collections.abc import Iterator
from contextlib import closing, suppress
from time import time
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.config.topic_names import topics_of_cache
from relay.errors import RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.committed import open_reader
from relay.kafka.group_offsets import group, refuse_errors
from relay.kafka.partition_offsets import offset_bounds

LATE = 15.0  # seconds beyond ``apply_every``: a consumer that runs has usually committed by then
_TIMEOUT = 5.0


class Unread(NamedTuple):
    """``offsets``: the unread offsets in all topics; the end of a transaction takes one, too. ``is_late``: whether one
    is older than `LATE`."""

    offsets: int
    is_late: bool


def unread(config: Config, admin: AdminClient, kind: str) -> Unread | None:
    """Return what the consumer ``kind`` has not read; None without commits on its topics. Raises ``Unavailable``.

    A partition without a commit counts from its first offset. It does not ask for the members of the group: consumers
    commit without being any, and librdkafka 2.16 may abort a process that asks.
    """
    name, cache = group(config, kind), config.cache if kind == "cache" else None
    of_changes = [*map(config.topic, config.tables), config.internal("gaps")]
    names = set(of_changes if cache is None else topics_of_cache(config, cache))
    others = cache is None and not config.names_tables  # the source's tables may be unknown here
    existing = topics.list_topics(admin, config)
    asked = [TopicPartition(t, n) for t in existing if others or t in names for n in existing[t].partitions]
    try:
        with closing(open_reader(config, "status", name, {})) as consumer:
            found = consumer.committed(asked, timeout=_TIMEOUT) if asked else []
            refuse_errors(found)
            committed = {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}
            if not committed:
                return None
            names |= {topic for topic, _ in committed}
            bounds = offset_bounds(admin, [(p.topic, p.partition) for p in asked if p.topic in names], _TIMEOUT)
            reached = {at: committed.get(at, first) for at, (first, end) in bounds.items()}
            waiting = {at: end for at, (_, end) in bounds.items() if end > reached[at]}
            section = config.log if kind == "log" else config.copy_ if kind == "copy" else None
            before = int((time() - LATE - (section.apply_every if section else 0.0)) * 1000)
            times = [TopicPartition(*at, before) for at in waiting]
            newer = consumer.offsets_for_times(times, timeout=_TIMEOUT) if times else []
            refuse_errors(newer)
    except KafkaException as error:
        raise Unavailable(f"cannot look up the offsets of consumer group {name}: {error.args[0].str()}") from error
    # Negative: all records of the partition are older.
    is_late = any(p.offset < 0 or p.offset > reached[p.topic, p.partition] for p in newer)
    return Unread(sum(end - reached[at] for at, end in waiting.items()), is_late)


def unread_of_all(config: Config) -> Iterator[dict[str, Any]]:
    """Yield what each consumer of ``config`` has not read, as ``judge`` wants it. Raises ``Unavailable``."""
    if kinds := consumers_of(config):
        admin = topics.connect(config)
        for kind in kinds:
            with suppress(RelayError):  # the relay may lack permission for one of the groups
                if (found := unread(config, admin, kind)) is not None:
                    yield {"consumer": kind, **found._asdict()}


def consumers_of(config: Config) -> list[str]:
    sections = {"cache": config.cache, "log": config.log, "copy": config.copy_}
    return [kind for kind, section in sections.items() if section is not None]

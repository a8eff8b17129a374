"""A mirror of a relay's topics as MirrorMaker makes one: other offsets, committed records alone, partitions cut off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from confluent_kafka import Message, Producer

from relay.config import Config
from relay.kafka import topics
from relay.kafka.committed import read_all_committed

Keep = Callable[[str, list[Message]], int]
"""How many of the first records a mirror has, given the topic at home and all records of a partition."""


def mirror(home: Config, away: Config, tables: Sequence[str], keep: Keep) -> None:
    """Copy the topics of ``home`` to those of ``away``, to the same partitions."""
    source, target = topics.connect(home), topics.connect(away)
    topics.create_missing(target, away, tables)
    names = {home.topic(table): away.topic(table) for table in tables}
    names |= {topic: away.own_topics[kind] for kind, topic in home.own_topics.items()}
    producer = Producer(away.client("mirror"))
    for topic, name in names.items():
        found: dict[int, list[Message]] = defaultdict(list)
        for message in read_all_committed(source, home, topic):
            found[message.partition() or 0].append(message)
        for partition, messages in found.items():
            for each in messages[: keep(topic, messages)]:
                producer.produce(
                    name, each.value(), each.key(), partition, timestamp=each.timestamp()[1], headers=each.headers()
                )
    assert not producer.flush(60)

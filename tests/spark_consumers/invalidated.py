"""What the consumer of the cache has made of a topic: the entries of a Redis, and its group."""

from __future__ import annotations

from collections.abc import Sequence

from relay.avro.topic_schemas import TopicSchemas
from relay.cache import RedisStore, entry_key, generation_key
from relay.cache.entry import decode
from relay.change import Change
from relay.config.topic_names import topics_of_cache
from relay.kafka.group_offsets import GroupOffsets, Offsets
from relay.kafka.topic_writer import TopicWriter
from tests.benchmarks.changes import finished
from tests.spark_consumers.topic import TABLE, Topic, change

UNKNOWN_FRAMING = b"not a known framing"


def version(store: RedisStore, topic: Topic, customer: str) -> int:
    """Return the version up to which the customer's entry is invalidated, 0 if it is not."""
    namespace = topic.config.name
    (found,), _ = store.read([entry_key(namespace, f"order:{customer}")], generation_key(namespace))
    positions = [token.position for token in decode(found.meta).tokens.values() if token] if found else []
    return int(positions[0].removeprefix("DynamoDB/")) - 10**20 if positions else 0


def committed(topic: Topic) -> tuple[Offsets, Offsets]:
    """Return the group's offsets, and the ends of the topics."""
    assert topic.config.cache is not None
    group = GroupOffsets(topic.config, "cache", topics_of_cache(topic.config, topic.config.cache))
    try:
        found = group.committed()
        assert found is not None
        return found, group.locate(found)[1]
    finally:
        group.close()


def values_of(topic: Topic, changes: Sequence[Change]) -> list[bytes]:
    """Return the values of changes of ``orders``, whose schema is published."""
    schemas = TopicSchemas(topic.config.kafka.client(), topic.config.internal("schemas"))
    return [value for value, *_ in finished(TopicWriter(TABLE, topic.name, 2, "hash", schemas), list(changes))]


def undecodable(topic: Topic) -> tuple[bytes, bytes]:
    """Return two values that nobody can read, for a different reason each."""
    return UNKNOWN_FRAMING, values_of(topic, [change("c1", 2)])[0][:-3]

"""Notes with the committed offsets of a group, in the metadata that Kafka stores with each."""

from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import TopicPartition

from relay.kafka.created_again import NO_ID

_ID, _CACHE, _HTTP = "relay.topic=", " relay.cache=", " relay.http="
"""What stands before the id of the topic; before the place of a cache; and before the address of the consumer's status,
HOST:PORT@NAME, with its machine's name. A note has them in this order."""


def with_id(
    topic: str, partition: int, offset: int, ids: Mapping[str, str], cache: str = "", http: str = ""
) -> TopicPartition:
    """Return an offset to commit, with the id of its topic and any other notes that are not ""."""
    noted = f"{_ID}{ids.get(topic, NO_ID)}{cache and _CACHE}{cache}{http and _HTTP}{http}"
    return TopicPartition(topic, partition, offset, noted)


class Noted(NamedTuple):
    """The notes with a committed offset, "" where there is none; see `_ID`, `_CACHE` and `_HTTP`."""

    topic_id: str
    cache: str
    http: str


def noted(committed: TopicPartition) -> Noted:
    rest, _, http = (committed.metadata or "").partition(_HTTP)
    number, _, cache = rest.partition(_CACHE)
    return Noted(number.removeprefix(_ID), cache, http) if number.startswith(_ID) else Noted("", "", "")

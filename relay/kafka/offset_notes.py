"""What stands beside the committed offsets of a group, in the metadata that Kafka keeps with each."""

from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import TopicPartition

from relay.kafka.created_again import NO_ID

_ID = "relay.topic="
"""How what is committed with an offset begins; the id of the topic follows."""

_CACHE = " relay.cache="
"""What follows that, in the group of a cache: the place of the cache."""

_HTTP = " relay.http="
"""What may follow that: where the consumer serves its status, as HOST:PORT@NAME, the name of its machine."""


def with_id(
    topic: str, partition: int, offset: int, ids: Mapping[str, str], cache: str = "", http: str = ""
) -> TopicPartition:
    """Return an offset to commit, with the id of its topic, and what else is noted beside it, unless that is ""."""
    noted = f"{_ID}{ids.get(topic, NO_ID)}{cache and _CACHE}{cache}{http and _HTTP}{http}"
    return TopicPartition(topic, partition, offset, noted)


class Noted(NamedTuple):
    """What stands beside a committed offset, "" for what does not; see `_ID`, `_CACHE` and `_HTTP`."""

    topic_id: str
    cache: str
    http: str


def noted(committed: TopicPartition) -> Noted:
    rest, _, http = (committed.metadata or "").partition(_HTTP)
    number, _, cache = rest.partition(_CACHE)
    return Noted(number.removeprefix(_ID), cache, http) if number.startswith(_ID) else Noted("", "", "")

"""The largest record and batch that brokers and the producer allow, measured before compression: always the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from relay.kafka.topics import LARGEST_MESSAGE, FoundTopic

Headers = list[tuple[str, str | bytes | None]]

_BATCH_OVERHEAD = 61  # bytes before the records of a batch
_RECORD_OVERHEAD = 32  # upper bound for a record's lengths, offset and time
_HEADER_OVERHEAD = 10  # upper bound for the two lengths of a header


def record_size(value: bytes, key: bytes, headers: Headers) -> int:
    """Return an upper bound for the bytes of a batch with only this record."""
    texts = sum(len(name.encode()) + len(text or b"") + _HEADER_OVERHEAD for name, text in headers)
    return _BATCH_OVERHEAD + _RECORD_OVERHEAD + len(value) + len(key) + texts


def too_small(topic: str, limit: int, size: int) -> str:
    """Return the error about a record of ``size`` bytes: the limit of its topic, and how to raise it."""
    wanted = max(LARGEST_MESSAGE, 2 * size)
    return (
        f"topic {topic} allows {limit}: raise the topic's max.message.bytes (`kafka-configs --alter --entity-type "
        f"topics --entity-name {topic} --add-config max.message.bytes={wanted}`) and, if it is lower, the producer's "
        "message.max.bytes (`kafka.producer` in the config), then restart the relay. Nothing was skipped"
    )


def largest_records(found: Sequence[FoundTopic], producer: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of each topic's largest record, as ``record_size`` counts: the least of all limits for it."""
    own = int(producer.get("message.max.bytes", LARGEST_MESSAGE))
    return {each.topic.name: min(own, each.largest_message or own) for each in found}


def with_batches(producer: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return a producer's settings with batches that all topics allow: a producer has only one size."""
    largest = min(limits.values())
    return {**producer, "batch.size": min(int(producer.get("batch.size", largest)), largest)}

"""The largest record and batch that broker and producer allow.

A larger change becomes a stub (``relay.kafka.topic_writer``), so a change must have the same size each time: it is
measured before compression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.kafka.topics import LARGEST_MESSAGE, FoundTopic

Headers = list[tuple[str, str | bytes | None]]

_BATCH_OVERHEAD = 61  # bytes in front of the records of a batch
_RECORD_OVERHEAD = 32  # at most, for a record's lengths, offset and time
_HEADER_OVERHEAD = 10  # at most, for the two lengths of a header


def record_size(value: bytes, key: bytes, headers: Headers) -> int:
    """Return the bytes of a batch with only this record, at most."""
    texts = sum(len(name.encode()) + len(text or b"") + _HEADER_OVERHEAD for name, text in headers)
    return _BATCH_OVERHEAD + _RECORD_OVERHEAD + len(value) + len(key) + texts


def too_small(topic: str, limit: int, size: int) -> str:
    """Return the error about a record of ``size`` bytes: what its topic allows, and how to raise that."""
    wanted = max(LARGEST_MESSAGE, 2 * size)
    return (
        f"topic {topic} allows {limit}: raise the topic's max.message.bytes (`kafka-configs --alter --entity-type "
        f"topics --entity-name {topic} --add-config max.message.bytes={wanted}`) and, if it is lower, the producer's "
        "message.max.bytes (`kafka.producer` in the config), then restart the relay. Nothing was skipped"
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """``records``: per topic, the bytes of the largest record, as ``record_size`` counts them.

    ``batch``: bytes of the largest batch that all topics allow.
    """

    records: Mapping[str, int]
    batch: int

    @classmethod
    def from_topics(cls, found: Sequence[FoundTopic], producer: Mapping[str, Any]) -> Limits:
        """Return the limits of existing topics: for each the smallest of the producer's, the broker's and its own."""
        own = int(producer.get("message.max.bytes", LARGEST_MESSAGE))
        records = {each.topic.name: min(own, each.largest_message or own) for each in found}
        return cls(records, min(records.values()))

    def producer(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``settings`` with a batch size that all topics allow: a producer has only one."""
        return {**settings, "batch.size": min(int(settings.get("batch.size", self.batch)), self.batch)}

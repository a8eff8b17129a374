"""How large a record may be, and a batch of them: what the broker takes, and what the producer sends.

A change that is larger becomes a stub (``relay.kafka.topic_writer``), so the same change has to be measured the same
way each time: before compression, whatever that would save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.kafka.topics import LARGEST_MESSAGE, FoundTopic

Headers = list[tuple[str, str | bytes | None]]

_BATCH = 61  # bytes in front of the records of a batch
_RECORD = 32  # bytes of a record's lengths, offsets and times, at most
_HEADER = 10  # bytes of a header's two lengths, at most


def record_size(value: bytes, key: bytes, headers: Headers) -> int:
    """Return the bytes that a batch of this one record takes, at most."""
    texts = sum(len(name.encode()) + len(text or b"") + _HEADER for name, text in headers)
    return _BATCH + _RECORD + len(value) + len(key) + texts


@dataclass(frozen=True, slots=True)
class Limits:
    """``records``: the largest record that each topic takes, in bytes as `record_size` counts them.

    ``batch``: the largest batch that every topic takes.
    """

    records: Mapping[str, int]
    batch: int

    @classmethod
    def of(cls, found: Sequence[FoundTopic], producer: Mapping[str, Any]) -> Limits:
        """Return the limits of topics that exist: the least of what producer, broker and topic say."""
        own = int(producer.get("message.max.bytes", LARGEST_MESSAGE))
        records = {each.topic.name: min(own, each.largest_message or own) for each in found}
        return cls(records, min(records.values()))

    def producer(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``settings`` with batches that no topic refuses: a producer has one size for all of them."""
        return {**settings, "batch.size": min(int(settings.get("batch.size", self.batch)), self.batch)}

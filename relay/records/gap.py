"""Gaps, and gaps that wait for a person's decision."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from relay.records.codec import StoredRecord
from relay.records.key import StreamId
from relay.records.shard import Position, position_text


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes that are lost or may be lost, published as a separate event (I9).

    ``begin``, ``end``: the positions around the lost changes, or None where unknown. ``found_at``: seconds. ``table``:
    the only one whose rows have changed, by a ``statement`` that logs no rows; None for changes that are lost.
    """

    source: str
    label: str
    shard: str | None
    reason: str
    begin: Position | None
    end: Position | None
    found_at: float
    table: str | None = None
    statement: str = ""

    @property
    def id(self) -> str:
        """The id of the gap, which is the same each time the gap is found."""
        identity = [self.source, self.label, self.shard, self.reason, self.begin]
        if self.table is not None:  # I9: each shard has the statement, but on one day it is one
            identity = [self.source, self.table, self.reason, self.statement, str(self.found_at // 86_400)]
        return hashlib.blake2b(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()

    def __str__(self) -> str:
        place = f"stream {self.label}" if self.shard is None else f"shard {self.shard} of stream {self.label}"
        return f"{self.reason}, {place}, after {position_text(self.begin or {}) or 'its start'}"

    def published(self) -> dict[str, Any]:
        """Return the gap in the form of the gaps topic, in which it is also shown."""
        return {
            "id": self.id,
            "source": self.source,
            "stream": self.label,
            "shard": self.shard,
            "reason": self.reason,
            "from": self.begin,
            "to": self.end,
            "found_at": self.found_at,
            **({"table": self.table, "statement": self.statement} if self.table is not None else {}),
        }

    def to_json(self) -> bytes:
        return orjson.dumps(self.published())


class Decision(StrEnum):
    SKIP = "skip"
    RESNAPSHOT = "resnapshot"


@dataclass(frozen=True, slots=True)
class PendingGap(StoredRecord):
    """A gap that a person has to decide about. ``decision``: None while pending. ``updated_at``: seconds."""

    gap: Gap
    decision: Decision | None = None
    updated_at: float = 0.0

    @property
    def id(self) -> str:
        return self.gap.id

    @property
    def key(self) -> bytes:
        return StreamId(self.gap.source, self.gap.label).gap_key(self.id)

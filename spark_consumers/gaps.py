"""Gaps, as the log and the copy keep them: where changes were lost, what is stored may be wrong (I9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import orjson

from relay.change import Snapshot
from relay.config import Config
from relay.kafka.committed import read_all_committed
from relay.kafka.topics import connect
from spark_consumers.dead_letters import NonChangeRecord
from spark_consumers.fold import READ_WITHIN
from spark_consumers.records import DecodeStatus

_MARGIN = READ_WITHIN // 2  # seconds by which the `as_of` of a snapshot is before its beginning


@dataclass(frozen=True, slots=True)
class LostChanges:
    """A record of the gaps topic. ``source`` None: of any, since the record cannot be read. ``found_at``: seconds."""

    id: str
    source: str | None
    reason: str
    found_at: float
    record: str

    @classmethod
    def read(cls, record: NonChangeRecord) -> LostChanges:
        text = record.value.decode(errors="replace")
        try:
            gap = orjson.loads(record.value)
            found_at = float(gap["found_at"])
            datetime.fromtimestamp(found_at, UTC)
            return cls(str(gap["id"]), str(gap["source"]), str(gap["reason"]), found_at, text)
        except (ValueError, TypeError, KeyError, OverflowError, OSError):
            place = f"{record.topic}/{record.partition}/{record.offset}"
            return cls(place, None, "the gap record cannot be read", 0.0, text)

    def is_repaired_by(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot, whose begin has ``as_of``, began after the gap was found."""
        return snapshot.as_of + _MARGIN >= self.found_at > 0


def lost_changes(records: Iterable[NonChangeRecord]) -> list[LostChanges]:
    """Return the gaps among some records."""
    return [LostChanges.read(record) for record in records if record.status is DecodeStatus.GAP]


def published_gaps(config: Config, begin: int, end: int) -> list[LostChanges]:
    """Return the gaps on the topic from the offset ``begin`` on, before ``end``. Raises ``Unavailable``."""
    if max(begin, 0) >= end:
        return []
    topic = config.internal("gaps")
    records = (
        NonChangeRecord(
            DecodeStatus.GAP, topic, message.partition() or 0, message.offset() or 0, message.value() or b""
        )
        for message in read_all_committed(connect(config), config, topic)
    )
    return lost_changes(record for record in records if begin <= record.offset < end)


def to_json(gaps: Sequence[LostChanges]) -> str:
    """Return the text by which a table keeps its gaps: a list of objects; ``from_json`` reads it."""
    return orjson.dumps([asdict(gap) for gap in gaps]).decode()


def from_json(text: str) -> list[LostChanges]:
    return [LostChanges(**gap) for gap in orjson.loads(text or "[]")]

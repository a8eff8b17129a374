"""Gaps in the log and the copy: where changes were lost, the stored rows may be wrong (I9)."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Self

import orjson

from relay.change import Snapshot
from relay.records.gap import Gap
from spark_consumers.dead_letters import NonChangeRecord
from spark_consumers.fold import READ_WITHIN
from spark_consumers.records import DecodeStatus

_MARGIN = READ_WITHIN // 2  # seconds by which the `as_of` of a snapshot is before its beginning


@dataclass(frozen=True, slots=True)
class Hole:
    """The offsets of a partition from ``begin`` up to ``end``."""

    topic: str
    partition: str
    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] from offset {self.begin} to {self.end}"


@dataclass(frozen=True, slots=True)
class LostChanges:
    """A record of the gaps topic, which may be about one ``table``, or changes of one that a consumer has missed.

    ``source``, ``table``: None means any, because the record cannot be read or does not name it. ``found_at``: seconds.
    ``open_since``: when a table was set aside, in seconds; 0 if none was, or a snapshot has repaired it.
    ``taken_back``: whether that table takes changes again; else it misses changes up to now. ``statement``: what may
    have changed rows of the table without a change.
    """

    id: str
    source: str | None
    reason: str
    found_at: float
    record: str
    table: str | None = None
    open_since: float = 0.0
    taken_back: bool = False
    statement: str = ""

    @classmethod
    def read(cls, record: NonChangeRecord) -> Self:
        text = record.value.decode(errors="replace")
        try:
            gap = orjson.loads(record.value)
            found_at = float(gap["found_at"])
            datetime.fromtimestamp(found_at, UTC)
            found = cls(str(gap["id"]), str(gap["source"]), str(gap["reason"]), found_at, text)
            return replace(found, table=str(gap["table"]), statement=str(gap["statement"])) if "table" in gap else found
        except (ValueError, TypeError, KeyError, OverflowError, OSError):
            place = f"{record.topic}/{record.partition}/{record.offset}"
            return cls(place, None, "the gap record cannot be read", 0.0, text)

    @classmethod
    def between(cls, hole: Hole, source: str, table: str, found_at: float) -> Self:
        """Return the gap of a table for offsets that its consumer has missed."""
        reason, shard = "the consumer began behind changes that it had not applied", f"{hole.topic}[{hole.partition}]"
        begin, end = {"offset": hole.begin}, {"offset": hole.end}
        gap = Gap(source, hole.topic, shard, reason, begin, end, found_at)
        # A hole with a different end is a different gap.
        return cls(f"{gap.id}-{hole.end}", source, f"{reason}: {hole}", found_at, gap.to_json().decode(), table)

    @classmethod
    def by_fault(cls, name: str, source: str, table: str, reason: str) -> Self:
        """Return the gap of a table that refused some changes, which were committed up to now."""
        # I9: so that the `as_of` of a snapshot that repairs it is later.
        return cls(name, source, reason, time.time() + _MARGIN, "", table)

    def concerns(self, source: str, table: str) -> bool:
        return self.source in (source, None) and self.table in (table, None)  # I12

    def is_repaired_by(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot, whose begin has ``as_of``, began after the gap was found.

        A statement changed rows as old as itself, which a READ replaces only if its ``as_of`` is later.
        """
        margin = 0 if self.statement else _MARGIN  # I9
        return snapshot.as_of + margin >= self.found_at > 0


def lost_changes(records: Iterable[NonChangeRecord]) -> list[LostChanges]:
    return [LostChanges.read(record) for record in records if record.status is DecodeStatus.GAP]


def fewest(gaps: Iterable[LostChanges]) -> list[LostChanges]:
    """Return gaps without those of statements between the first and the last about their table, which say no more."""
    found, ends = [*gaps], dict[tuple[str | None, str | None], list[LostChanges]]()
    for gap in sorted((each for each in found if each.statement), key=attrgetter("found_at")):
        name = gap.source, gap.table
        ends[name] = [*ends.get(name, ())[:1], gap]
    return [gap for gap in found if not gap.statement or gap in ends[gap.source, gap.table]]  # I11


def to_json(gaps: Sequence[LostChanges]) -> str:
    """Return the text in which a table keeps its gaps: a list of objects, which ``from_json`` reads."""
    return orjson.dumps([asdict(gap) for gap in gaps]).decode()


def from_json(text: str) -> list[LostChanges]:
    return [LostChanges(**gap) for gap in orjson.loads(text or "[]")]

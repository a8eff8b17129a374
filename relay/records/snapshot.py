"""The newest snapshot of a stream, its segments, and the requests for snapshots of a source."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from relay.records.codec import StoredRecord
from relay.records.key import request_key
from relay.records.shard import Position, ShardState, UnplannedTable


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """What a segment reads, as its source names it: a table of a shard, or of a table created at a time, in seconds."""

    shard: str = ""
    table: str = ""
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class SnapshotControl(StoredRecord):
    """The newest snapshot of a stream, which the owner of its key advances: planned, reading, finished.

    ``after``: seconds, it begins later than this. ``as_of``, ``segments``, ``rows`` (estimated), ``parts`` (what each
    segment reads): once it has begun. ``tables``: what it reads; None means all tables. ``gaps``: the ids of the gaps
    that it repairs. ``requests``: the ids of the requests that it fulfils, if any. ``repaired``: the ids of gaps that
    snapshots before it have repaired, and ``read``, if one of them read all tables and has finished: kept by a snapshot
    that was requested, which takes the place of their control record. ``covered``: the tables that have been read once
    it has finished, by it or before it, or None if that is not known. ``left_out``: tables that it does not end for:
    they cannot be read, were taken out of the config while it ran, or are read again. While it is planned: not empty if
    it takes the place of one that has begun and not ended. ``emptied``: when a table was last emptied before it was
    measured, by shard (``relay.snapshots.emptied_tables``). ``again``: tables that were emptied since, and that the
    next snapshot reads, which begins ``after`` their last rows were read. ``repetitions``: how many snapshots in a row
    were repeated so. ``updated_at``: seconds since the epoch.
    """

    state: ShardState
    id: str
    after: int = 0
    as_of: int = 0
    segments: int = 0
    rows: int = 0
    parts: tuple[SnapshotPart, ...] = ()
    tables: tuple[str, ...] | None = None
    gaps: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    read: bool = False
    covered: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    emptied: Mapping[str, float] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    repetitions: int = 0
    updated_at: float = 0.0

    @property
    def segment_names(self) -> list[str]:
        return [f"{self.id}/{number}" for number in range(self.segments)]


@dataclass(frozen=True, slots=True)
class SegmentCheckpoint(StoredRecord):
    """How far a segment of a snapshot is read. ``position``: has ``rows``, how many were read.

    ``unplanned``: see `ShardCheckpoint`. ``updated_at``: seconds since the epoch.
    """

    state: ShardState
    position: Position | None = None
    updated_at: float = 0.0
    unplanned: Mapping[str, UnplannedTable] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return int(self.position["rows"]) if self.position is not None else 0


@dataclass(frozen=True, slots=True)
class SnapshotRequest(StoredRecord):
    """A snapshot that is wanted. ``tables``: sorted; empty: all. Times are seconds since the epoch.

    ``stopped``: it is not to go on, or not to begin, until it is resumed. ``after``: it begins later than this. Not 0:
    a statement made it, and no person, and its table may be gone since.
    """

    source: str
    id: str
    tables: tuple[str, ...]
    requested_at: float
    stopped: bool = False
    updated_at: float = 0.0
    after: int = 0

    @classmethod
    def new(cls, source: str, tables: Iterable[str], now: float) -> SnapshotRequest:
        return cls(source, f"{int(now)}-{secrets.token_hex(4)}", tuple(sorted(tables)), now, updated_at=now)

    @property
    def key(self) -> bytes:
        return request_key(self.source, self.id)

    @property
    def subject(self) -> str:
        """What it reads, for messages."""
        return f"table {', '.join(self.tables)}" if self.tables else "all tables"

    def changed(self, *, stopped: bool, now: float) -> SnapshotRequest:
        return replace(self, stopped=stopped, updated_at=now)

"""The newest snapshot of a stream, its segments, and the requests for snapshots of a source."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from relay.records.codec import StoredRecord
from relay.records.gap import Gap
from relay.records.key import request_key
from relay.records.shard import Position, ShardState, UnplannedTable


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """What a segment reads, in its source's terms: a table of a shard, or a table and its creation time in seconds."""

    shard: str = ""
    table: str = ""
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class SnapshotBeginning:
    """The state when a snapshot began ``as_of`` a time in seconds. ``parts``: what its ``segments`` read.

    ``rows``: estimated. ``emptied``: by shard, when a table was last emptied before it was measured.
    """

    as_of: int = 0
    segments: int = 0
    rows: int = 0
    parts: tuple[SnapshotPart, ...] = ()
    emptied: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotControl(StoredRecord):
    """The newest snapshot of a stream, which the owner of its key advances: planned, reading, finished.

    ``after``: the snapshot begins later than this time, in seconds. ``begun``: empty before. ``tables``: what it reads;
    None means all tables. ``gaps``: the ids of the gaps that it repairs. ``requests``: the ids of the requests that it
    fulfils, if any. ``repaired``: the ids of gaps that earlier snapshots repaired. ``read``: whether one of those read
    all tables to the end. A requested snapshot keeps both, because it replaces their control record. ``covered``: the
    tables that this or earlier snapshots have read once this one has finished, or None if unknown. ``left_out``: tables
    for which it has no end: they cannot be read, were removed from the config while it ran, or are read again; in a
    planned snapshot, not empty if it replaces one that has begun and not ended. ``again``: tables that were emptied
    since it began; the next snapshot reads them and begins ``after`` their last rows were read. ``repetitions``: how
    many snapshots in a row were repeated for that. ``updated_at``: seconds since the epoch.
    """

    state: ShardState
    id: str
    after: int = 0
    begun: SnapshotBeginning = SnapshotBeginning()
    tables: tuple[str, ...] | None = None
    gaps: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    read: bool = False
    covered: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    repetitions: int = 0
    updated_at: float = 0.0

    @property
    def segment_names(self) -> list[str]:
        return [f"{self.id}/{number}" for number in range(self.begun.segments)]


@dataclass(frozen=True, slots=True)
class SegmentCheckpoint(StoredRecord):
    """How far a segment of a snapshot was read. ``position``: its ``rows`` is the number of rows read.

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
    """A requested snapshot. ``tables``: sorted; empty: all. Times are in seconds since the epoch.

    ``after``: it begins later than this. If not 0, a statement made the request, and the table may be gone by now.
    ``gap``: what the statement has done, if nobody has requested a snapshot yet. It then waits for any that reads the
    table.
    """

    source: str
    id: str
    tables: tuple[str, ...]
    requested_at: float
    stopped: bool = False
    updated_at: float = 0.0
    after: int = 0
    gap: Gap | None = None

    @classmethod
    def new(cls, source: str, tables: Iterable[str], now: float) -> SnapshotRequest:
        return cls(source, f"{int(now)}-{secrets.token_hex(4)}", tuple(sorted(tables)), now, updated_at=now)

    @property
    def key(self) -> bytes:
        return request_key(self.source, self.id)

    @property
    def subject(self) -> str:
        """The tables that it reads, for messages."""
        return f"table {', '.join(self.tables)}" if self.tables else "all tables"

    def changed(self, *, stopped: bool, now: float) -> SnapshotRequest:
        return replace(self, stopped=stopped, updated_at=now)

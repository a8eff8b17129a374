"""The facts that decide the next step of a snapshot, and the possible steps. See ``control.next_step``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from relay.records import SegmentCheckpoint, ShardCheckpoint, SnapshotControl, SnapshotRequest
from relay.source import Measured


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the snapshot ``id`` has to read. ``asked``: the step that requested it.

    ``found``: None while unknown, or while a READ could undo a change that is not published yet.
    """

    id: str
    asked: Measure
    found: Measured | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one source and its stream, as this worker sees them. Times are seconds since the epoch.

    ``margin``, ``is_selective``, ``is_initial``: see `SnapshotSource`. ``is_unread``: no snapshot of all tables has
    finished in any stream. ``tables``: the names of the source's tables. ``dropped``: names of wanted tables that
    copies may have and that are not among ``tables``. ``gaps``: the ids of all known gaps. ``to_repair``: the ids of
    gaps that a snapshot has to repair. ``last_timestamp``: the newest that may have been published. ``requests``: the
    ones not fulfilled yet, the oldest first. ``published``: the committed checkpoints of shards that list emptied
    tables. ``segments``: the checkpoints of the segments. ``awaited``: the time up to which shards have to be published
    before the snapshot ends; 0 if the wait has not begun.
    """

    now: float
    margin: float
    is_selective: bool
    is_initial: bool
    is_unread: bool
    tables: Set[str]
    dropped: Set[str]
    gaps: Set[str]
    to_repair: Set[str]
    last_timestamp: int
    requests: Sequence[SnapshotRequest]
    published: Mapping[str, ShardCheckpoint]
    segments: Mapping[str, SegmentCheckpoint]
    measurement: Measurement | None = None
    awaited: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done until something else happens.

    ``begins_in``: seconds, if it waits for a time. ``published_to``: if it waits for shards, how far to publish.
    """

    begins_in: float = 0.0
    published_to: float = 0.0


@dataclass(frozen=True, slots=True)
class Measure:
    """The source has to be asked what the planned snapshot reads. ``emptied``: for the control record."""

    as_of: int
    emptied: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WriteControl:
    """A control record to write in one transaction with each table's ``mark``. ``said``, ``warned``: what to log."""

    control: SnapshotControl
    mark: Literal["begin", "end"] | None = None
    said: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()


Step = Wait | Measure | WriteControl

"""The life of a shard, and its record: how far it is published."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from relay.records.codec import StoredRecord
from relay.token import EventToken

Position = Mapping[str, Any]  # the position up to which a shard was read, as JSON. Each source has its own type for it
Start = Mapping[str, Any]  # as JSON: a position, ``{"type": "trim_horizon"}``, ``{"since": seconds}`` etc.
TableKey = tuple[Annotated[tuple[str, ...], Field(min_length=2, max_length=3)], ...]
"""A table's key columns, hash columns first, as (name, type), or as (name, type, sql) if `KeyColumn` has ``sql``."""

PRUNE_AFTER = 48 * 3600  # seconds that the record of an ended shard is kept: twice the retention of DynamoDB Streams
INCARNATION = "@"  # separates a shard's name from what distinguishes it from other shards of that name


def position_text(position: Position | Start) -> str:
    """Return a position or a start as text for people; empty for one without content."""
    if "gtid" in position:
        # A transaction in progress follows the executed GTID set.
        rows = f" and {position['rows_done']} rows of {position['transaction']}" if position.get("rows_done") else ""
        return f"{position['gtid']}{rows}"
    if "stream" in position:
        return f"stream {position['stream']}"
    return str(position.get("sequence") or position.get("since") or position.get("type") or "")


def is_inside_transaction(position: Position | None) -> bool:
    """Whether part of a source transaction is on the topic at ``position``."""
    return position is not None and "transaction" in position


class ShardState(StrEnum):
    """Planned, reading, finished or gone; *pruned* is the absence of a record."""

    PLANNED = "planned"
    READING = "reading"
    FINISHED = "finished"
    GONE = "gone"

    @property
    def ended(self) -> bool:
        return self in (ShardState.FINISHED, ShardState.GONE)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as its source lists it. ``start``: where it begins, if its lineage decides that and not the plan.

    ``closed``: nothing more is added, because it has an end or children.
    """

    id: str
    parents: tuple[str, ...] = ()
    start: Start | None = None
    closed: bool = False

    @property
    def name(self) -> str:
        """The source's name for the shard: resharding may give a later shard the name of an earlier one."""
        return self.id.partition(INCARNATION)[0]


@dataclass(frozen=True, slots=True)
class ReshardJournal:
    """A reshard as the source announces it, with its names for shards.

    ``participants``: the shards that end with this journal. ``targets``: where those that continue them begin.
    """

    id: str
    participants: tuple[str, ...]
    targets: Mapping[str, Start]


@dataclass(frozen=True, slots=True)
class UnplannedTable:
    """A table that a plan lacks: its key columns, how many of them choose the partition, and its topic."""

    key: TableKey
    hashed: int
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ShardCheckpoint(StoredRecord):
    """How far one shard is published: everything before ``position`` is on the topic (I4).

    ``position``: None until something was read. ``start``: where reading begins. ``progress``: seconds since the epoch
    up to which the shard has been read, not clamped, or None if never. ``journal``: the reshard that ended the shard,
    see ``relay.stream.journals``. ``reached``: see ``Page``. ``gap``: the id of its last gap.
    ``updated_at``: seconds since the epoch. ``emptied``: when tables were last emptied or renamed, in seconds, for
    snapshots that run meanwhile (``relay.snapshots.emptied_tables``). ``unplanned``: tables with published changes that
    the plan lacks: the plan's owner adds them. ``quiet_at``: for a source that does not know its head, when a read last
    found nothing waiting, in seconds.
    """

    state: ShardState
    position: Position | None = None
    token: EventToken | None = None
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    start: Start | None = None
    gap: str | None = None
    updated_at: float = 0.0
    progress: float | None = None
    journal: ReshardJournal | None = None
    reached: float | None = None
    emptied: Mapping[str, float] = field(default_factory=dict)
    unplanned: Mapping[str, UnplannedTable] = field(default_factory=dict)
    quiet_at: float | None = None

    @property
    def complete_until(self) -> float | None:
        """Seconds up to which everything that the source showed is published; None if unknown. Used for the lag."""
        known = (self.progress, self.reached, self.quiet_at)
        return max((each for each in known if each is not None), default=None)


def has_ended(checkpoints: Mapping[str, ShardCheckpoint], shard: str) -> bool:
    """Whether ``shard`` is finished or gone according to ``checkpoints``."""
    checkpoint = checkpoints.get(shard)
    return checkpoint is not None and checkpoint.state.ended


def followers(shard: str, checkpoints: Mapping[str, ShardCheckpoint]) -> dict[str, str | None]:
    """Return, by name, the ids of the shards that continue ``shard``: None for one that no checkpoint mentions yet."""
    checkpoint = checkpoints.get(shard)
    if checkpoint is None or checkpoint.journal is None:
        return {}
    found = {Shard(each).name: each for each, child in checkpoints.items() if shard in child.parents}
    return {target: found.get(Shard(target).name) for target in checkpoint.journal.targets}


@dataclass(frozen=True, slots=True)
class ShardListing(StoredRecord):
    """The newest complete listing of a stream's shards, which one worker makes for all.

    ``begun``: seconds since the epoch, by the source's clock. ``took``: seconds. ``successor``: the label of the stream
    that follows, or None.
    """

    begun: float
    took: float
    shards: tuple[Shard, ...] = ()
    successor: str | None = None

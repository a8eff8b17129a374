"""A worker's status at one moment, as ``relay.engine.status`` takes it. It never changes, so any thread may read it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relay.kafka.checkpoints import partition_of
from relay.records import Plan, Shard, ShardCheckpoint, StreamId, has_ended
from relay.records.lag import lag_since, shard_watermark, source_watermark


class Poll(NamedTuple):  # created for every open shard, in a third of the time of a frozen dataclass
    """The polls of a shard that is open in this worker, in monotonic seconds."""

    polled: float  # the last successful read, or the opening
    failures: int  # failed reads since
    error: str | None  # of the last of them
    wait: float = 0.0  # scheduled seconds from ``polled`` to the next read
    reading_since: float | None = None  # when the read that is under way began


class LatestListing(NamedTuple):
    """The latest listing of shards. Times are seconds since the epoch."""

    shards: Mapping[str, Shard]
    at: float  # when it began, 0 before the first
    wanted_at: float  # when one was last requested
    took: float = 0.0  # seconds


@dataclass(frozen=True, slots=True)
class SourceView:
    """One source. ``held_up_since``: since when this worker makes its plan or connects to its stream, since the epoch.

    ``set_aside``: the shards and segments that wait for a person, None for the whole stream, with the monotonic time
    since when, and why.
    """

    stream: StreamId
    plan: Plan | None
    checkpoints: Mapping[str, ShardCheckpoint]  # the committed ones of all workers
    listing: LatestListing
    low_watermark: float | None  # see ``relay.stream.progress``
    open: Mapping[str, Poll]
    segments: Mapping[str, Poll]  # the snapshot segments open in this worker
    rows: tuple[int, int] | None  # read and estimated, while a snapshot is running
    held_up_since: float | None = None
    pending_gaps: tuple[Mapping[str, Any], ...] = ()  # those that a person has to decide about, as on the gaps topic
    set_aside: tuple[tuple[str | None, float, str], ...] = ()
    has_snapshots: bool = True  # whether its tables can be read again
    repaired: frozenset[str] = frozenset()  # the ids of gaps that a snapshot repairs or has repaired
    left_out: Mapping[str, str] = field(default_factory=dict)  # the tables that cannot be relayed, and why

    def polls(self) -> Iterator[tuple[StreamId, str, Poll]]:
        """Yield everything that is open in this worker: shards, then snapshot segments."""
        yield from ((self.stream, shard, poll) for shard, poll in self.open.items())
        yield from ((self.stream.snapshots, segment, poll) for segment, poll in self.segments.items())

    def unfinished(self) -> set[str]:
        return {shard for shard in self.shards() if not self.has_ended(shard)}

    def shards(self) -> set[str]:
        return {*self.listing.shards, *self.checkpoints}

    def has_ended(self, shard: str) -> bool:
        return has_ended(self.checkpoints, shard)

    def parents(self, shard: str) -> tuple[str, ...]:
        known = self.listing.shards.get(shard) or self.checkpoints.get(shard)
        return known.parents if known is not None else ()

    def waits_for(self, shard: str) -> list[str]:
        """Return the parents that must be read to their end first (I2)."""
        known = (self.listing.shards, self.checkpoints)
        return [p for p in self.parents(shard) if not self.has_ended(p) and any(p in shards for shards in known)]

    def lag(self, now: float) -> float | None:
        """See ``relay.records.lag``; None before there is a plan. ``now``: by the wall clock."""
        return None if self.plan is None else lag_since(source_watermark(self.plan, self.checkpoints), now) or 0.0

    def shard_lag(self, shard: str, now: float) -> float | None:
        """The lag of one shard; None if it has ended, and before there is a plan."""
        return None if self.plan is None else lag_since(shard_watermark(shard, self.plan, self.checkpoints), now)

    def partition(self, shard: str) -> int:
        """The checkpoint partition of ``shard``, whose owner reads the shard."""
        return partition_of(self.stream.shard_key(shard))


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker. ``checkpoints_read_at``: by partition, the monotonic time up to which all that was committed is known.

    ``absent``: the sources that are not connected, or refused, each with the monotonic time since when, and why.
    """

    group: str
    joined: bool  # whether it is a member of the group and has passed the fence with some partitions
    owned: frozenset[int]
    gained: frozenset[int]  # the partitions that have not passed it
    sources: tuple[SourceView, ...]
    barrier_timeout: float = 0.0  # seconds that this may take
    read_delay: float = 0.0  # seconds that a read which is due has to wait for others
    checkpoints: str = ""  # the topic
    checkpoints_read_at: Mapping[int, float] = field(default_factory=dict)
    differences: Sequence[str] = ()  # what other workers of the relay have other than this one
    absent: Sequence[tuple[str, float, str]] = ()
    topics: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by source and table

"""A worker's status at one moment: immutable, so the worker's thread takes it and any other thread reads it.

``relay.engine.status`` takes it. Lag, health and gauges are computed from it when somebody asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relay.kafka.checkpoints import partition_of
from relay.records import Plan, Shard, ShardCheckpoint, StreamId, has_ended, shard_lag, source_lag


class Poll(NamedTuple):  # made for every open shard, in a third of the time of a frozen dataclass
    """The polls of a shard that is open in this worker.

    ``polled``: the monotonic time of the last successful read, or of its opening. ``failures``: failed reads since;
    ``error``: the error of the last one. ``wait``: seconds from ``polled`` to the next read, as it was scheduled.
    ``reading_since``: when the read that is under way began, or None if there is none.
    """

    polled: float
    failures: int
    error: str | None
    wait: float = 0.0
    reading_since: float | None = None


@dataclass(frozen=True, slots=True)
class SourceView:
    """One source. ``checkpoints``: the committed ones of all workers. ``listed``: the shards of the latest listing.

    ``listed_at``: when that was, in seconds since the epoch, 0 before the first. ``listing_wanted_at``: when a listing
    was last requested. ``listing_took``: how many seconds the latest took. ``low_watermark``: see
    ``relay.stream.progress``. ``segments``: the snapshot segments open in this worker. ``rows``: rows read and
    estimated, while a snapshot is running. ``held_up_since``: since when, in seconds since the epoch, this worker makes
    its plan, or connects to its stream, or None if it does neither. ``pending_gaps``: the gaps that a person has to
    decide about, as on the gaps topic. ``set_aside``: the shards and segments that wait for a person, None for the
    whole stream, with the monotonic time since when, and why. ``has_snapshots``: whether its tables can be read again.
    ``repaired``: the ids of gaps for which a snapshot reads them again, or has. ``left_out``: the tables that cannot be
    relayed, by name, and why.
    """

    stream: StreamId
    plan: Plan | None
    checkpoints: Mapping[str, ShardCheckpoint]
    listed: Mapping[str, Shard]
    listed_at: float
    listing_wanted_at: float
    low_watermark: float | None
    open: Mapping[str, Poll]
    segments: Mapping[str, Poll]
    rows: tuple[int, int] | None
    listing_took: float = 0.0
    held_up_since: float | None = None
    pending_gaps: tuple[Mapping[str, Any], ...] = ()
    set_aside: tuple[tuple[str | None, float, str], ...] = ()
    has_snapshots: bool = True
    repaired: frozenset[str] = frozenset()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def polls(self) -> Iterator[tuple[StreamId, str, Poll]]:
        """Yield everything that is open in this worker: shards, then snapshot segments."""
        yield from ((self.stream, shard, poll) for shard, poll in self.open.items())
        yield from ((self.stream.snapshots, segment, poll) for segment, poll in self.segments.items())

    def unfinished(self) -> set[str]:
        """Return the shards that are listed or have a checkpoint, and are not read to their end."""
        return {shard for shard in self.shards() if not self.has_ended(shard)}

    def shards(self) -> set[str]:
        return {*self.listed, *self.checkpoints}

    def has_ended(self, shard: str) -> bool:
        return has_ended(self.checkpoints, shard)

    def parents(self, shard: str) -> tuple[str, ...]:
        known = self.listed.get(shard) or self.checkpoints.get(shard)
        return known.parents if known is not None else ()

    def waits_for(self, shard: str) -> list[str]:
        """Return the parents that must be read to their end first (I2)."""
        known = (self.listed, self.checkpoints)
        return [p for p in self.parents(shard) if not self.has_ended(p) and any(p in shards for shards in known)]

    def lag(self, now: float) -> float | None:
        """See ``relay.records.lag``; None before there is a plan. ``now``: by the wall clock."""
        return source_lag(self.plan, self.checkpoints, now) if self.plan is not None else None

    def shard_lag(self, shard: str, now: float) -> float | None:
        """The lag of one shard; None if it has ended, and before there is a plan."""
        return shard_lag(shard, self.plan, self.checkpoints, now) if self.plan is not None else None

    def partition(self, shard: str) -> int:
        """The checkpoint partition of ``shard``, whose owner reads the shard."""
        return partition_of(self.stream.shard_key(shard))


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """``joined``: whether this worker is a member of the group and has passed the fence with some partitions.

    ``gained``: the partitions that have not passed it, which may take ``barrier_timeout`` seconds. ``read_delay``:
    seconds that a read which is due has to wait for others. ``checkpoints_read_at``: by partition of the topic
    ``checkpoints``, the monotonic time up to which everything committed to it is known. ``differences``: what
    other workers of the relay have other than this one. ``absent``: the sources that are not connected, or refused,
    each with the monotonic time since when, and why.
    """

    group: str
    joined: bool
    owned: frozenset[int]
    gained: frozenset[int]
    sources: tuple[SourceView, ...]
    barrier_timeout: float = 0.0
    read_delay: float = 0.0
    checkpoints: str = ""
    checkpoints_read_at: Mapping[int, float] = field(default_factory=dict)
    differences: Sequence[str] = ()
    absent: Sequence[tuple[str, float, str]] = ()

"""A worker's status at one moment, which ``relay.engine.status`` takes and any thread may read; and as JSON values.

The JSON is the contract of ``/status.json``. Times are ISO in UTC. Errors hide passwords in URLs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relay.config.hidden import redacted
from relay.config.value_types import iso_time
from relay.kafka.checkpoints import partition_of
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.records import Plan, Shard, ShardCheckpoint, StreamId, has_ended
from relay.records.lag import lag_since, shard_watermark, source_watermark

FORMAT = 3
"""Of ``/status.json``: the page shows only peers with the same. Raise it for each key that is new, gone or changed."""


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
    stream: StreamId
    plan: Plan | None
    checkpoints: Mapping[str, ShardCheckpoint]  # the committed ones of all workers
    listing: LatestListing
    low_watermark: float | None  # see ``relay.stream.progress``
    open: Mapping[str, Poll]
    segments: Mapping[str, Poll]  # the snapshot segments open in this worker
    rows: tuple[int, int] | None  # read and estimated, while a snapshot is running
    held_up_since: float | None = None  # since when, since the epoch, this worker makes its plan or connects to it
    pending_gaps: tuple[Mapping[str, Any], ...] = ()  # those that a person has to decide about, as on the gaps topic
    # The shards and segments that wait for a person, None for the whole stream; since which monotonic time; and why.
    set_aside: tuple[tuple[str | None, float, str], ...] = ()
    has_snapshots: bool = True  # whether its tables can be read again
    repaired: frozenset[str] = frozenset()  # the ids of gaps that a snapshot repairs or has repaired
    left_out: Mapping[str, str] = field(default_factory=dict)  # the tables that cannot be relayed, and why
    # What statements have done to tables that were not read again, as on the gaps topic, the oldest first.
    altered: tuple[Mapping[str, Any], ...] = ()

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
        """See ``relay.records.lag``; None before there is a plan. ``now``: the wall clock's time."""
        return None if self.plan is None else lag_since(source_watermark(self.plan, self.checkpoints), now) or 0.0

    def shard_lag(self, shard: str, now: float) -> float | None:
        """The lag of one shard; None if it has ended, and before there is a plan."""
        return None if self.plan is None else lag_since(shard_watermark(shard, self.plan, self.checkpoints), now)

    def partition(self, shard: str) -> int:
        """The checkpoint partition of ``shard``, whose owner reads the shard."""
        return partition_of(self.stream.shard_key(shard))


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    group: str
    joined: bool  # whether it is a member of the group and has passed the fence with some partitions
    owned: frozenset[int]
    gained: frozenset[int]  # the partitions that have not passed it
    sources: tuple[SourceView, ...]
    barrier_timeout: float = 0.0  # seconds that this may take
    read_delay: float = 0.0  # seconds that a read which is due has to wait for others
    checkpoints: str = ""  # the topic
    # By partition, the monotonic time up to which all that was committed is known.
    checkpoints_read_at: Mapping[int, float] = field(default_factory=dict)
    differences: Sequence[str] = ()  # what other workers of the relay have other than this one
    # The sources that are not connected, or refused; since which monotonic time; and why.
    absent: Sequence[tuple[str, float, str]] = ()
    topics: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by source and table


def report(status: WorkerStatus | None, now: float, wall: float) -> dict[str, Any]:
    """Return the status at ``now`` (monotonic seconds), which is ``wall`` in seconds since the epoch."""
    if status is None:
        return {"at": _time(wall), "group": None, "sources": [], "shards": []}
    return {
        "at": _time(wall),
        "group": {
            "name": status.group,
            "joined": status.joined,
            "partitions": CHECKPOINT_PARTITIONS,
            "owned": len(status.owned),
            "in_the_fence": len(status.gained),
        },
        "sources": [_source(source, wall) for source in status.sources],
        "shards": [shard for source in status.sources for shard in _shards(source, status.owned, now, wall)],
    }


def _source(source: SourceView, wall: float) -> dict[str, Any]:
    plan = source.plan
    gaps: list[dict[str, str | None]] = [
        {"id": c.gap, "shard": shard} for shard, c in source.checkpoints.items() if c.gap is not None
    ]
    if plan is not None and plan.gap is not None:
        gaps.append({"id": plan.gap, "shard": None})
    return {
        "source": source.stream.source,
        "stream": source.stream.label,
        "planned_at": _time(plan.planned_at) if plan else None,
        "listed_at": _time(source.listing.at) if source.listing.at else None,
        "low_watermark": _time(source.low_watermark) if source.low_watermark is not None else None,
        "lag_seconds": _seconds(source.lag(wall)),
        "unfinished_shards": len(source.unfinished()),
        "gaps": gaps,
        "missing": [gap["id"] for gap in gaps if gap["id"] not in source.repaired],
        "pending_gaps": list(source.pending_gaps),
        "has_snapshots": source.has_snapshots,
        "left_out": dict(source.left_out),
        "altered": list(source.altered),
        "snapshot": {"rows_read": source.rows[0], "rows_estimated": source.rows[1]} if source.rows else None,
    }


def _shards(source: SourceView, owned: frozenset[int], now: float, wall: float) -> Iterator[dict[str, Any]]:
    for shard in sorted(source.shards()):
        checkpoint = source.checkpoints.get(shard)
        progress = checkpoint.progress if checkpoint else None
        yield {
            "source": source.stream.source,
            "stream": source.stream.label,
            "shard": shard,
            "state": checkpoint.state.value if checkpoint else "listed",  # no checkpoint yet
            "position": checkpoint.position if checkpoint else None,
            "progress": _time(progress) if progress is not None else None,
            "lag_seconds": _seconds(source.shard_lag(shard, wall)),
            "owned": source.partition(shard) in owned,
            "parents": list(source.parents(shard)),
            "waits_for": [] if source.has_ended(shard) else source.waits_for(shard),
            **_poll(source.open.get(shard), now),
        }
    for segment, poll in source.segments.items():
        place = {"source": source.stream.source, "stream": source.stream.snapshots.label, "shard": segment}
        known = {"state": "reading", **dict.fromkeys(("position", "progress", "lag_seconds")), "owned": True}
        yield {**place, **known, "parents": [], "waits_for": [], **_poll(poll, now)}


def _poll(poll: Poll | None, now: float) -> dict[str, Any]:
    return {
        "open": poll is not None,
        "polled_seconds_ago": _seconds(now - poll.polled) if poll else None,
        "failures": poll.failures if poll else 0,
        "error": redacted(poll.error) if poll and poll.error else None,
    }


def _time(seconds: float) -> str:
    return iso_time(seconds, "milliseconds")


def _seconds(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None

"""Builds worker statuses, in the types that the worker itself uses."""

from __future__ import annotations

from typing import Any

from relay.observe.status import LatestListing, Poll, SourceView, WorkerStatus
from relay.records import Plan, Shard, ShardCheckpoint, ShardState, StreamId

NOW = 1000.0
"""Monotonic seconds."""

WALL = 1_800_000_000.0

_LISTED: dict[str, Any] = {"listed": {}, "listed_at": WALL, "listing_wanted_at": WALL - 1000, "listing_took": 0.0}

PLAN = Plan("trim_horizon", WALL - 500, {}, {})


def source(name: str = "orders", **known: Any) -> SourceView:
    """Return a source with a plan, listed just now, without shards; ``known`` overrides its fields."""
    stream = StreamId(name, "2026-01-01")
    listing = (known.pop(each, default) for each, default in _LISTED.items())
    return SourceView(
        **{
            "stream": stream,
            "plan": PLAN,
            "checkpoints": {},
            "listing": LatestListing(*listing),
            "low_watermark": None,
            "open": {},
            "segments": {},
            "rows": None,
            **known,
        }
    )


def status(*sources: SourceView, **known: Any) -> WorkerStatus:
    """Return the status of a worker that owns all partitions."""
    fields = {"group": "shop.relay", "joined": True, "owned": frozenset(range(64)), "gained": frozenset(), **known}
    return WorkerStatus(sources=sources, **fields)


def reading(progress: float | None = None, **fields: Any) -> ShardCheckpoint:
    return ShardCheckpoint(ShardState.READING, progress=progress, **fields)


def finished(**fields: Any) -> ShardCheckpoint:
    return ShardCheckpoint(ShardState.FINISHED, **fields)


def polled(ago: float, failures: int = 0, error: str | None = None, *, reading_for: float | None = None) -> Poll:
    since = None if reading_for is None else NOW - reading_for
    return Poll(NOW - ago, failures, error, reading_since=since)


def listed(*shards: Shard) -> dict[str, Shard]:
    return {shard.id: shard for shard in shards}

"""The status as JSON values, the contract of ``/status.json``. Times are ISO in UTC. Errors hide passwords in URLs."""

from collections.abc import Iterator
from typing import Any

from relay.config.hidden import redacted
from relay.config.value_types import iso_time
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.observe.status import Poll, SourceView, WorkerStatus

FORMAT = 2
"""Of ``/status.json``: the page shows only peers with the same. Raise it for each key that is new, gone or changed."""

LISTED = "listed"  # the state of a shard that has no checkpoint yet


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
            "state": checkpoint.state.value if checkpoint else LISTED,
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

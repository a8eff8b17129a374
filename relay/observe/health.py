"""Whether a worker makes progress, and whether it does its part yet (I10).

Alive means progress for each shard, not a process that runs. What counts as a stall is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relay.config.fields import redacted
from relay.observe.status import SourceView, WorkerStatus

STALLED_AFTER = 60.0
"""Seconds without a successful poll of a shard, or a turn of the main loop. The longest backoff is 5 s."""

_LISTED_EVERY = 60.0
"""Seconds between two listings of shards when nothing happens."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What stands still: a shard, a source, or, where both are None, the worker. ``seconds``: for how long."""

    what: str
    seconds: float
    source: str | None = None
    stream: str | None = None
    shard: str | None = None
    error: str | None = None


def stalls(
    status: WorkerStatus | None, turned: float | None, now: float, wall: float, *, limit: float = STALLED_AFTER
) -> list[Stall]:
    """Return what has made no progress for ``limit`` seconds.

    ``turned``: when the main loop last turned, None before its first turn; ``now``: both by the monotonic clock.
    ``wall``: seconds since the epoch.
    """
    found: list[Stall] = []
    if turned is not None and now - turned > limit:
        found.append(Stall("the worker's main loop does not turn: Kafka does not answer, or it is stuck", now - turned))
    if status is None:
        return found
    if status.unconfirmed_since is not None and now - status.unconfirmed_since > limit:
        found.append(Stall("what was read cannot be committed: see the log", now - status.unconfirmed_since))
    # A predecessor's transaction may hold up the fence until it times out: no restart would shorten that.
    if status.fencing_since is not None and now - status.fencing_since > limit + status.barrier_timeout:
        found.append(Stall("partitions do not pass the fence: see the log", now - status.fencing_since))
    for source in status.sources:
        found += _of_source(source, now, wall, limit)
    return found


def _of_source(source: SourceView, now: float, wall: float, limit: float) -> Iterator[Stall]:
    name = source.stream.source
    # A shard that waits for its parents is not open, and not stalled.
    for stream, shard, poll in source.polls():
        if now - poll.polled > limit:
            error = redacted(poll.error) if poll.error else None
            yield Stall("a shard has no successful poll", now - poll.polled, name, stream.label, shard, error)
    if source.plan is not None:
        # Without listings no shard is opened, and the children of one that ends are never found.
        age = wall - (source.listed_at or source.wanted_at)
        if age > _LISTED_EVERY + limit:
            yield Stall("the shards of a source cannot be listed", age, name, source.stream.label)


def unready(status: WorkerStatus | None) -> list[str]:
    """Return why this worker does not do its part yet: group, fence, plans. Empty if it does."""
    if status is None:
        return ["starting: connecting to the sources and to Kafka"]
    found = []
    if status.gained:
        found.append(f"group {status.group}: {len(status.gained)} partitions have not passed the fence yet")
    elif not status.joined:
        found.append(f"group {status.group}: not joined yet, or given no partitions")
    found += [f"source {s.stream.source}: not planned yet" for s in status.sources if s.plan is None]
    return found

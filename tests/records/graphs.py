"""Lineage graphs and checkpoints in one line, for tests of what may be read when."""

from __future__ import annotations

from relay.records import CommittedStream, Lineage, Plan, Shard, ShardCheckpoint, ShardState, StreamId

STREAM = StreamId("orders", "2026-01-01T00:00:00.000")


PLANNED = ("p", "c", "a", "b")
"""The shards of the plan."""


def lineage_of(*shards: Shard, listings: int = 1) -> Lineage:
    """Return the lineage of a planned stream that was listed ``listings`` times with these shards."""
    committed = CommittedStream(STREAM)
    committed.plan = Plan("trim_horizon", 0.0, {shard: {} for shard in PLANNED}, {})
    graph = Lineage(committed)
    for _ in range(listings):
        graph.update(shards)
    return graph


def finished(**fields: object) -> ShardCheckpoint:
    return ShardCheckpoint(ShardState.FINISHED, **fields)  # type: ignore[arg-type]

"""The lag, defined once: the time since everything that the source then showed was published."""

from collections.abc import Mapping

from relay.records.plan import Plan
from relay.records.shard import ShardCheckpoint


def shard_watermark(shard: str, plan: Plan, checkpoints: Mapping[str, ShardCheckpoint]) -> float | None:
    """Return that moment of ``shard``, in seconds since the epoch; None after its end.

    Before it is read, the moment of its parents or of the plan.
    """
    checkpoint = checkpoints.get(shard)
    if checkpoint is not None and checkpoint.state.ended:
        return None
    known = checkpoint.complete_until if checkpoint is not None else None
    if known is None and checkpoint is not None:
        parents = [checkpoints[each].complete_until for each in checkpoint.parents if each in checkpoints]
        known = min((each for each in parents if each is not None), default=None)
    return plan.planned_at if known is None else known


def source_watermark(plan: Plan, checkpoints: Mapping[str, ShardCheckpoint]) -> float | None:
    """Return that moment of the shard of a source that is furthest behind, or None if all have ended."""
    found = [shard_watermark(shard, plan, checkpoints) for shard in checkpoints] or [plan.planned_at]
    return min((each for each in found if each is not None), default=None)


def lag_since(watermark: float | None, now: float) -> float | None:
    """Return the lag in seconds at ``now``, in seconds since the epoch; None for a shard that has ended."""
    return None if watermark is None else max(0.0, now - watermark)

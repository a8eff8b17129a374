"""The lag: one definition for the page, ``relay status``, metrics and alerts.

It is the time since the last moment at which everything that the source had shown was published: 0, and not the time
since the last change, where a shard was read to its head.
"""

from collections.abc import Mapping

from relay.records.plan import Plan
from relay.records.shard import ShardCheckpoint


def shard_lag(shard: str, plan: Plan, checkpoints: Mapping[str, ShardCheckpoint], now: float) -> float | None:
    """Return the lag of ``shard`` in seconds, or None if it has ended. ``now``: seconds since the epoch.

    One that was never read lags since the end of its parents, or since the plan.
    """
    checkpoint = checkpoints.get(shard)
    if checkpoint is not None and checkpoint.state.ended:
        return None
    known = checkpoint.complete_until if checkpoint is not None else None
    if known is None and checkpoint is not None:
        parents = [checkpoints[each].complete_until for each in checkpoint.parents if each in checkpoints]
        known = min((each for each in parents if each is not None), default=None)
    return max(0.0, now - (plan.planned_at if known is None else known))


def source_lag(plan: Plan, checkpoints: Mapping[str, ShardCheckpoint], now: float) -> float:
    """Return the lag of the shard of a source that is furthest behind, 0 if all have ended."""
    if not checkpoints:
        return max(0.0, now - plan.planned_at)
    lags = (shard_lag(shard, plan, checkpoints, now) for shard in checkpoints)
    return max((lag for lag in lags if lag is not None), default=0.0)

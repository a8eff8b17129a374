"""Which records of replaced streams are pruned, and how a pruned shard that is listed again is recognized.

The shards of the current stream are pruned one by one, by ``lineage.Lineage.prunable``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from relay.records import PRUNE_AFTER, CommittedRecords, Plan, Shard, ShardCheckpoint, ShardState, StreamId
from relay.snapshots.control import proves_read


def unpruned(
    shards: Iterable[Shard], checkpoints: Mapping[str, ShardCheckpoint], plan: Plan | None = None, now: float = 0.0
) -> list[Shard]:
    """Return the listed ``shards`` without those that were pruned and are listed again. ``now``: seconds.

    A child is read only after its parents have ended (I2). So the parent of a shard that is being read has ended, and
    if it has no record, that was pruned. But soon after the ``plan`` nothing was: then no listing had it before.
    """
    read = {name: checkpoint for name, checkpoint in checkpoints.items() if checkpoint.state is not ShardState.PLANNED}
    ended = {parent for checkpoint in read.values() for parent in checkpoint.parents}
    if plan is not None and now - plan.planned_at < PRUNE_AFTER:
        ended -= {parent for name in read if _begins_anew(plan, name) for parent in read[name].parents}
    return [shard for shard in shards if shard.id in checkpoints or shard.id not in ended]


def _begins_anew(plan: Plan, shard: str) -> bool:
    """Whether nothing that comes before ``shard`` was read when the plan was made."""
    start = plan.shards.get(shard, {})
    return start.get("type") == "trim_horizon" or "since" in start


def replaced(view: CommittedRecords, current: StreamId, now: float) -> Iterator[bytes]:
    """Yield the keys of all records of streams that were replaced and ended long ago.

    The newest plan stays, whichever stream it is of: it says which stream is read, also if a listing of streams lags.
    """
    newest = max((stream.label for stream in view.planned.get(current.source, ())), default=current.label)
    for stream in view.streams(current.source):
        if stream.label < min(newest, current.label):
            yield from _expired(view, stream, now)


def _expired(view: CommittedRecords, stream: StreamId, now: float) -> Iterator[bytes]:
    shards = view.checkpoints.get(stream, {})
    plan = view.plans.get(stream)
    written = dict(view.beside_plan(stream))
    last = max([*written.values(), *([plan.planned_at] if plan else [])], default=now)
    if now - last < PRUNE_AFTER or not all(checkpoint.state.ended for checkpoint in shards.values()):
        return
    if _is_only_proof(view, stream):
        del written[stream.snapshot_key]
    yield from written
    if plan is not None:
        yield stream.plan_key


def _is_only_proof(view: CommittedRecords, stream: StreamId) -> bool:
    """Whether ``stream``, and no newer one, proves that the source has had its initial snapshot."""
    since = {stream, *(other for other in view.planned.get(stream.source, ()) if other.label > stream.label)}
    return {other for other in since & view.controls.keys() if proves_read(view.controls[other])} == {stream}

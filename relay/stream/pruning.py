"""Which records of replaced streams are pruned, and how a pruned shard that is listed again is recognized."""

from collections.abc import Iterable, Iterator, Mapping

from relay.records import (
    PRUNE_AFTER,
    CommittedRecords,
    CommittedStream,
    Plan,
    Shard,
    ShardCheckpoint,
    ShardState,
    StreamId,
)
from relay.snapshots.control import proves_read


def unpruned(
    shards: Iterable[Shard], checkpoints: Mapping[str, ShardCheckpoint], plan: Plan | None = None, now: float = 0.0
) -> list[Shard]:
    """Return the listed ``shards`` without those that were pruned. ``now``: seconds.

    A child is read only after its parents have ended (I2): if the parent of a shard that is being read has no record,
    it was pruned. Soon after the ``plan`` nothing is pruned: then no listing showed it before.
    """
    read = {name: checkpoint for name, checkpoint in checkpoints.items() if checkpoint.state is not ShardState.PLANNED}
    ended = {parent for checkpoint in read.values() for parent in checkpoint.parents}
    if plan is not None and now - plan.planned_at < PRUNE_AFTER:
        ended -= {parent for name in read if _begins_anew(plan, name) for parent in read[name].parents}
    return [shard for shard in shards if shard.id in checkpoints or shard.id not in ended]


def _begins_anew(plan: Plan, shard: str) -> bool:
    """Whether nothing that precedes ``shard`` was read when the plan was made."""
    start = plan.shards.get(shard, {})
    return start.get("type") == "trim_horizon" or "since" in start


def replaced(view: CommittedRecords, current: StreamId, now: float) -> Iterator[bytes]:
    """Yield the keys of all records of streams that were replaced and ended long ago, except the newest plan."""
    newest = view.newest(current.source)
    label = current.label if newest is None else min(newest.stream.label, current.label)
    for each in view.of_source(current.source):
        if each.stream.label < label:
            yield from _expired(view, each, now)


def _expired(view: CommittedRecords, of: CommittedStream, now: float) -> Iterator[bytes]:
    written = of.beside_plan()
    last = max([*written.values(), *([of.plan.planned_at] if of.plan else [])], default=now)
    if now - last < PRUNE_AFTER or not all(checkpoint.state.ended for checkpoint in of.checkpoints.values()):
        return
    newer = [each for each in view.planned(of.stream.source) if each.stream.label > of.stream.label]
    if [each for each in (of, *newer) if proves_read(each.control)] == [of]:
        del written[of.stream.snapshot_key]  # nothing else proves that the source has had its initial snapshot
    yield from written
    if of.plan is not None:
        yield of.stream.plan_key

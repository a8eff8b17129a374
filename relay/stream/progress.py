"""How far a stream is published, by the committed checkpoints of all its shards."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from relay.records import PRUNE_AFTER, CommittedStream, Lineage, Plan, Shard, ShardCheckpoint, ShardState, has_ended

_RECENT = 0.1  # seconds
_SHARE = 50  # a computation may take one part in this many of the time between two: with more shards it takes longer
_RETENTION = PRUNE_AFTER / 2
_STATEMENT = 30.0  # seconds that a statement of an SQL source may run: its transaction is dated by its beginning
_PROMPT = 600.0  # seconds after the end of its parents within which reading a shard counts as immediate


class CommittedProgress:
    """The progress of one stream by its committed checkpoints, cached. ``clock``: seconds that never go back."""

    def __init__(self, committed: CommittedStream, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._committed = committed
        self._resume = 0
        self._due = -math.inf
        self._low: float | None = None
        self._low_due = 0.0
        self._gaps: Set[str] = frozenset()
        self._gaps_of_version = -1

    def gaps(self) -> Set[str]:
        if self._gaps_of_version != (version := self._committed.gap_version):
            self._gaps_of_version = version
            self._gaps = {c.gap for c in self._committed.checkpoints.values() if c.gap is not None}
        return self._gaps

    def resume_timestamp(self) -> int:
        """Return a `resume_timestamp` at most a tenth of a second old, or older with very many shards."""
        now = self.clock()
        if now >= self._due:
            listing = self._committed.listing
            self._resume = resume_timestamp(self._committed.checkpoints, listing.shards if listing else ())
            self._due = self._next(now)
        return self._resume

    def low_watermark(self, lineage: Lineage) -> float | None:
        """Return an equally recent `low_watermark`. It never goes back, so an older value stays true."""
        now = self.clock()
        if now >= self._low_due:
            self._low = low_watermark(self._committed.checkpoints, lineage)
            self._low_due = self._next(now)
        return self._low

    def _next(self, begun: float) -> float:
        """Return when to repeat a computation that started at ``begun``."""
        return begun + max(_RECENT, _SHARE * (self.clock() - begun))


def read_until(
    shard: Shard, plan: Plan, committed: ShardCheckpoint | None, parents: Mapping[str, ShardCheckpoint], now: float
) -> float:
    """Return the seconds up to which the topic has everything of ``shard``: its progress, or where it began."""
    if committed is not None and committed.progress is not None:
        return committed.progress
    if shard.id in plan.shards:
        return min(plan.planned_at, _complete_after_parents(plan.shards[shard.id], parents))
    # It began when its parents ended, which is not before their last progress.
    known = [parent.progress for parent in parents.values() if parent.progress is not None]
    return min(known, default=committed.updated_at if committed else now)


def _complete_after_parents(start: Mapping[str, Any], parents: Mapping[str, ShardCheckpoint]) -> float:
    """Return the same for a shard that was planned together with its parents and is read after them.

    Its records continue where theirs ended. Only records that expired after its parents were read count as missed:
    those that expired before, while a backlog was read, were already near expiry when the relay started.
    """
    since: float = start.get("since", 0.0)
    if not parents or not (since or start.get("type") == "trim_horizon"):
        return math.inf
    ends = (max(parent.progress or 0.0, parent.updated_at - _RETENTION + _PROMPT) for parent in parents.values())
    return max(since, min(ends))


def resume_timestamp(checkpoints: Mapping[str, ShardCheckpoint], listed: Iterable[Shard] = ()) -> int:
    """Return where a restart would have to begin, in seconds: the least progress of the unfinished shards.

    A shard that has not been read yet begins at the progress of its parents; 0 if that is unknown, too. A transaction
    may be committed up to half a minute after its own time, so the restart begins that much earlier.
    """
    children: dict[str, set[str]] = {shard: {*c.children} for shard, c in checkpoints.items()}
    for shard in listed:
        for parent in shard.parents:
            children.setdefault(parent, set()).add(shard.id)
    followed = {parent for c in checkpoints.values() for parent in c.parents}
    unfinished = [
        _progress_of_parents(c, checkpoints)
        if c.progress is None
        # I1: while a statement runs, its shard seems idle.
        else c.progress - (_STATEMENT if c.reached is not None else 0.0)
        for shard, c in checkpoints.items()
        if not c.state.ended
        or (
            # I1: until its children have checkpoints, only this one says where they begin.
            c.state is ShardState.FINISHED and (shard not in followed or not children[shard] <= checkpoints.keys())
        )
    ]
    return max(0, int(min(unfinished, default=0)))


def low_watermark(checkpoints: Mapping[str, ShardCheckpoint], lineage: Lineage) -> float | None:
    """Return the seconds, which never go back, before which every change is on the topic, or None if unknown."""
    if not lineage.listings or not lineage.listed.keys() <= checkpoints.keys():
        return None
    unclear = {shard for shard, times in lineage.absent.items() if times == 1 and has_ended(checkpoints, shard)}
    # I1: a single listing may lack both an ended shard and its children.
    if unclear and not unclear <= {parent for c in checkpoints.values() for parent in c.parents}:
        return None
    last = [
        checkpoint.progress if checkpoint.progress is not None else _progress_of_parents(checkpoint, checkpoints)
        for shard, checkpoint in checkpoints.items()
        if not checkpoint.state.ended or (shard in lineage.listed and not lineage.children(shard))
    ]
    low = min(last, default=0.0)
    return low if low > 0 else None


def _progress_of_parents(checkpoint: ShardCheckpoint, checkpoints: Mapping[str, ShardCheckpoint]) -> float:
    parents = [checkpoints.get(parent) for parent in checkpoint.parents]
    known = [parent.progress for parent in parents if parent is not None and parent.progress is not None]
    return min(known) if known and len(known) == len(parents) else 0.0

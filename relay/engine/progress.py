"""How far a whole stream is, by the committed checkpoints of all its shards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Self

from relay.lineage import PRUNE_AFTER, Checkpoint, Lineage, Plan, Shard

_RECENT = 0.1  # seconds
_RETENTION = PRUNE_AFTER / 2
_AT_ONCE = 600.0  # seconds after the end of its parents within which a shard is read without having been left


@dataclass(frozen=True, slots=True)
class Progress:
    """``resume``: see `resume_timestamp`. ``last``: the newest token's, in seconds. ``gaps``: ids of losses."""

    resume: int = 0
    last: int = 0
    gaps: Set[str] = frozenset()

    @classmethod
    def of(cls, checkpoints: Mapping[str, Checkpoint]) -> Self:
        return cls(
            resume_timestamp(checkpoints),
            max((c.token.timestamp for c in checkpoints.values() if c.token), default=0),
            {c.gap for c in checkpoints.values() if c.gap is not None},
        )


class CommittedProgress:
    """The progress of one stream, computed once for each version of its checkpoints. Used by the worker's thread."""

    def __init__(self, checkpoints: Callable[[], Mapping[str, Checkpoint]], version: Callable[[], int]) -> None:
        self._checkpoints = checkpoints
        self._version = version
        self._computed = Progress()
        self._of_version = -1
        self._due = 0.0

    def exact(self) -> Progress:
        """Return the progress of the newest checkpoints in the view."""
        if self._of_version != (version := self._version()):
            self._of_version = version
            self._due = time.monotonic() + _RECENT
            self._computed = Progress.of(self._checkpoints())
        return self._computed

    def recent(self) -> Progress:
        """Return progress at most a tenth of a second old: cheap, though other workers commit all the time."""
        return self.exact() if time.monotonic() >= self._due else self._computed


def read_until(
    shard: Shard, plan: Plan, committed: Checkpoint | None, parents: Mapping[str, Checkpoint], now: float
) -> float:
    """Seconds up to which nothing of ``shard`` is missing on the topic: its own progress, or where it began."""
    if committed is not None and committed.progress is not None:
        return committed.progress
    if shard.id in plan.shards:
        return min(plan.planned_at, _left_at(plan.shards[shard.id], parents))
    # It began when its parents ended, which is not before what was last read of them.
    known = [parent.progress for parent in parents.values() if parent.progress is not None]
    return min(known, default=committed.updated_at if committed else now)


def _left_at(start: Mapping[str, Any], parents: Mapping[str, Checkpoint]) -> float:
    """Return up to when nothing is missing of a shard that was planned with its parents, and is read after them.

    Its records go on where theirs ended. Of them only those count as missed that have aged out since the parents were
    read: what did so meanwhile, at the end of a backlog, was at the horizon when the relay began.
    """
    since: float = start.get("since", 0.0)
    if not parents or not (since or start.get("type") == "trim_horizon"):
        return math.inf
    ends = (max(parent.progress or 0.0, parent.updated_at - _RETENTION + _AT_ONCE) for parent in parents.values())
    return max(since, min(ends))


def resume_timestamp(checkpoints: Mapping[str, Checkpoint]) -> int:
    """Seconds since the epoch where a restart would have to begin: the least progress of unfinished shards.

    A shard of which nothing was read yet begins where its parents have got to. 0 if that is not known either.
    """
    unfinished = (c for c in checkpoints.values() if not c.state.ended)
    return min((int(_progress(c, checkpoints)) for c in unfinished), default=0)


def low_watermark(checkpoints: Mapping[str, Checkpoint], lineage: Lineage) -> float | None:
    """Seconds before which every change of the stream is on the topic; None while that is not known.

    Other than ``resume_timestamp`` it counts shards that nobody has planned yet, and the children, not listed yet, of
    one that has ended: it never goes back because they appear.
    """
    if not lineage.listings or any(shard not in checkpoints for shard in lineage.listed):
        return None
    last = [
        _progress(checkpoint, checkpoints)
        for shard, checkpoint in checkpoints.items()
        if not checkpoint.state.ended or (shard in lineage.listed and not lineage.children(shard))
    ]
    low = min(last, default=0.0)
    return low if low > 0 else None


def _progress(checkpoint: Checkpoint, checkpoints: Mapping[str, Checkpoint]) -> float:
    if checkpoint.progress is not None:
        return checkpoint.progress
    parents = [checkpoints.get(parent) for parent in checkpoint.parents]
    known = [parent.progress for parent in parents if parent is not None and parent.progress is not None]
    return min(known) if known and len(known) == len(parents) else 0.0

"""The graph of the shards of one stream, and which of them may be read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from relay.records.key import StreamId
from relay.records.shard import PRUNE_AFTER, Shard, ShardCheckpoint, ShardState, has_ended


def ready_shards(
    shards: Iterable[Shard], is_over: Callable[[str], bool], parent_has_ended: Callable[[Shard, str], bool]
) -> Iterator[Shard]:
    """Yield the shards that may be read: they have not ended, and all their parents have (I2)."""
    for shard in shards:
        if not is_over(shard.id) and all(parent_has_ended(shard, parent) for parent in shard.parents):
            yield shard


@dataclass
class Lineage:
    """The graph of the shards of one stream: which are listed, and which may be read now."""

    stream: StreamId
    # Shards of the newest complete listing, by id.
    listed: dict[str, Shard] = field(default_factory=dict)
    # Shards that somebody names and that are not listed: how many consecutive complete listings lacked them.
    absent: dict[str, int] = field(default_factory=dict)
    listings: int = 0
    _children: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def update(self, shards: Iterable[Shard], known: Iterable[str] = ()) -> None:
        """Apply one complete listing. ``known``: further shards whose absence matters."""
        self.listed = {shard.id: shard for shard in shards}
        self.listings += 1
        children: dict[str, list[str]] = {}
        for shard in self.listed.values():
            for parent in shard.parents:
                children.setdefault(parent, []).append(shard.id)
        self._children = {parent: tuple(sorted(found)) for parent, found in children.items()}
        missing = (children.keys() | set(known)) - self.listed.keys()
        self.absent = {shard: self.absent.get(shard, 0) + 1 for shard in missing}

    def is_gone(self, shard: str) -> bool:
        """Whether two consecutive complete listings lack ``shard``: a single one may be inconsistent."""
        return self.absent.get(shard, 0) >= 2

    def is_closed(self, shard: str) -> bool:
        """Whether the newest listing shows ``shard`` closed. Any thread may ask."""
        found = self.listed.get(shard)
        return found is not None and found.closed

    def children(self, shard: str) -> tuple[str, ...]:
        return self._children.get(shard, ())

    def ready(
        self,
        checkpoints: Mapping[str, ShardCheckpoint],
        planned: Collection[str],
        passed: Collection[str] = (),
    ) -> Iterator[Shard]:
        """Yield the shards that have not ended and whose parents all have (I2).

        Also those that listings lack, see `is_asked_for`.

        ``planned``: the shards of the plan. ``passed``: those of them that ended before it, which no checkpoint may say
        yet.
        """

        def is_over(shard: str) -> bool:
            return shard in passed or has_ended(checkpoints, shard)

        def parent_has_ended(shard: Shard, parent: str) -> bool:
            return parent in passed or self._has_ended(parent, shard.id, checkpoints, planned)

        yield from ready_shards(self.listed.values(), is_over, parent_has_ended)
        for shard in self.absent:
            if self.is_asked_for(shard, checkpoints):
                parents = checkpoints[shard].parents
                is_begun = checkpoints[shard].state is ShardState.READING
                if is_begun or all(has_ended(checkpoints, parent) for parent in parents):
                    yield Shard(shard, parents)

    def is_asked_for(self, shard: str, checkpoints: Mapping[str, ShardCheckpoint]) -> bool:
        """Whether a reader is to say if ``shard``, which listings lack, is gone: they may lack it for a while.

        Not if it waits for parents of which nothing is known.
        """
        checkpoint = checkpoints.get(shard)
        if checkpoint is None or checkpoint.state.ended:
            return False
        return checkpoint.state is ShardState.READING or all(parent in checkpoints for parent in checkpoint.parents)

    def late(self, shard: str, checkpoints: Mapping[str, ShardCheckpoint]) -> list[str]:
        """Return the descendants of ``shard`` that were begun before it: no listing had it then."""
        found: list[str] = []
        waiting, seen = [*self.children(shard)], {shard}
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(self.children(name))
                checkpoint = checkpoints.get(name)
                if checkpoint is not None and checkpoint.state in (ShardState.READING, ShardState.FINISHED):
                    found.append(name)
        return found

    def _has_ended(
        self, parent: str, child: str, checkpoints: Mapping[str, ShardCheckpoint], planned: Collection[str]
    ) -> bool:
        checkpoint = checkpoints.get(parent)
        if checkpoint is not None:
            return checkpoint.state.ended
        # It can no longer be read. If that is a gap, the gap has to be recorded first.
        return self.is_gone(parent) and not self._was_missed(parent, child, checkpoints, planned)

    def _was_missed(
        self, parent: str, child: str, checkpoints: Mapping[str, ShardCheckpoint], planned: Collection[str]
    ) -> bool:
        """Whether a parent that is gone and has no checkpoint had changes from after the plan.

        It did if it was listed then, or appeared and was trimmed while no relay ran. Otherwise it was trimmed before
        the plan, or was read and pruned, which happens long before a child that is being read ends.
        """
        checkpoint = checkpoints.get(child)
        if checkpoint is not None and checkpoint.state is not ShardState.PLANNED:
            return False
        return parent in planned or child not in planned

    def lost(
        self, checkpoints: Mapping[str, ShardCheckpoint], planned: Collection[str], passed: Collection[str] = ()
    ) -> list[str]:
        """Return the shards that the source no longer has and that were not read to their end (I9)."""
        unfinished = {
            shard for shard, checkpoint in checkpoints.items() if not checkpoint.state.ended and self.is_gone(shard)
        }
        unseen = {
            parent
            for shard in self.listed.values()
            for parent in shard.parents
            if parent not in checkpoints
            and parent not in passed
            and self.is_gone(parent)
            and self._was_missed(parent, shard.id, checkpoints, planned)
        }
        return sorted(unfinished | unseen)

    def prunable(self, checkpoints: Mapping[str, ShardCheckpoint], now: float) -> Iterator[str]:
        """Yield the ended shards to prune: ended long ago, no longer listed, and each child has its own record."""
        for shard, checkpoint in checkpoints.items():
            if (
                checkpoint.state.ended
                and self.is_gone(shard)
                and now - checkpoint.updated_at >= PRUNE_AFTER
                # A child that was not read yet needs the records of its parents, or they would count as lost.
                and all(
                    child in checkpoints and checkpoints[child].state is not ShardState.PLANNED
                    for child in (*checkpoint.children, *self.children(shard))
                )
            ):
                yield shard

    def floor(self, shard: Shard, checkpoints: Mapping[str, ShardCheckpoint], lowest: int = 0) -> int:
        """Return the earliest timestamp for tokens of ``shard``, in seconds: the last one of it and its ancestors.

        A shard without changes inherits from its parents. ``lowest``: the floor of the stream.
        """
        own = checkpoints.get(shard.id)
        if own is not None and own.token is not None:
            return own.token.timestamp
        floor, seen, waiting = lowest, set[str](), list(shard.parents)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            checkpoint = checkpoints.get(name)
            if checkpoint is not None and checkpoint.token is not None:
                floor = max(floor, checkpoint.token.timestamp)
            elif checkpoint is not None:
                waiting.extend(checkpoint.parents)
        return floor

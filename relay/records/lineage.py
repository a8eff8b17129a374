"""The graph of the shards of one stream, and which of them may be read."""

from collections.abc import Collection, Iterable, Iterator

from relay.records.shard import PRUNE_AFTER, Shard, ShardState, has_ended
from relay.records.view import CommittedStream


class Lineage:
    """The graph of the shards of one stream, by its ``committed`` records: which are listed, and which may be read."""

    def __init__(self, committed: CommittedStream) -> None:
        self.committed = committed
        self.stream = committed.stream
        self.listed: dict[str, Shard] = {}  # the shards of the newest complete listing, by id
        # Shards that are named but not listed: how many consecutive complete listings lacked them.
        self.absent: dict[str, int] = {}
        self.listings = 0
        self._children: dict[str, tuple[str, ...]] = {}

    def update(self, shards: Iterable[Shard], known: Iterable[str] = ()) -> None:
        """Apply one complete listing. ``known``: further shards whose absence matters."""
        self.listed = {shard.id: shard for shard in shards}
        self.listings += 1
        children: dict[str, list[str]] = {}
        for shard in self.listed.values():
            for parent in shard.parents:
                children.setdefault(parent, []).append(shard.id)
        self._children = {parent: tuple(sorted(found)) for parent, found in children.items()}
        missing = (children.keys() | set(known) | self._undecided()) - self.listed.keys()
        self.absent = {shard: self.absent.get(shard, 0) + 1 for shard in missing}

    def is_gone(self, shard: str) -> bool:
        """Whether two consecutive complete listings lack ``shard``: a single one may be inconsistent."""
        return self.absent.get(shard, 0) >= 2

    def is_closed(self, shard: str) -> bool:
        """Whether the newest listing shows ``shard`` as closed. Any thread may call it."""
        found = self.listed.get(shard)
        return found is not None and found.closed

    def children(self, shard: str) -> tuple[str, ...]:
        return self._children.get(shard, ())

    @property
    def _passed(self) -> Collection[str]:
        """The planned shards that ended before the plan, which checkpoints may not show yet."""
        return self.committed.plan.passed if self.committed.plan is not None else ()

    def ready(self) -> Iterator[Shard]:
        """Yield the unfinished shards whose parents have all ended (I2), or for which `is_asked_for` is true."""
        checkpoints, passed = self.committed.checkpoints, self._passed
        for shard in self.listed.values():
            is_over = shard.id in passed or has_ended(checkpoints, shard.id)
            if not is_over and all(parent in passed or self._has_ended(parent, shard.id) for parent in shard.parents):
                yield shard
        for name in self.absent:
            if self.is_asked_for(name):
                parents = checkpoints[name].parents
                is_begun = checkpoints[name].state is ShardState.READING
                if is_begun or all(has_ended(checkpoints, p) or self._is_past(p, name) for p in parents):
                    yield Shard(name, parents)

    def is_asked_for(self, shard: str) -> bool:
        """Whether a reader should find out if ``shard`` is gone: listings lack it, perhaps only for a while.

        No reader is needed if the shard waits for parents that had changes and that nothing else is known about.
        """
        checkpoints = self.committed.checkpoints
        checkpoint = checkpoints.get(shard)
        if checkpoint is None or checkpoint.state.ended:
            return False
        return checkpoint.state is ShardState.READING or all(
            parent in checkpoints or not self._was_missed(parent, shard) for parent in checkpoint.parents
        )

    def late(self, shard: str) -> list[str]:
        """Return the descendants of ``shard`` that were begun before it, when no listing showed it."""
        found: list[str] = []
        waiting, seen = [*self.children(shard)], {shard}
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(self.children(name))
                checkpoint = self.committed.checkpoints.get(name)
                if checkpoint is not None and checkpoint.state in (ShardState.READING, ShardState.FINISHED):
                    found.append(name)
        return found

    def _has_ended(self, parent: str, child: str) -> bool:
        checkpoint = self.committed.checkpoints.get(parent)
        if checkpoint is not None:
            return checkpoint.state.ended
        # It can no longer be read. If that is a gap, the gap has to be recorded first.
        return self.is_gone(parent) and not self._was_missed(parent, child)

    def _is_past(self, parent: str, child: str) -> bool:
        """Whether ``parent`` was trimmed before the plan: two listings lack ``child``, and ``parent`` is unknown."""
        is_known = parent in self.committed.checkpoints or parent in self.listed
        return not is_known and self.is_gone(child) and not self._was_missed(parent, child)

    def _was_missed(self, parent: str, child: str) -> bool:
        """Whether a parent that is gone and has no checkpoint had changes from after the plan.

        It had some if it was listed at the time of the plan, or appeared and was trimmed while no relay ran. Otherwise
        it was trimmed before the plan, or was read and pruned, long before a child that is now being read could end.
        """
        checkpoint, plan = self.committed.checkpoints.get(child), self.committed.plan
        if checkpoint is not None and checkpoint.state is not ShardState.PLANNED:
            return False
        planned = plan.shards if plan is not None else ()
        return parent in planned or child not in planned

    def lost(self) -> list[str]:
        """Return the shards that the source has dropped and that were not read to the end (I9)."""
        checkpoints, passed, undecided = self.committed.checkpoints, self._passed, self._undecided()
        found = []
        for shard in filter(self.is_gone, self.absent):
            if (checkpoint := checkpoints.get(shard)) is not None:
                is_lost = not checkpoint.state.ended
            else:
                # Its children may be gone too before a person decides about the gap, and then no listing names it.
                children = () if shard in passed else self.children(shard)
                is_lost = shard in undecided or any(self._was_missed(shard, child) for child in children)
            if is_lost:
                found.append(shard)
        return sorted(found)

    def _undecided(self) -> set[str]:
        """Return the shards whose gap waits for a decision, or is decided but not published yet."""
        return {each.gap.shard for each in self.committed.pending_gaps.values() if each.gap.shard is not None}

    def prunable(self, now: float) -> Iterator[str]:
        """Yield the ended shards to prune: ended long ago, no longer listed, and each child has its own record."""
        checkpoints = self.committed.checkpoints
        for shard, checkpoint in checkpoints.items():
            if (
                checkpoint.state.ended
                and self.is_gone(shard)
                and now - checkpoint.updated_at >= PRUNE_AFTER
                # A child that was not read yet needs its parents' records; otherwise they would count as lost.
                and all(
                    child in checkpoints and checkpoints[child].state is not ShardState.PLANNED
                    for child in (*checkpoint.children, *self.children(shard))
                )
            ):
                yield shard

    def floor(self, shard: Shard) -> int:
        """Return the earliest timestamp for tokens of ``shard``, in seconds: its last, or of its ancestors.

        The floor of the plan may be later: it rises when a topic gets more partitions.
        """
        checkpoints, plan = self.committed.checkpoints, self.committed.plan
        floor, seen, waiting = plan.floor if plan is not None else 0, set[str](), list(shard.parents)
        own = checkpoints.get(shard.id)
        if own is not None and own.token is not None:
            return max(own.token.timestamp, floor)  # I7
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

"""The lineage of a stream's shards as one `Stream` knows it: without checkpoints, and also from partial listings."""

from collections.abc import Callable, Collection, Iterable

from relay.records import PRUNE_AFTER, Shard


class ShardGraph:
    """Every shard that was listed and not forgotten. ``clock``: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.shards: dict[str, Shard] = {}
        # When each shard ended, in seconds since the epoch. An id stays 48 h, so that a shard that is listed again is
        # not read again.
        self.ended: dict[str, float] = {}
        # By parent, whether the parent is known or not.
        self._children: dict[str, dict[str, None]] = {}

    @property
    def roots(self) -> list[str]:
        return [shard for shard in self.shards if self.parent(shard) is None]

    def parent(self, shard: str) -> str | None:
        """Return the parent of ``shard``, or None if no parent is known."""
        known = self.shards.get(shard)
        parent = known.parents[0] if known is not None and known.parents else None
        return parent if parent in self.shards else None

    def children(self, shard: str) -> list[str]:
        return list(self._children.get(shard, ()))

    def parents_first(self) -> list[str]:
        ordered = self.roots
        for shard in ordered:
            ordered.extend(self.children(shard))
        return ordered

    def add(self, listed: Iterable[Shard]) -> None:
        """Add the shards of a listing, complete or not."""
        for shard in listed:
            if shard.parents or shard.id not in self.shards:
                self.shards[shard.id] = shard
            for parent in shard.parents:
                self._children.setdefault(parent, {})[shard.id] = None

    def end(self, *shards: str) -> None:
        """Note that nothing is left to read of these shards."""
        self.ended |= dict.fromkeys(shards, self.clock())

    def ready(self, started: Collection[str], *, complete: bool) -> list[str]:
        """Return the shards not ``started`` whose parent has ended (I2).

        After a ``complete`` listing, also those without a known parent: the stream no longer lists that parent.
        """
        return [
            shard.id
            for shard in self.shards.values()
            if shard.id not in self.ended
            and shard.id not in started
            and (complete or self.parent(shard.id) is not None)
            and all(parent in self.ended or parent not in self.shards for parent in shard.parents)
        ]

    def is_late(self, shard: str, started: Collection[str]) -> bool:
        """Whether a descendant of ``shard`` has ended or is ``started``: no listing showed ``shard`` before."""
        waiting, seen = [shard], set[str]()
        while waiting:
            children = [child for child in self.children(waiting.pop()) if child not in seen]
            if any(child in self.ended or child in started for child in children):
                return True
            seen.update(children)
            waiting += children
        return False

    def needed_by_token(self, started: Collection[str]) -> list[str]:
        """Return the shards for a token, parents first: those that ended or ``started``, and their descendants.

        Other shards are left out: a token that names them would declare them finished (I1).
        """
        unfinished = set[str]()
        needed: list[str] = []
        for shard in self.parents_first():
            ended = shard in self.ended
            if ended or shard in started or self.parent(shard) in unfinished:
                needed.append(shard)
                if not ended:
                    unfinished.add(shard)
        return needed

    def forget_expired(self, listed: Iterable[Shard]) -> list[str]:
        """Forget, and return, the shards that ended 48 h ago and are no longer ``listed`` (I11)."""
        names = {shard.id for shard in listed}
        expired = [
            shard
            for shard, ended_at in self.ended.items()
            if shard not in names and self.clock() - ended_at >= PRUNE_AFTER
        ]
        for shard in expired:
            del self.ended[shard]
            forgotten = self.shards.pop(shard, None)
            for parent in forgotten.parents if forgotten is not None else ():
                del self._children[parent][shard]
                if not self._children[parent]:
                    del self._children[parent]
        return expired

"""The lineage of a stream's shards as a reader has come to know it, and which of them have ended.

``relay.lineage`` is the relay's own, with checkpoints; this one holds shards that are being read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from relay.dynamodb.shard import StreamShard
from relay.lineage import PRUNE_AFTER, Shard
from relay.stream_token import ShardToken


class ShardGraph:
    """Every shard that was listed and is not pruned. A DynamoDB shard has one parent at most."""

    def __init__(self, new_shard: Callable[[str], StreamShard], clock: Callable[[], float]) -> None:
        self._new_shard = new_shard
        self.clock = clock
        self.shards: dict[str, StreamShard] = {}
        # When each shard ended, in seconds; an id stays 48 h, so that one listed again is not read again.
        self.ended: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<ShardGraph[{len(self.shards)} shards, {len(self.ended)} ended]>"

    @property
    def roots(self) -> list[StreamShard]:
        """Shards without a known parent."""
        return [shard for shard in self.shards.values() if shard.parent is None]

    def adopt(self, listed: Collection[Shard]) -> None:
        """Take in what a listing tells; nothing begins by it."""
        for raw in listed:
            if raw.id not in self.shards:
                self.shards[raw.id] = self._new_shard(raw.id)
        for raw in listed:
            parent = self.shards.get(parent_of(raw) or "")
            if parent is not None:
                self.shards[raw.id].adopt_by(parent)

    def end(self, *shards: str) -> None:
        """Note that there is nothing more to read of these shards."""
        self.ended |= dict.fromkeys(shards, self.clock())

    def ready(self, begun: Collection[StreamShard], *, complete: bool) -> list[StreamShard]:
        """Return the shards not ``begun`` whose parent has ended (I2); after a ``complete`` listing also those whose
        parent is not known, since then it is not listed any more.
        """
        return [
            shard
            for shard in self.shards.values()
            if shard not in begun
            and shard.id not in self.ended
            and (complete if shard.parent is None else shard.parent.id in self.ended)
        ]

    def token(self, reading: Collection[StreamShard]) -> tuple[ShardToken, ...]:
        """Return the shards of a token, parents first: ended, being read, and waiting for one that is."""
        ahead = set[StreamShard]()
        shards: list[ShardToken] = []
        for shard in (shard for root in self.roots for shard in root.walk()):
            ended = shard.id in self.ended
            # One that waits for nobody is left out: in a token it would look finished (I1).
            if ended or shard in reading or shard.parent in ahead:
                shards.append(shard.token)
                if not ended:
                    ahead.add(shard)
        return tuple(shards)

    def prune(self, listed: Iterable[Shard]) -> None:
        """Forget shards that ended long ago and are not listed any more (I11, X13)."""
        names = {shard.id for shard in listed}
        for name, ended_at in list(self.ended.items()):
            if name not in names and self.clock() - ended_at >= PRUNE_AFTER:
                del self.ended[name]
                shard = self.shards.pop(name, None)
                for child in shard.children if shard is not None else ():
                    child.parent = None


def parent_of(shard: Shard) -> str | None:
    return shard.parents[0] if shard.parents else None

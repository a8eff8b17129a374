"""The names of one shard of a keyspace."""

from __future__ import annotations

from dataclasses import dataclass

from relay.records import Shard, StreamId


@dataclass(frozen=True, slots=True)
class VitessShard:
    """A shard as vtgate, tokens and messages name it."""

    source: str
    keyspace: str
    name: str  # in the topology of ``keyspace``
    qualified: str  # ``<source>/<keyspace>/<shard>``: globally unique

    @classmethod
    def of(cls, stream: StreamId, shard: Shard, keyspace: str) -> VitessShard:
        """Return the names of ``shard``, which is in ``keyspace`` unless it names another."""
        other, _, name = shard.name.rpartition("/")
        return cls(stream.source, other or keyspace, name, stream.qualified(shard.id))

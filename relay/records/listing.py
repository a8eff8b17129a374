"""The newest listing of a stream's shards: one worker makes it for all."""

from __future__ import annotations

from dataclasses import dataclass

from relay.records.codec import StoredRecord
from relay.records.shard import Shard


@dataclass(frozen=True, slots=True)
class ShardListing(StoredRecord):
    """One complete listing. ``begun``: seconds since the epoch, by the source's clock. ``took``: seconds.

    ``successor``: the label of the stream that continues this one, if there is one.
    """

    begun: float
    took: float
    shards: tuple[Shard, ...] = ()
    successor: str | None = None

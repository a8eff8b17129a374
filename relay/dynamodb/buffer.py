"""Records that were read and not handed out, in one order across all shards."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from relay.dynamodb.stream_record import Record

if TYPE_CHECKING:
    from relay.dynamodb.stream_shard import StreamShard


class RecordBuffer:
    """A heap ordered by creation time, sequence number and arrival, as in Bloop's "Internal" ("RecordBuffer").

    The records of one shard leave in the order in which they were pushed (I2): creation times are approximate, so
    within a shard a time that goes back counts as the one before it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[datetime, int, int], Record, StreamShard]] = []
        # The last creation time of each shard since the buffer was empty.
        self._latest: dict[StreamShard, datetime] = {}
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, records: Iterable[Record], shard: StreamShard) -> None:
        """Push the records of one shard, in their order."""
        for record in records:
            meta = record["meta"]
            created = self._latest[shard] = max(meta["created_at"], self._latest.get(shard, meta["created_at"]))
            # As an integer: "2" is before "140".
            order = created, int(meta["sequence_number"]), next(self._arrivals)
            heapq.heappush(self._heap, (order, record, shard))
            shard.unread += 1

    def peek(self) -> tuple[Record, StreamShard]:
        """Return the first record and its shard. Raises ``IndexError`` if the buffer is empty."""
        _, record, shard = self._heap[0]
        return record, shard

    def pop(self) -> tuple[Record, StreamShard]:
        """Remove and return the first record and its shard. Raises ``IndexError`` if the buffer is empty."""
        _, record, shard = heapq.heappop(self._heap)
        shard.unread -= 1
        if not self._heap:
            self._latest.clear()
        return record, shard

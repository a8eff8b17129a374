"""A shard that no listing had before its children were begun. What it has would come after their changes (I2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from relay.records import Gap, Plan, Start, StreamId
from relay.source import Page, ReadResult, ShardReader


def start_of_late(plan: Plan, children: Iterable[str]) -> Start | None:
    """Return the time from which the changes of a late shard count; None if all do. ``children``: that were begun."""
    return next((start for child in children if "since" in (start := plan.shards.get(child, {}))), None)


class LateShard:
    """Reads a late shard by its ``reader``. If it has changes, they are a gap, otherwise it does not matter."""

    def __init__(self, reader: ShardReader, stream: StreamId, *, clock: Callable[[], float]) -> None:
        self.shard = reader.shard
        self.streams = reader.streams
        self._reader = reader
        self._stream = stream
        self._clock = clock

    def close(self) -> None:
        self._reader.close()

    def read(self) -> ReadResult:
        """Return the next page, or the gap. Raises what the reader does."""
        result = self._reader.read()
        if not isinstance(result, Page) or not result.has_content:
            return result
        stream = self._stream
        gap = Gap(stream.source, stream.label, self.shard.id, "shard lost", None, None, self._clock())
        return replace(result, changes=(), token=None, position=None, size=0, gap=gap, finished=True)  # I9

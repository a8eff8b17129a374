"""Segments of snapshots, opened on real servers."""

from __future__ import annotations

from typing import Any

from relay.change import Snapshot
from relay.mysql.database_snapshots import ChunkReader
from relay.mysql.source import MySQLSource
from relay.records import Shard, ShardCheckpoint, ShardState, SnapshotPart
from relay.source import Page, Segment
from tests.mysql.shards import begin, open_at, read_to_head


def checkpoint_of(page: Page) -> ShardCheckpoint:
    """Return the checkpoint that the engine makes of a page."""
    return ShardCheckpoint(ShardState.READING, page.position, page.token, reached=page.reached)


def head(source: MySQLSource) -> ShardCheckpoint:
    """Return a checkpoint of the only shard at its head."""
    reader = open_at(source, begin(source)["-"])
    try:
        return checkpoint_of(read_to_head(reader)[1][-1])
    finally:
        reader.close()


def segment_of(
    source: MySQLSource, published: ShardCheckpoint, table: str, position: Any = None, as_of: int = 1
) -> ChunkReader:
    part = SnapshotPart("-", table)
    segment = Segment(Shard("s/0"), Snapshot("s", as_of), 0, 1, position, part, lambda: {"-": published})
    return source.snapshots.open(segment)

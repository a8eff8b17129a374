"""A source of the scripted table, and readers of its shards."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson

from relay.dynamodb.reader import DynamoDBShardReader
from relay.dynamodb.source import DynamoDBSource
from relay.records import Shard, ShardCheckpoint, ShardState
from relay.source import Opening, Page
from tests.dynamodb.endpoint import full


def reader(
    source: DynamoDBSource, shard: str = "s", position: Mapping[str, Any] | None = None, **options: Any
) -> DynamoDBShardReader:
    checkpoint = ShardCheckpoint(ShardState.READING, position, options.pop("token", None)) if position else None
    options = {"start": {"type": "trim_horizon"}, "read_until": time.time(), "checkpoint": checkpoint, **options}
    return source.open(Opening(Shard(full(shard)), **options))


def versions(*pages: Page) -> list[int]:
    return [int(orjson.loads(change.new or "")["version"]["N"]) for page in pages for change in page.changes]

"""The lineage of shards, the life of one shard, and the records of both in ``<name>.checkpoints``.

All sources share it: a DynamoDB shard that splits and a Vitess reshard journal are edges of the same graph, and a shard
is read only after all its parents have been read to their end (I2).
"""

from __future__ import annotations

from relay.lineage.committed import CommittedRecords
from relay.lineage.graph import Lineage, ready_shards
from relay.lineage.records import (
    INCARNATION,
    PASSED,
    PRUNE_AFTER,
    Checkpoint,
    Gap,
    Plan,
    Position,
    ReshardJournal,
    Shard,
    ShardState,
    Start,
    StreamId,
    has_ended,
    is_inside_transaction,
    parse_key,
    position_text,
)

__all__ = [
    "INCARNATION",
    "PASSED",
    "PRUNE_AFTER",
    "Checkpoint",
    "CommittedRecords",
    "Gap",
    "Lineage",
    "Plan",
    "Position",
    "ReshardJournal",
    "Shard",
    "ShardState",
    "Start",
    "StreamId",
    "has_ended",
    "is_inside_transaction",
    "parse_key",
    "position_text",
    "ready_shards",
]

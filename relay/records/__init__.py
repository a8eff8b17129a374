"""What stands in ``<name>.checkpoints``, the only record of the relay's progress, and the graph of the shards in it.

Each kind of record is a frozen dataclass, whose JSON is its value; the kind is in its key. The formats change only
together with ``schemas/golden/checkpoints.json`` and ``schemas/golden/snapshot_requests.json``.

All sources share the graph: a DynamoDB shard that splits and a Vitess reshard journal are edges of it, and a shard is
read only after all its parents have been read to their end (I2).
"""

from relay.records.gap import Decision, Gap, PendingGap
from relay.records.key import RecordKind, StreamId, owner_key, parse_key
from relay.records.lag import shard_lag, source_lag
from relay.records.lineage import Lineage
from relay.records.plan import PASSED, PartitionOwner, Plan
from relay.records.shard import (
    INCARNATION,
    PRUNE_AFTER,
    Position,
    ReshardJournal,
    Shard,
    ShardCheckpoint,
    ShardListing,
    ShardState,
    Start,
    TableKey,
    UnplannedTable,
    has_ended,
    is_inside_transaction,
    position_text,
)
from relay.records.snapshot import SegmentCheckpoint, SnapshotControl, SnapshotPart, SnapshotRequest
from relay.records.view import CommittedRecords, CommittedStream

__all__ = [
    "INCARNATION",
    "PASSED",
    "PRUNE_AFTER",
    "CommittedRecords",
    "CommittedStream",
    "Decision",
    "Gap",
    "Lineage",
    "PartitionOwner",
    "PendingGap",
    "Plan",
    "Position",
    "RecordKind",
    "ReshardJournal",
    "SegmentCheckpoint",
    "Shard",
    "ShardCheckpoint",
    "ShardListing",
    "ShardState",
    "SnapshotControl",
    "SnapshotPart",
    "SnapshotRequest",
    "Start",
    "StreamId",
    "TableKey",
    "UnplannedTable",
    "has_ended",
    "is_inside_transaction",
    "owner_key",
    "parse_key",
    "position_text",
    "shard_lag",
    "source_lag",
]

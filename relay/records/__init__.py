"""The records in ``<name>.checkpoints``, which alone hold the relay's progress, and the graph of the shards in them.

The formats change only together with ``schemas/golden/checkpoints.json`` and ``snapshot_requests.json``. All sources
share the graph: a DynamoDB shard that splits and a Vitess reshard journal are edges of it.
"""

from relay.records.gap import Decision, Gap, PendingGap
from relay.records.key import RecordKind, StreamId, owner_key, parse_key, partitions_key
from relay.records.lag import lag_since, shard_watermark, source_watermark
from relay.records.lineage import Lineage
from relay.records.plan import PASSED, PartitionOwner, Plan, RequestedPartitions
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
    followers,
    has_ended,
    is_inside_transaction,
    position_text,
)
from relay.records.snapshot import SegmentCheckpoint, SnapshotBeginning, SnapshotControl, SnapshotPart, SnapshotRequest
from relay.records.view import CommittedRecords, CommittedStream

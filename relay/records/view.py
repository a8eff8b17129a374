"""The state that the committed records of ``<name>.checkpoints`` give: each replaces the last one with its key."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from relay.records.codec import StoredRecord
from relay.records.gap import Decision, PendingGap
from relay.records.key import RecordKind, StreamId, parse_key
from relay.records.plan import PartitionOwner, Plan, RequestedPartitions
from relay.records.shard import ShardCheckpoint, ShardListing
from relay.records.snapshot import SegmentCheckpoint, SnapshotControl, SnapshotRequest

_K = TypeVar("_K")
_R = TypeVar("_R", bound=StoredRecord)


class CommittedStream:
    """The committed records of one ``stream``, whichever worker wrote them."""

    def __init__(self, stream: StreamId) -> None:
        self.stream = stream
        self.plan: Plan | None = None
        self.listing: ShardListing | None = None
        self.checkpoints: dict[str, ShardCheckpoint] = {}  # by shard
        # The control record of its newest snapshot, and the segments of its snapshots.
        self.control: SnapshotControl | None = None
        self.segments: dict[str, SegmentCheckpoint] = {}
        self.pending_gaps: dict[str, PendingGap] = {}  # by id: pending and accepted
        # Records applied, shards seen to end, and changes of a gap in a checkpoint. They only grow, so comparing them
        # shows cheaply whether anything has changed.
        self.version = self.endings = self.gap_version = 0

    @property
    def floor(self) -> int:
        """The newest timestamp that may have been published, in seconds."""
        tokens = (each.token.timestamp for each in self.checkpoints.values() if each.token is not None)
        return max(self.plan.floor if self.plan is not None else 0, *tokens, 0)

    def reported_as(self, pending: PendingGap) -> str | None:
        """Return the id of the gap reported for ``pending``: if its shard has ended, perhaps another one, or None."""
        checkpoint = self.checkpoints.get(pending.gap.shard) if pending.gap.shard is not None else None
        return checkpoint.gap if checkpoint is not None and checkpoint.state.ended else pending.id

    @property
    def decided_repairs(self) -> set[str]:
        """The ids of gaps for which a person chose a repair by a snapshot."""
        decided = (each for each in self.pending_gaps.values() if each.decision is Decision.RESNAPSHOT)
        return {name for each in decided if (name := self.reported_as(each)) is not None}

    def beside_plan(self) -> dict[bytes, float]:
        """Return the keys of all records except the plan, and when each was written, in seconds."""
        stream = self.stream
        found = {stream.shard_key(name): each.updated_at for name, each in self.checkpoints.items()}
        found |= {stream.segment_key(name): each.updated_at for name, each in self.segments.items()}
        found |= {stream.gap_key(name): each.updated_at for name, each in self.pending_gaps.items()}
        if self.control is not None:
            found[stream.snapshot_key] = self.control.updated_at
        if self.listing is not None:
            found[stream.listing_key] = self.listing.begun
        return found

    def apply(self, kind: RecordKind, name: str, value: bytes | None) -> None:
        """Apply a record called ``name``, or its deletion. Raises ValueError if this version cannot read it."""
        match kind:
            case RecordKind.SHARD:
                before, after = self.checkpoints.get(name), _put(self.checkpoints, name, ShardCheckpoint, value)
                if after is not None:
                    self.endings += after.state.ended
                elif before is not None:
                    # The shard's end and the record's removal may have arrived together.
                    self.endings += not before.state.ended
                self.gap_version += (before and before.gap) != (after and after.gap)
            case RecordKind.PLAN:
                self.plan = None if value is None else Plan.from_json(value)
            case RecordKind.LISTING:
                self.listing = None if value is None else ShardListing.from_json(value)
            case RecordKind.SNAPSHOT:
                self.control = None if value is None else SnapshotControl.from_json(value)
            case RecordKind.SEGMENT:
                _put(self.segments, name, SegmentCheckpoint, value)
            case RecordKind.GAP:
                _put(self.pending_gaps, name, PendingGap, value)
        self.version += 1


class CommittedRecords:
    def __init__(self) -> None:
        self.streams: dict[StreamId, CommittedStream] = {}
        # The same by source, so that a look at one of hundreds of sources does not go through them all.
        self._of_source: dict[str, list[CommittedStream]] = {}
        self._requests: dict[str, dict[str, SnapshotRequest]] = {}  # by source and id
        self.owners: dict[bytes, PartitionOwner] = {}  # by key
        self.requested_partitions: dict[str, dict[str, RequestedPartitions]] = {}  # by source and topic
        # The number of records applied by source, "" for owners; and the sources with new records since the set was
        # last cleared.
        self.versions: Counter[str] = Counter()
        self.changed: set[str] = set()

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record, or its deletion. Raises ValueError if this version cannot read the record."""
        try:
            kind, stream, name = parse_key(key)
            if kind is RecordKind.REQUEST:
                _put(self._requests.setdefault(stream.source, {}), name, SnapshotRequest, value)
            elif kind is RecordKind.OWNER:
                _put(self.owners, key, PartitionOwner, value)
            elif kind is RecordKind.PARTITIONS:
                _put(self.requested_partitions.setdefault(stream.source, {}), name, RequestedPartitions, value)
            else:
                self.of(stream).apply(kind, name, value)
        except ValueError as error:
            raise ValueError(f"{key.decode(errors='replace')}: {error}") from None
        self.versions[stream.source] += 1
        self.changed.add(stream.source)

    def of(self, stream: StreamId) -> CommittedStream:
        """Return the committed records of ``stream``, always in the same object; without records, they are empty."""
        if stream not in self.streams:
            self.streams[stream] = found = CommittedStream(stream)
            self._of_source.setdefault(stream.source, []).append(found)
        return self.streams[stream]

    def of_source(self, source: str) -> list[CommittedStream]:
        return self._of_source.get(source, [])

    def planned(self, source: str) -> list[CommittedStream]:
        return [each for each in self.of_source(source) if each.plan is not None]

    def newest(self, source: str, *, but: StreamId | None = None) -> CommittedStream | None:
        """Return the newest planned stream, which is or was read last, except ``but``. Labels sort like times."""
        others = (each for each in self.planned(source) if each.stream != but)
        return max(others, key=lambda each: each.stream.label, default=None)

    def requests_of(self, source: str) -> list[SnapshotRequest]:
        """Return the unfulfilled requests for snapshots of ``source``, the oldest first."""
        return [each for each in self._all_requests(source) if each.gap is None]

    def altered_of(self, source: str) -> list[SnapshotRequest]:
        """Return what statements have done to tables that no snapshot has read since, the oldest first."""
        return [each for each in self._all_requests(source) if each.gap is not None]

    def altered_tables(self, source: str) -> list[dict[str, Any]]:
        """Return the gaps of the first and the last statement about each of these tables, as on their topic."""
        ends: dict[tuple[str, ...], list[SnapshotRequest]] = {}
        for each in self.altered_of(source):
            ends[each.tables] = [*ends.get(each.tables, ())[:1], each]
        return [each.gap.published() for found in ends.values() for each in found if each.gap]

    def _all_requests(self, source: str) -> list[SnapshotRequest]:
        found = self._requests.get(source, {}).values()
        return sorted(found, key=lambda request: (request.requested_at, request.id))

    def requested_of(self, source: str) -> Mapping[str, int]:
        """Return, by topic, the requested numbers of partitions, fulfilled or not."""
        return {topic: each.partitions for topic, each in self.requested_partitions.get(source, {}).items()}

    def partitions_of(self, source: str) -> Mapping[str, int]:
        """Return, by topic, over how many partitions the changes of ``source`` are spread now."""
        newest = self.newest(source)
        return newest.plan.partitions if newest is not None and newest.plan is not None else {}

    def waiting_partitions(self, source: str) -> Mapping[str, int]:
        """Return the requested numbers of partitions that the plan of ``source`` does not have yet, by topic."""
        if not (requested := self.requested_of(source)):
            return {}
        now = self.partitions_of(source)
        return {topic: number for topic, number in requested.items() if now.get(topic, number) < number}


def _put(records: dict[_K, _R], name: _K, kind: type[_R], value: bytes | None) -> _R | None:
    if value is None:
        records.pop(name, None)
        return None
    records[name] = record = kind.from_json(value)
    return record

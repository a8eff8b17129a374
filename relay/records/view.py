"""What the committed records of ``<name>.checkpoints`` say, all together: each replaces the one before of its key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

from relay.records.codec import StoredRecord
from relay.records.gap import PendingGap
from relay.records.key import RecordKind, StreamId, parse_key
from relay.records.listing import ShardListing
from relay.records.plan import Plan
from relay.records.shard import ShardCheckpoint
from relay.records.snapshot import SegmentCheckpoint, SnapshotControl, SnapshotRequest

_R = TypeVar("_R", bound=StoredRecord)
_K = TypeVar("_K")


class CommittedRecords:
    """The records of all streams, by kind."""

    def __init__(self) -> None:
        self.plans: dict[StreamId, Plan] = {}
        # By source, its streams in ``plans``: a look at one of hundreds of sources must not go through them all.
        self.planned: dict[str, set[StreamId]] = {}
        self.checkpoints: dict[StreamId, dict[str, ShardCheckpoint]] = {}
        self.listings: dict[StreamId, ShardListing] = {}
        self.controls: dict[StreamId, SnapshotControl] = {}
        self.segments: dict[StreamId, dict[str, SegmentCheckpoint]] = {}
        self.pending_gaps: dict[StreamId, dict[str, PendingGap]] = {}
        # By source and id.
        self.requests: dict[str, dict[str, SnapshotRequest]] = {}
        # By source: records applied, shards seen to end, and changes of the gap in a checkpoint. They only grow: cheap
        # to compare, to see whether something has changed.
        self.versions: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.gap_versions: Counter[str] = Counter()
        # The sources whose versions have grown since the set was last cleared.
        self.changed: set[str] = set()

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record, or its deletion. Raises ValueError if this version cannot read it."""
        try:
            kind, stream, name = parse_key(key)
            self._apply_record(kind, stream, name, value)
        except ValueError as error:
            raise ValueError(f"{key.decode(errors='replace')}: {error}") from None
        self.versions[stream.source] += 1
        self.changed.add(stream.source)

    def _apply_record(self, kind: RecordKind, stream: StreamId, name: str, value: bytes | None) -> None:
        match kind:
            case RecordKind.SHARD:
                before = self.checkpoints.get(stream, {}).get(name)
                after = _put(self.checkpoints.setdefault(stream, {}), name, ShardCheckpoint, value)
                if after is not None:
                    self.endings[stream.source] += after.state.ended
                elif before is not None:
                    # Its end and its removal may have arrived together.
                    self.endings[stream.source] += not before.state.ended
                if (before and before.gap) != (after and after.gap):
                    self.gap_versions[stream.source] += 1
            case RecordKind.PLAN:
                if _put(self.plans, stream, Plan, value) is not None:
                    self.planned.setdefault(stream.source, set()).add(stream)
                else:
                    self.planned.get(stream.source, set()).discard(stream)
            case RecordKind.LISTING:
                _put(self.listings, stream, ShardListing, value)
            case RecordKind.SNAPSHOT:
                _put(self.controls, stream, SnapshotControl, value)
            case RecordKind.SEGMENT:
                _put(self.segments.setdefault(stream, {}), name, SegmentCheckpoint, value)
            case RecordKind.GAP:
                _put(self.pending_gaps.setdefault(stream, {}), name, PendingGap, value)
            case RecordKind.REQUEST:
                _put(self.requests.setdefault(stream.source, {}), name, SnapshotRequest, value)

    def newest(self, source: str, *, but: StreamId | None = None) -> CommittedStream | None:
        """Return the newest planned stream of ``source``, ``but`` one: it is read, or was read last.

        Labels are times, and sort as times.
        """
        label = max((stream.label for stream in self.planned.get(source, ()) if stream != but), default=None)
        return CommittedStream(self, StreamId(source, label)) if label is not None else None

    def streams(self, source: str) -> set[StreamId]:
        """Return the streams of ``source`` that have a record."""
        kinds = (self.plans, self.checkpoints, self.listings, self.controls, self.segments, self.pending_gaps)
        return {stream for records in kinds for stream in records if stream.source == source}

    def beside_plan(self, stream: StreamId) -> Iterator[tuple[bytes, float]]:
        """Yield the keys of all records of ``stream`` but its plan, and when each was written, in seconds."""
        yield from ((stream.shard_key(name), c.updated_at) for name, c in self.checkpoints.get(stream, {}).items())
        yield from ((stream.segment_key(name), c.updated_at) for name, c in self.segments.get(stream, {}).items())
        yield from ((stream.gap_key(name), gap.updated_at) for name, gap in self.pending_gaps.get(stream, {}).items())
        if (control := self.controls.get(stream)) is not None:
            yield stream.snapshot_key, control.updated_at
        if (listing := self.listings.get(stream)) is not None:
            yield stream.listing_key, listing.begun


class CommittedStream:
    """What the committed records say of one stream, at each use what the view has then. ``stream``: which one."""

    def __init__(self, view: CommittedRecords, stream: StreamId) -> None:
        self.view = view
        self.stream = stream

    @property
    def plan(self) -> Plan | None:
        return self.view.plans.get(self.stream)

    @property
    def listing(self) -> ShardListing | None:
        """The newest one, whichever worker made it."""
        return self.view.listings.get(self.stream)

    @property
    def checkpoints(self) -> Mapping[str, ShardCheckpoint]:
        """By shard, of all workers."""
        return self.view.checkpoints.get(self.stream, {})

    @property
    def floor(self) -> int:
        """The newest timestamp that may have been published, in seconds."""
        tokens = (each.token.timestamp for each in self.checkpoints.values() if each.token is not None)
        return max(self.plan.floor if self.plan is not None else 0, *tokens, 0)

    @property
    def control(self) -> SnapshotControl | None:
        """Of its newest snapshot."""
        return self.view.controls.get(self.stream)

    @property
    def segments(self) -> Mapping[str, SegmentCheckpoint]:
        """Of its snapshots, of all workers."""
        return self.view.segments.get(self.stream, {})

    @property
    def pending_gaps(self) -> Mapping[str, PendingGap]:
        """By id: pending and accepted."""
        return self.view.pending_gaps.get(self.stream, {})

    @property
    def version(self) -> int:
        """It grows with each record of the source."""
        return self.view.versions[self.stream.source]

    @property
    def endings(self) -> int:
        """It grows with each shard of the source that is seen to end."""
        return self.view.endings[self.stream.source]

    @property
    def gap_version(self) -> int:
        """It grows with each change of the gap in a checkpoint of the source."""
        return self.view.gap_versions[self.stream.source]


def _put(records: dict[_K, _R], name: _K, kind: type[_R], value: bytes | None) -> _R | None:
    """Keep a record, or remove it. Return it."""
    if value is None:
        records.pop(name, None)
        return None
    records[name] = record = kind.from_json(value)
    return record

"""What the committed records of ``<name>.checkpoints`` say, all together: each replaces the one before of its key."""

from __future__ import annotations

from collections import Counter

from relay.lineage.records import Checkpoint, Plan, StreamId, parse_key


class CommittedRecords:
    """The plans and the checkpoints of all streams."""

    def __init__(self) -> None:
        self.plans: dict[StreamId, Plan] = {}
        # By source, its streams in ``plans``: a look at one of hundreds of sources must not go through them all.
        self.planned: dict[str, set[StreamId]] = {}
        self.checkpoints: dict[StreamId, dict[str, Checkpoint]] = {}
        # By source: records applied, shards seen to end, and changes of the gap in a checkpoint. They only grow: cheap
        # to compare, to see whether something has changed.
        self.versions: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.gap_versions: Counter[str] = Counter()
        # The sources whose versions have grown since the set was last cleared.
        self.changed: set[str] = set()

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record, or its deletion. Raises ValueError, KeyError or TypeError if this version cannot read it."""
        stream, shard = parse_key(key)
        source = stream.source
        if shard is None and value is not None:
            self.plans[stream] = Plan.from_json(value)
            self.planned.setdefault(source, set()).add(stream)
        elif shard is None:
            self.plans.pop(stream, None)
            self.planned.get(source, set()).discard(stream)
        else:
            before = self.checkpoints.get(stream, {}).get(shard)
            after = Checkpoint.from_json(value) if value is not None else None
            if after is not None:
                self.checkpoints.setdefault(stream, {})[shard] = after
                self.endings[source] += after.state.ended
            elif before is not None:
                del self.checkpoints[stream][shard]
                # Its end and its removal may have arrived together.
                self.endings[source] += not before.state.ended
            if (before.gap if before is not None else None) != (after.gap if after is not None else None):
                self.gap_versions[source] += 1
        self.versions[source] += 1
        self.changed.add(source)

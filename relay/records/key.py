"""The keys of ``<name>.checkpoints``: JSON arrays of the format's version, the kind of record, and what it is of.

murmur2 of a key gives its partition, and so the worker that owns the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import orjson

_VERSION = "v1"


class RecordKind(StrEnum):
    """What a record is, as its key says it."""

    SHARD = "shard"
    PLAN = "plan"
    LISTING = "listing"
    SNAPSHOT = "snapshot"
    SEGMENT = "segment"
    GAP = "gap"
    REQUEST = "request"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class StreamId:
    """One incarnation of a source: its configured name, and the label that its shards belong to."""

    source: str
    label: str

    @property
    def plan_key(self) -> bytes:
        return self._key(RecordKind.PLAN)

    @property
    def listing_key(self) -> bytes:
        """The key of its newest listing. Its owner lists the shards for all workers."""
        return self._key(RecordKind.LISTING)

    @property
    def snapshot_key(self) -> bytes:
        """The key of the control record of its newest snapshot."""
        return self._key(RecordKind.SNAPSHOT)

    def shard_key(self, shard: str) -> bytes:
        return self._key(RecordKind.SHARD, shard)

    def segment_key(self, segment: str) -> bytes:
        return self._key(RecordKind.SEGMENT, segment)

    def gap_key(self, gap: str) -> bytes:
        return self._key(RecordKind.GAP, gap)

    def _key(self, kind: RecordKind, *name: str) -> bytes:
        return orjson.dumps([_VERSION, kind, self.source, self.label, *name])

    def qualified(self, shard: str) -> str:
        """The globally qualified shard name, as event tokens carry it."""
        return f"{self.source}/{self.label}/{shard}"

    @property
    def snapshots(self) -> StreamId:
        """What its snapshots are called where they stand beside it: in event ids and in what is shown."""
        return StreamId(self.source, f"{self.label}/snapshot")


def request_key(source: str, request: str) -> bytes:
    """A request is of a source, not of a stream."""
    return orjson.dumps([_VERSION, RecordKind.REQUEST, source, request])


def owner_key(number: int) -> bytes:
    """Whoever owns its partition writes it: which numbers lie in which, `relay.kafka.checkpoints` says."""
    return orjson.dumps([_VERSION, RecordKind.OWNER, "", str(number)])


def parse_key(key: bytes) -> tuple[RecordKind, StreamId, str]:
    """Return the kind of a record, its stream and its name, empty for what a stream has one of.

    The stream of a request has no label, and that of an owner no source either. Raises ValueError for other keys.
    """
    parts = orjson.loads(key)
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts) or parts[:1] != [_VERSION]:
        raise ValueError("not a key of this version")
    kind, *names = RecordKind(parts[1] if len(parts) > 1 else ""), *parts[2:]
    # Of these a stream may have several, so that the key ends with a name.
    if len(names) != 2 + (kind in (RecordKind.SHARD, RecordKind.SEGMENT, RecordKind.GAP)):
        raise ValueError(f"not a key of a {kind}")
    if kind in (RecordKind.REQUEST, RecordKind.OWNER):
        return kind, StreamId(names[0], ""), names[1]
    return kind, StreamId(names[0], names[1]), "".join(names[2:])

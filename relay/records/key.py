"""The keys of ``<name>.checkpoints``: JSON arrays with the format's version, the kind of record, and its subject."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import orjson

_VERSION = "v1"


class RecordKind(StrEnum):
    """The kind of a record, as its key names it."""

    SHARD = "shard"
    PLAN = "plan"
    LISTING = "listing"
    SNAPSHOT = "snapshot"
    SEGMENT = "segment"
    GAP = "gap"
    REQUEST = "request"
    OWNER = "owner"
    PARTITIONS = "partitions"


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
        """The key of the record with the newest listing. Its owner lists the shards for all workers."""
        return self._key(RecordKind.LISTING)

    @property
    def snapshot_key(self) -> bytes:
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
        """The globally unique name of the shard, as in event tokens."""
        return f"{self.source}/{self.label}/{shard}"

    @property
    def snapshots(self) -> StreamId:
        """The name of the stream's snapshots, in event ids and messages."""
        return StreamId(self.source, f"{self.label}/snapshot")


def request_key(source: str, request: str) -> bytes:
    """Return the key of a request, which belongs to a source, not to a stream."""
    return orjson.dumps([_VERSION, RecordKind.REQUEST, source, request])


def partitions_key(source: str, topic: str) -> bytes:
    """Return the key of the number of partitions that was last requested for a topic of a source."""
    return orjson.dumps([_VERSION, RecordKind.PARTITIONS, source, topic])


def owner_key(number: int) -> bytes:
    """Return the key of a record that its partition's owner writes. `relay.kafka.checkpoints` maps the numbers."""
    return orjson.dumps([_VERSION, RecordKind.OWNER, "", str(number)])


def parse_key(key: bytes) -> tuple[RecordKind, StreamId, str]:
    """Return a record's kind, stream and name. The name is empty for kinds that a stream has only once.

    The stream of a request has no label, the stream of an owner neither label nor source. Raises ValueError for other
    keys.
    """
    parts = orjson.loads(key)
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts) or parts[:1] != [_VERSION]:
        raise ValueError("not a key of this version")
    kind, *names = RecordKind(parts[1] if len(parts) > 1 else ""), *parts[2:]
    # A stream may have several records of these kinds, so their keys end with a name.
    if len(names) != 2 + (kind in (RecordKind.SHARD, RecordKind.SEGMENT, RecordKind.GAP)):
        raise ValueError(f"not a key of a {kind}")
    if kind in (RecordKind.REQUEST, RecordKind.OWNER, RecordKind.PARTITIONS):
        return kind, StreamId(names[0], ""), names[1]
    return kind, StreamId(names[0], names[1]), "".join(names[2:])

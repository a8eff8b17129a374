"""One record of GetRecords as `Stream` returns it, structured as in Bloop's "Streams" guide."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

Image = Mapping[str, Any]
"""An item, or its key, DynamoDB-typed: ``{"id": {"S": "ada"}}``; binary as bytes, numbers as text."""

Unpack = Callable[[Image], Any]


class EventMeta(TypedDict):
    """The ``eventID``, ``eventName`` and ``eventVersion`` of a record. ``type``: insert, modify or remove."""

    id: str
    type: str
    version: str


class Meta(TypedDict):
    """Where and when a record was created.

    ``created_at``: approximate, aware, in UTC, to the second. ``sequence_number``: unique within the shard, increasing.
    ``user_identity``: None, or the service that made the change, such as
    ``{"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}`` for a delete by time to live.
    """

    created_at: datetime
    event: EventMeta
    sequence_number: str
    shard_id: str
    user_identity: Mapping[str, str] | None


class Record(TypedDict):
    """One change of one item.

    ``old``, ``new``: the item before and after the change, or None if the stream's view type or the event has no such
    image. ``key``: the primary key if the record has no image, as always under KEYS_ONLY; otherwise None.
    """

    key: Any
    old: Any
    new: Any
    meta: Meta


def stream_record(raw: Mapping[str, Any], shard_id: str) -> Record:
    """Return a record of GetRecords as a ``Record``, with unchanged images."""
    data = raw["dynamodb"]
    old, new = data.get("OldImage"), data.get("NewImage")
    return {
        # A delete under NEW_IMAGE has no image either: only its key identifies the item (I8).
        "key": data.get("Keys") if old is None and new is None else None,
        "old": old,
        "new": new,
        "meta": {
            "created_at": data["ApproximateCreationDateTime"].astimezone(UTC),
            "event": {
                "id": raw.get("eventID", ""),
                "type": raw["eventName"].lower(),
                "version": raw.get("eventVersion", ""),
            },
            "sequence_number": data["SequenceNumber"],
            "shard_id": shard_id,
            "user_identity": raw.get("userIdentity"),
        },
    }


def unpacked(record: Record, unpack: Unpack, unpack_key: Unpack | None = None) -> Record:
    """Return ``record`` with its key and images converted by ``unpack``; absent ones stay None."""
    return {
        "key": None if record["key"] is None else (unpack_key or unpack)(record["key"]),
        "old": None if record["old"] is None else unpack(record["old"]),
        "new": None if record["new"] is None else unpack(record["new"]),
        "meta": record["meta"],
    }

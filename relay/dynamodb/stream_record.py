"""One record of GetRecords as the Python API hands it out: seed 002, "Record Structure".

The relay's own way from a record to a change is ``relay.dynamodb.records``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

from boto3.dynamodb.types import TypeDeserializer

Image = Mapping[str, Any]
"""An item, or its key, as DynamoDB types it: ``{"id": {"S": "ada"}}``; binary as bytes, numbers as text."""

Unpack = Callable[[Image], Any]


class EventMeta(TypedDict):
    """``type``: insert, modify or remove."""

    id: str
    type: str
    version: str


class Meta(TypedDict):
    """``created_at``: aware, UTC, to the second. ``user_identity``: who did it when it was not a user, as for
    deletes by time to live: ``{"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}``.
    """

    created_at: datetime
    event: EventMeta
    sequence_number: str
    shard_id: str
    user_identity: Mapping[str, str] | None


class Record(TypedDict):
    """``old`` and ``new``: the images that the stream's view type and the event have, else None.

    ``key``: the primary key where the record has no image, as always under KEYS_ONLY; None where the images tell it.
    """

    key: Any
    old: Any
    new: Any
    meta: Meta


def stream_record(raw: Mapping[str, Any], shard_id: str) -> Record:
    """Turn what GetRecords gives into a ``Record``; images stay as they are."""
    data = raw["dynamodb"]
    old, new = data.get("OldImage"), data.get("NewImage")
    return {
        # A delete under NEW_IMAGE has no image either: without its key nobody could tell what it was of (I8).
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


def unpacked(record: Record, unpack: Unpack) -> Record:
    """Return ``record`` with its key and images converted; absent ones stay None."""
    return {
        "key": None if record["key"] is None else unpack(record["key"]),
        "old": None if record["old"] is None else unpack(record["old"]),
        "new": None if record["new"] is None else unpack(record["new"]),
        "meta": record["meta"],
    }


def plain(image: Image) -> dict[str, Any]:
    """Convert an image with boto3's ``TypeDeserializer``: numbers to Decimal, exactly; binary to its ``Binary``."""
    deserialize = TypeDeserializer().deserialize
    return {name: deserialize(value) for name, value in image.items()}

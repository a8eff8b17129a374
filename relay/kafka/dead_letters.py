"""Writes dead letters: complete changes that could only be published as stubs. ``schemas/README.md`` has the format."""

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Protocol

import orjson

from relay.change import Change, Uncarriable
from relay.errors import RelayError
from relay.kafka.limits import Headers, record_size, too_small

TOO_LARGE = "too large"
NOT_ENCODABLE = "not encodable"
REDRIVEN_SUFFIX = b"/redriven"  # the key suffix of the record that marks a dead letter as redriven
DISMISSED_SUFFIX = b"/dismissed"
"""The key suffix of the record that marks a dead letter as dismissed, because a person decided not to redrive it."""

_LONGEST_DETAIL = 1000


class RecordSender(Protocol):
    def send(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Headers) -> None: ...


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Topic, partition, record key and headers of the stub that a redrive completes."""

    topic: str
    partition: int
    key: bytes
    headers: Headers


class DeadLetterWriter:
    """Writes dead letters in the transaction of their stubs. ``largest``: bytes of the largest record on ``topic``."""

    def __init__(self, topic: str, largest: int) -> None:
        self.topic = topic
        self.largest = largest

    def send(
        self,
        publisher: RecordSender,
        change: Change,
        encoded: bytes,
        place: RecordPlace,
        *,
        item_key: bytes,
        reason: str,
        detail: str,
        encoding: Literal["avro", "json"],
    ) -> int:
        """Send ``change``, which is ``encoded``, in chunks if it has to. Return the number of bytes sent.

        ``item_key``: the full primary key as JSON. Raises ``RelayError`` if even the headers are too large.
        """
        token, snapshot = change.token, change.snapshot
        headers: Headers = [
            ("consumer", b"relay"),
            ("reason", reason.encode()),
            ("detail", detail[:_LONGEST_DETAIL].encode("utf-8", "backslashreplace")),
            ("source", change.source.encode()),
            ("table", change.table.encode()),
            ("shard", token.shard.encode() if token else b""),
            ("position", (token.position if token else f"snapshot/{snapshot.id}" if snapshot else "").encode()),
            ("key", item_key),
            ("topic", place.topic.encode()),
            ("partition", str(place.partition).encode()),
            ("record_key", place.key),
            ("encoding", encoding.encode()),
            *place.headers,  # bytes of event_id and token
        ]
        smallest = record_size(b"0", _chunk_key(change, 1 << 20), [*headers, ("chunk", b"0" * 20)])
        if smallest > self.largest:
            raise RelayError(
                f"source {change.source}: the {change.operation} of {change.table}, event {change.event_id}, becomes "
                f"a dead letter ({reason}) whose headers alone take {smallest} bytes, but "
                f"{too_small(self.topic, self.largest, smallest)}"
            )
        room = self.largest - smallest + 1
        count = max(1, -(-len(encoded) // room))
        for number in range(1, count + 1):
            part = encoded[(number - 1) * room : number * room]
            chunk = ("chunk", f"{number}/{count}".encode())
            publisher.send(self.topic, part, _chunk_key(change, number), 0, [*headers, chunk])
        return len(encoded)


def _chunk_key(change: Change, number: int) -> bytes:
    return f"{change.event_id}/{number}".encode()


def change_json(change: Change, item_key: bytes) -> bytes:
    """Return a change as lossless JSON, for what Avro cannot hold, such as text that is not Unicode.

    Images are DynamoDB JSON; typed rows are objects by column, with binary in base64 and decimals and times as text.
    """
    fields: dict[str, Any] = {
        "event_id": change.event_id,
        "operation": change.operation.value,
        "source": change.source,
        "table": change.table,
        "key": orjson.loads(item_key),
        "old": _image(change.old),
        "new": _image(change.new),
        "images": change.images.value,
        "token": orjson.loads(change.token.to_json_bytes()) if change.token else None,
        "snapshot": asdict(change.snapshot) if change.snapshot else None,
        "transaction": asdict(change.transaction) if change.transaction else None,
        "keyspace_id": change.keyspace_id,
        "resume_timestamp": change.resume_timestamp,
        "committed_at": change.committed_at,
        "relayed_at": change.relayed_at,
        "attributes": dict(change.attributes),
    }
    # ASCII, because half a surrogate pair cannot be encoded as UTF-8 but can be escaped in JSON.
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":"), default=_plain).encode()


def _image(image: Any) -> Any:
    if isinstance(image, Uncarriable):
        return image.item
    if isinstance(image, str):
        return json.loads(image)
    return dict(image) if isinstance(image, Mapping) else image


def _plain(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"cannot write {value!r} ({type(value).__name__}) as JSON")

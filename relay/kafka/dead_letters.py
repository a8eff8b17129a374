"""What cannot be published whole, kept whole: the relay's records on ``<name>.dead_letters``.

Their form is a contract with those who read the topic, shown in ``schemas/README.md``. The consumers' dead letters
are written by ``spark_consumers.dead_letters``; ``relay.operations.dead_letters`` reads both.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Protocol

import orjson

from relay.change import Change, Uncarriable
from relay.kafka.limits import Headers, record_size

TOO_LARGE = "too large"
NOT_ENCODABLE = "not encodable"
REDRIVEN = b"/redriven"
"""What the key of the record ends in that says that a letter was sent again."""

_LONGEST_DETAIL = 1000


class Sends(Protocol):
    def send(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Headers) -> None: ...


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where the stub of a change goes, and so the whole one later. ``key``, ``headers``: the record's."""

    topic: str
    partition: int
    key: bytes
    headers: Headers


class DeadLetterWriter:
    """The topic, as the relay writes to it: in the transaction of the stub. ``largest``: bytes of a record it takes."""

    def __init__(self, topic: str, largest: int) -> None:
        self.topic = topic
        self.largest = largest

    def __repr__(self) -> str:
        return f"<DeadLetterWriter[{self.topic}]>"

    def send(
        self,
        publisher: Sends,
        change: Change,
        whole: bytes,
        place: RecordPlace,
        *,
        item_key: bytes,
        reason: str,
        detail: str,
        encoding: Literal["avro", "json"],
    ) -> int:
        """Send the ``whole`` change, in chunks where it is too large for one record. Return the bytes sent.

        ``item_key``: the full primary key as JSON.
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
            *place.headers,  # event_id and token
        ]
        room = self.largest - record_size(b"", _chunk_key(change, 1 << 20), [*headers, ("chunk", b"0" * 20)])
        if room < 1:
            raise ValueError(f"{self.topic} takes {self.largest} bytes a record, too few for what describes a letter")
        of = max(1, -(-len(whole) // room))
        for number in range(1, of + 1):
            part = whole[(number - 1) * room : number * room]
            chunk = ("chunk", f"{number}/{of}".encode())
            publisher.send(self.topic, part, _chunk_key(change, number), 0, [*headers, chunk])
        return len(whole)


def _chunk_key(change: Change, number: int) -> bytes:
    return f"{change.event_id}/{number}".encode()


def change_json(change: Change, item_key: bytes) -> bytes:
    """Return a change as JSON that loses nothing, not even text that is no Unicode: for what Avro cannot hold.

    Images are in DynamoDB's JSON, typed rows by column with binary in base64, decimals and times as text.
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
    # ASCII: half a surrogate pair has no bytes in UTF-8, and an escape in JSON.
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
    raise TypeError(f"{value!r} ({type(value).__name__}) has no form in JSON")

"""Changes of one table as records of one topic: value, key, partition and headers.

The partition is always murmur2 of the hash key's bytes, set explicitly, whatever the record's key is (I2).
"""

from __future__ import annotations

import time
from typing import Literal, Protocol

from relay.avro.encode import ChangeEncoder
from relay.avro.rows import TableSchema, change_schema
from relay.change import Change
from relay.errors import RelayError
from relay.kafka.keys import KeyCodec, partition
from relay.kafka.publisher import Publisher


class Schemas(Protocol):
    """Where schemas are published: see ``relay.avro.registry``."""

    def register(self, topic: str, schema: dict[str, object]) -> bytes: ...


class Outbox:
    """Encodes and sends the changes of one table."""

    def __init__(
        self, table: TableSchema, topic: str, partitions: int, key: Literal["hash", "item"], schemas: Schemas
    ) -> None:
        self.table = table
        self.topic = topic
        self.partitions = partitions
        schema = change_schema(table)
        # Published and committed before, and outside, the transaction that first uses it.
        self._encoder = ChangeEncoder(schema, schemas.register(topic, schema))
        self._codec = KeyCodec(table, key)

    def __repr__(self) -> str:
        return f"<Outbox[{self.table.table} -> {self.topic}]>"

    def send(self, publisher: Publisher, change: Change, resume_timestamp: int) -> int:
        """Send ``change`` in the open transaction; return the bytes of its value."""
        if change.key is None:
            raise RelayError(f"{self.topic}: change {change.event_id} has no key")
        hash_bytes, key = self._codec.both(change.key)
        value, headers = self._encoded(change, resume_timestamp)
        publisher.send(self.topic, value, key, partition(hash_bytes, self.partitions), headers)
        return len(value)

    def send_everywhere(self, publisher: Publisher, change: Change, resume_timestamp: int) -> None:
        """Send ``change``, which concerns no single item, to every partition of the topic."""
        value, headers = self._encoded(change, resume_timestamp)
        for number in range(self.partitions):
            # No item has this key, and a compacted topic takes no record without one.
            publisher.send(self.topic, value, change.event_id.encode(), number, headers)

    def _encoded(self, change: Change, resume_timestamp: int) -> tuple[bytes, list[tuple[str, str | bytes | None]]]:
        change.resume_timestamp = resume_timestamp
        change.relayed_at = time.time_ns() // 1000
        headers: list[tuple[str, str | bytes | None]] = [("event_id", change.event_id.encode())]
        if change.token is not None:
            headers.append(("token", change.token.to_json_bytes()))
        return self._encoder.encode(change), headers

"""Changes for the benchmarks, the same in every run."""

from __future__ import annotations

import random

from relay.change import Change, ChangeParts, Images, Operation, event_id
from relay.dynamodb.values import image_json
from relay.kafka.limits import Headers
from relay.kafka.topic_writer import TopicWriter
from relay.records import StreamId
from relay.table import KeyColumn, TableSchema
from relay.token import EventToken

TABLE = TableSchema("orders", "orders", (KeyColumn("customer", "S"), KeyColumn("order_id", "N")), 1)
STREAM = StreamId("orders", "2026-01-01T00:00:00.000")

Message = tuple[bytes, bytes, int, Headers]
"""Value, key, partition, headers."""


def change(number: int) -> Change:
    """Return the update of item ``number``, with two images of about 400 bytes."""
    chance = random.Random(number)
    key = {"customer": f"customer-{number % 5000:05}", "order_id": str(number)}
    images = [
        image_json(
            {
                "customer": {"S": key["customer"]},
                "order_id": {"N": key["order_id"]},
                "version": {"N": str(version)},
                "total": {"N": f"{chance.randint(1, 10**9)}.25"},
                "payload": {"S": "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=200))},
                "tags": {"SS": ["red", "green", "blue"]},
            }
        )
        for version in (1, 2)
    ]
    shard = STREAM.qualified("shardId-00000001700000000000-0123abcd")
    position = f"DynamoDB/{10**20 + number}"
    return Change(
        event_id=event_id(shard, position, "orders", key["customer"].encode(), 0),
        operation=Operation.UPDATE,
        source="orders",
        table="orders",
        key=key,
        old=images[0],
        new=images[1],
        images=Images.NEW_AND_OLD,
        token=EventToken(1_700_000_000 + number // 1000, shard, position),
        committed_at=1_700_000_000_000_000,
        attributes={"event_version": "1.1"},
    )


class _Kept:
    """A publisher that keeps the records instead of sending them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Headers) -> None:
        assert value is not None, "no change here leaves a tombstone"
        self.messages.append((value, key, partition, headers))


def finished(outbox: TopicWriter, changes: list[Change] | ChangeParts) -> list[Message]:
    """Return the records that ``outbox`` sends."""
    kept = _Kept()
    for part in changes.parts if isinstance(changes, ChangeParts) else [changes]:
        outbox.send_page(kept, part, 1_700_000_000)
    return kept.messages

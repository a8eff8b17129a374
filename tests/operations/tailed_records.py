"""Records as `relay tail` reads them, without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Message

from relay.avro.encode import ChangeEncoder
from relay.avro.framing import fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.change import Change, Images, Operation, Transaction
from relay.table import KeyColumn, TableSchema
from relay.token import EventToken

TABLE = TableSchema("shop", "orders", (KeyColumn("order_id", "S"),), hash_columns=1, row=None)
BINARY = TableSchema("shop", "orders", (KeyColumn("id", "B"), KeyColumn("line", "N")), hash_columns=1, row=None)
TOKEN = EventToken(1_800_000_000, "shop/label/shard-1", "DynamoDB/100")


class KnownSchemas:
    """The schemas of a few tables, without a broker."""

    def __init__(self, *tables: TableSchema) -> None:
        schemas = [change_schema(table) for table in tables]
        self._schemas = {single_object_header(fingerprint(schema)): schema for schema in schemas}

    def lookup(self, header: bytes) -> Mapping[str, Any] | None:
        return self._schemas.get(header)


def change(number: int = 1, **others: Any) -> Change:
    fields: dict[str, Any] = {
        "event_id": f"event-{number}",
        "operation": Operation.UPDATE,
        "source": "shop",
        "table": "orders",
        "key": {"order_id": "o-1"},
        "old": '{"order_id":{"S":"o-1"},"total":{"N":"10.50"},"note":{"S":"soon"}}',
        "new": '{"order_id":{"S":"o-1"},"total":{"N":"12"},"lines":{"L":[{"M":{"n":{"N":"1"}}},{"NULL":true}]}}',
        "images": Images.NEW_AND_OLD,
        "token": TOKEN,
        "committed_at": 1_800_000_000_000_000,
        "relayed_at": 1_800_000_000_250_000,
        "resume_timestamp": 1_799_999_999,
        "transaction": Transaction("t-1", 1, True),
        "attributes": {"event_version": "1.1"},
    }
    return Change(**fields | others)


def encoder(table: TableSchema = TABLE) -> ChangeEncoder:
    schema = change_schema(table)
    return ChangeEncoder(schema, single_object_header(fingerprint(schema)))


def message(value: bytes | None, key: bytes | None = b"o-1", topic: str = "shop.orders") -> Message[Any, Any]:
    return Message(topic=topic, partition=3, offset=17, key=key, value=value)

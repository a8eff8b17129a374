"""The records that plain Python makes of changes, to compare those of the compiled core with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from relay.avro.encode import ChangeEncoder
from relay.avro.schema import change_schema
from relay.change import Change
from relay.errors import RelayError
from relay.kafka.keys import KeyCodec, partition
from relay.table import TableSchema

HEADER = b"\xc3\x01header.."
PARTITIONS = 6

Mode = Literal["hash", "item"]
Record = tuple[bytes, bytes, int, list[tuple[str, str | bytes | None]]]


class Kept:
    """The records that were sent: topic, value, key, partition and headers."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []

    def send(self, *record: Any) -> None:
        self.records.append(record)


class AnySchema:
    def register(self, topic: str, schema: dict[str, object]) -> bytes:
        return HEADER


def plain_records(
    changes: Sequence[Change], table: TableSchema, mode: Mode, times: tuple[int, int]
) -> list[Record | None]:
    """Return the records of plain Python, None for what it refuses. ``times``: when to resume, and when relayed."""
    encoder, codec = ChangeEncoder(change_schema(table), HEADER), KeyCodec(table, mode)
    records: list[Record | None] = []
    for change in changes:
        change = replace(change, resume_timestamp=times[0], relayed_at=times[1])
        assert change.key is not None
        assert change.token is not None
        try:
            hashed, key = codec.hash_and_record_key(change.key)
            value = encoder.encode(change)
        except RelayError:
            records.append(None)
            continue
        headers: list[tuple[str, str | bytes | None]] = [
            ("event_id", change.event_id.encode()),
            ("token", change.token.to_json_bytes()),
        ]
        records.append((value, key, partition(hashed, PARTITIONS), headers))
    return records

"""READs of snapshots by the compiled core, beside those of plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from relay.avro.encode import ChangeEncoder, Unencodable
from relay.avro.schema import change_schema
from relay.change import Change, ChangeParts, Snapshot
from relay.errors import RelayError
from relay.kafka.keys import KeyCodec, partition
from relay.kafka.topic_writer import compiled_records
from relay.mysql_dialect.snapshot_times import reads
from relay.mysql_dialect.tables import Row, Table

SNAPSHOT, NOW = Snapshot("5f3b", 1_700_000_000), 1_700_000_065.25
TIMES = 1_600_000_000, 1_700_000_070_000_007
HEADER = b"\xc3\x01header.."
PARTITIONS = 6


def plain_reads(table: Table, source: str, rows: Sequence[Any], decode: Callable[[Any], Row]) -> list[Change]:
    """Return the READs that plain Python makes. Raises what it raises."""
    return reads(source, table, map(decode, rows), SNAPSHOT, NOW)


def compare(table: Table, plain: Sequence[Change], compiled: ChangeParts) -> None:
    """I3, I8: the same changes, and the same records but for those that only plain Python makes."""
    assert list(map(repr, compiled)) == list(map(repr, plain))
    schema, codec = change_schema(table.schema), KeyCodec(table.schema, "item")
    writer = compiled_records(schema, HEADER, table.schema, codec, PARTITIONS, 1 << 20)
    assert writer is not None
    encoder = ChangeEncoder(schema, HEADER)
    made = [record for block in compiled.parts for record in writer.block_records(block, *TIMES)]  # type: ignore[arg-type]
    assert len(made) == len(plain)
    for record, change in zip(made, plain, strict=True):
        assert change.key is not None
        try:
            hashed, key = codec.hash_and_record_key(change.key)
            value = encoder.encode(replace(change, resume_timestamp=TIMES[0], relayed_at=TIMES[1]))
        except (Unencodable, RelayError):
            assert record is None
            continue
        assert record == (value, key, partition(hashed, PARTITIONS), [("event_id", change.event_id.encode())])

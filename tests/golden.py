"""The golden files: the wire format, byte for byte.

``python -m tests.golden`` rewrites ``schemas/golden/``. Do that only to add a case, or for an intended change of the
wire format, and read the difference before you commit it. Inputs are written by hand, in ``tests/golden_inputs.py`` and
``tests/golden_records.py``; bytes come from the code; decoded values come from fastavro, not from our own decoder.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import orjson

from relay.avro.encode import ChangeEncoder
from relay.avro.framing import confluent_header, fingerprint, single_object_header, split
from relay.avro.schema import change_schema
from relay.change import (
    AlteredTable,
    Change,
    Images,
    Operation,
    SchemaChange,
    Snapshot,
    StatementText,
    TableColumns,
    Transaction,
    Uncarriable,
    event_id,
)
from relay.kafka.checkpoints import OWNER_KEYS
from relay.kafka.dead_letters import DeadLetterWriter, RecordPlace, change_json
from relay.kafka.keys import KeyCodec, partition
from relay.kafka.limits import Headers
from relay.kafka.schema_changes import statement_record
from relay.records import (
    Decision,
    Gap,
    PartitionOwner,
    PendingGap,
    Plan,
    RequestedPartitions,
    SegmentCheckpoint,
    ShardCheckpoint,
    ShardListing,
    SnapshotControl,
    SnapshotRequest,
    StreamId,
    partitions_key,
)
from relay.records.codec import StoredRecord
from relay.records.key import request_key
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken
from tests import golden_inputs as inputs
from tests import golden_records as records
from tests.kafka.java_murmur2 import murmur2

FOLDER = Path(__file__).parent.parent / "schemas" / "golden"
PARTITIONS = 6

Case = dict[str, Any]


def read_table(table: Mapping[str, Any]) -> TableSchema:
    row = table.get("row")
    return TableSchema(
        source=table["source"],
        table=table["table"],
        key=tuple(KeyColumn(*column) for column in table["key"]),
        hash_columns=table.get("hash_columns", 1),
        row=None if row is None else tuple(Column(name, kind) for name, kind in row),
        protected=tuple(table.get("protected", {}).items()),
    )


def read_values(columns: tuple[KeyColumn, ...] | tuple[Column, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Read values from their JSON: binary in base64, decimals as text, times in ISO 8601."""
    kinds = {column.name: column.type for column in columns}
    return {name: _read_value(kinds[name], value) for name, value in values.items()}


def _read_value(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind in ("B", "bytes"):
        return b64decode(value)
    if kind.startswith("decimal"):
        return Decimal(value)
    if kind == "timestamp":
        return datetime.fromisoformat(value)
    return value


def read_change(table: TableSchema, change: Mapping[str, Any]) -> Change:
    """Read a change from its JSON. Fields that are not given have the values of ``ORDINARY``."""
    given = {**inputs.ORDINARY, **change}

    def image(value: Any) -> Any:
        return value if table.row is None or value is None else read_values(table.row, value)

    return Change(
        event_id=given["event_id"],
        operation=Operation(given["operation"]),
        source=table.source,
        table=table.table,
        key=None if given["key"] is None else read_values(table.key, given["key"]),
        old=image(given["old"]),
        new=image(given["new"]),
        images=Images(given["images"]),
        token=None if given["token"] is None else EventToken.from_json(orjson.dumps(given["token"])),
        committed_at=given["committed_at"],
        relayed_at=given["relayed_at"],
        resume_timestamp=given["resume_timestamp"],
        snapshot=None if given["snapshot"] is None else Snapshot(**given["snapshot"]),
        transaction=None if given["transaction"] is None else Transaction(**given["transaction"]),
        keyspace_id=None if given["keyspace_id"] is None else bytes.fromhex(given["keyspace_id"]),
        attributes=given["attributes"],
    )


def shown(value: Any) -> Any:
    """Return a decoded value as JSON, in the form of the inputs."""
    if isinstance(value, Mapping):
        return {name: shown(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shown(part) for part in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return value


def framed(given: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Encode a case's change. Return the value and its schema."""
    table = read_table(given["table"])
    schema = change_schema(table)
    number = given.get("schema_id")
    header = single_object_header(fingerprint(schema)) if number is None else confluent_header(number)
    return ChangeEncoder(schema, header).encode(read_change(table, given["change"])), schema


def values() -> Case:
    schemas: dict[str, Any] = {}
    cases = []
    for name, given in inputs.VALUES.items():
        value, schema = framed(given)
        header, body = split(value)
        schemas[header.hex()] = schema
        decoded = fastavro.schemaless_reader(BytesIO(body), fastavro.parse_schema(schema), None)
        cases.append({"name": name, "input": given, "bytes": value.hex(), "decoded": shown(decoded)})
    return {"schemas": schemas, "cases": cases}


def keys() -> Case:
    cases = []
    for name, given in inputs.KEYS.items():
        table = read_table({"source": "shop", "table": "orders", **given["table"]})
        codec = KeyCodec(table, given["mode"])
        key = read_values(table.key, given["key"])
        hashed = codec.hash_bytes(key)
        decoded = {"hash_bytes": hashed.hex(), f"partition_of_{PARTITIONS}": partition(hashed, PARTITIONS)}
        cases.append({"name": name, "input": given, "bytes": codec.kafka_key(key).hex(), "decoded": decoded})
    return {"cases": cases}


def partitions() -> Case:
    cases = []
    for name, given in inputs.PARTITIONS.items():
        raw = bytes.fromhex(given["hex"]) if "hex" in given else given["text"].encode()
        decoded = {"murmur2": murmur2(raw), **{f"partition_of_{n}": partition(raw, n) for n in (1, PARTITIONS, 64)}}
        cases.append({"name": name, "input": given, "bytes": raw.hex(), "decoded": decoded})
    return {"cases": cases}


def tokens() -> Case:
    cases = []
    for name, given in inputs.TOKENS.items():
        text = EventToken.from_json(orjson.dumps(given)).to_json()
        cases.append({"name": name, "input": given, "bytes": text.encode().hex(), "decoded": json.loads(text)})
    return {"cases": cases}


def event_ids() -> Case:
    cases = []
    for name, given in inputs.EVENT_IDS.items():
        text = event_id(given["shard"], given["position"], given["table"], bytes.fromhex(given["key"]), given["n"])
        cases.append({"name": name, "input": given, "bytes": text.encode().hex(), "decoded": text})
    return {"cases": cases}


def checkpoints() -> Case:
    stream = StreamId(**records.STREAM)
    cases = [
        *(
            _stored(name, given, stream.shard_key(records.SHARD), ShardCheckpoint)
            for name, given in records.SHARDS.items()
        ),
        *(_stored(name, given, stream.plan_key, Plan) for name, given in records.PLANS.items()),
        *(_stored(name, given, stream.snapshot_key, SnapshotControl) for name, given in records.SNAPSHOTS.items()),
        *(
            _stored(name, given, stream.segment_key(records.SEGMENT), SegmentCheckpoint)
            for name, given in records.SEGMENTS.items()
        ),
    ]
    for name, given in records.PENDING_GAPS.items():
        gap = Gap(**records.GAPS[given["gap"]])
        decision = Decision(given["decision"]) if given["decision"] else None
        pending = PendingGap(gap, decision, given["updated_at"])
        cases.append(_record(name, given, pending.key, pending.to_json()))
    cases += [_stored(name, given, stream.listing_key, ShardListing) for name, given in records.LISTINGS.items()]
    cases += [_stored(name, given, OWNER_KEYS[0], PartitionOwner) for name, given in records.OWNERS.items()]
    key = partitions_key("shop", "shop.orders")
    cases += [_stored(name, given, key, RequestedPartitions) for name, given in records.PARTITIONS.items()]
    return {"stream": records.STREAM, "shard": records.SHARD, "segment": records.SEGMENT, "cases": cases}


def snapshot_requests() -> Case:
    cases = []
    for name, given in records.SNAPSHOT_REQUESTS.items():
        key = request_key(given["source"], given["id"])
        cases.append(_stored(name, given, key, SnapshotRequest))
    return {"cases": cases}


def _stored(name: str, given: Mapping[str, Any], key: bytes, kind: type[StoredRecord]) -> Case:
    return _record(name, given, key, kind.from_json(orjson.dumps(given)).to_json())


def gaps() -> Case:
    cases = []
    for name, given in records.GAPS.items():
        text = Gap(**given).to_json()
        cases.append({"name": name, "input": given, "bytes": text.hex(), "decoded": json.loads(text)})
    return {"cases": cases}


def statements() -> Case:
    cases = []
    for name, given in records.STATEMENTS.items():
        change = SchemaChange(
            event_id=event_id("shop/commerce/-80", "0-1-57", "", b"statement", 0),
            source="shop",
            database="commerce",
            token=EventToken(1700000000, "shop/commerce/-80", "MariaDB/0-1-57"),
            transaction="0-1-57",
            committed_at=1_700_000_000_000_000,
            **{**given, "text": StatementText(given["text"]), "tables": tuple(map(_altered, given["tables"]))},
        )
        value, key, headers = statement_record(change, 1_699_999_995, 1_700_000_001_500_000, "shop.ddl", math.inf)
        shown = {name: text.decode() for name, text in headers if isinstance(text, bytes)}
        cases.append({**_record(name, given, key, value), "headers": shown})
    return {"cases": cases}


def _altered(given: Mapping[str, Any]) -> AlteredTable:
    sides = {side: _columns(given[side]) if side in given else None for side in ("before", "after")}
    return AlteredTable(**{"before_by": None, "after_by": None, **given, **sides})


def _columns(given: Mapping[str, Any]) -> TableColumns:
    columns = tuple(Column(*column) for column in given["columns"])
    protected = tuple((column, kind) for column, kind in given.get("protected", ()))
    return TableColumns(columns, tuple(given["primary"]), protected)


def dead_letters() -> Case:
    """Cases with the complete value in ``bytes``, and in ``decoded`` its records, with bytes in hexadecimal."""
    cases = []
    for name, given in records.DEAD_LETTERS.items():
        table = read_table(given["table"])
        change = read_change(table, given["change"])
        item_key = KeyCodec(table, "item").kafka_key(change.key or {})
        if given["encoding"] == "avro":
            whole, _ = framed(given)
        else:
            whole = change_json(replace(change, new=Uncarriable(json.loads(str(change.new)), "")), item_key)
        headers: Headers = [("event_id", change.event_id.encode())]
        if change.token is not None:
            headers.append(("token", change.token.to_json_bytes()))
        kept = _Kept()
        DeadLetterWriter("shop.dead_letters", given["largest"]).send(
            kept,
            change,
            whole,
            RecordPlace("shop.orders", 3, b"o-1", headers),
            item_key=item_key,
            **{part: given[part] for part in ("reason", "detail", "encoding")},
        )
        cases.append({"name": name, "input": given, "bytes": whole.hex(), "decoded": kept.records})
    return {"cases": cases}


class _Kept:
    """Collects the records of a dead letter, in the form of the golden file."""

    def __init__(self) -> None:
        self.records: list[Case] = []

    def send(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Headers) -> None:
        shown_headers = {name: text.decode() if isinstance(text, bytes) else text for name, text in headers}
        self.records.append(
            {"topic": topic, "partition": partition, "key": key.decode(), "headers": shown_headers}
            | {"bytes": (value or b"").hex()}
        )


def _record(name: str, given: Mapping[str, Any], key: bytes, value: bytes) -> Case:
    decoded = json.loads(value)
    return {"name": name, "input": given, "key": key.hex(), "bytes": value.hex(), "decoded": decoded}


FILES = {
    "values.json": values,
    "keys.json": keys,
    "partitions.json": partitions,
    "tokens.json": tokens,
    "event_ids.json": event_ids,
    "checkpoints.json": checkpoints,
    "gaps.json": gaps,
    "dead_letters.json": dead_letters,
    "snapshot_requests.json": snapshot_requests,
    "statements.json": statements,
}


def text(content: Case) -> str:
    """Return the text of a golden file, one line for each part of a case, so differences are easy to read."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = [f"{line(name)}: {line(value)}" for name, value in content.items() if name not in ("schemas", "cases")]
    if "schemas" in content:
        schemas = ",\n  ".join(f"{line(header)}: {line(schema)}" for header, schema in content["schemas"].items())
        parts.append(f'"schemas": {{\n  {schemas}\n }}')
    cases = ",\n  ".join(
        "{" + ",\n   ".join(f"{line(name)}: {line(value)}" for name, value in case.items()) + "}"
        for case in content["cases"]
    )
    parts.append(f'"cases": [\n  {cases}\n ]')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def main() -> None:
    for name, make in FILES.items():
        (FOLDER / name).write_text(text(make()), encoding="utf-8")


if __name__ == "__main__":
    main()

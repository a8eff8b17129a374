"""Decodes Kafka values to changes on the JVM, with one ``from_avro`` for each writer schema.

Spark decodes any bytes with any schema and reports nothing: it returns rows of zeros. So a value only goes to the
decoder of the schema that its header names, and the result only counts if the decoder stopped exactly at the end of the
value.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, StructField, StructType

from relay.avro.framing import CONFLUENT_HEADER, CONFLUENT_MARK, SINGLE_OBJECT_HEADER, SINGLE_OBJECT_MARK
from spark_consumers.records import DecodeStatus, Layout, RecordField
from spark_consumers.times import iso_utc
from spark_consumers.typed_columns import TypedTable, unpadded

_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
_KEEP_NULLS = {"ignoreNullFields": "false"}
_END = "relay_end"


class Decoder:
    """Decodes with a fixed set of schemas.

    ``schemas``: by header. ``registry``: whether values may have the framing of a schema registry. ``gaps``: the gaps
    topic, whose records are not changes. ``given_up``: headers whose schemas are no longer waited for.
    """

    def __init__(
        self, schemas: Mapping[bytes, Mapping[str, Any]], *, registry: bool, gaps: str, given_up: Sequence[bytes] = ()
    ) -> None:
        self.schemas = dict(sorted(schemas.items()))
        self.layouts = [Layout.of(schema) for schema in self.schemas.values()]
        self.registry = registry
        self.gaps = gaps
        self.given_up = [header for header in given_up if header not in schemas]
        # Appended to each value before it is decoded. Random, so that no value can contain it on purpose.
        self._end = secrets.token_bytes(8)

    def changes(self, records: DataFrame, *, typed: str | None = None) -> DataFrame:
        """Return status, topic, partition, offset, value (null for changes) and all columns of a change.

        ``key``, ``old`` and ``new`` are JSON; if all schemas are of the one table ``typed``, structs (`TypedTable`).
        """
        decoded = self._decoded(records)
        table = None if typed is None else TypedTable.of(typed, self._versions(decoded))
        types = {} if table is None else {"key": table.key, "old": table.row, "new": table.row}
        columns = [StructField(name, types.get(name) or DataType.fromDDL(kind)) for name, kind in _COLUMNS.items()]
        change = self._by_schema(
            [_change(F.col(f"d{n}"), n, layout, table) for n, layout in enumerate(self.layouts)], StructType(columns)
        )
        records = decoded.select("status", "topic", "partition", "offset", "value", change.alias("c"))
        return records.select(
            "status",
            "topic",
            "partition",
            "offset",
            F.when(F.col("status") != DecodeStatus.CHANGE, _kept_value()).alias("value"),
            *(F.col(f"c.{name}").alias(name) for name in _COLUMNS),
        )

    def _versions(self, decoded: DataFrame) -> list[tuple[Layout, StructType]]:
        found = []
        for number, layout in enumerate(self.layouts):
            kind = decoded.schema[f"d{number}"].dataType
            assert isinstance(kind, StructType)
            found.append((layout, kind))
        return found

    def _decoded(self, records: DataFrame) -> DataFrame:
        """Add the header, a column d0, d1, ... for each schema, null for values of other schemas, and the status."""
        value = F.col("value")
        framed = records.withColumn("header", self._header(value))
        columns = []
        for number, (header, schema) in enumerate(self.schemas.items()):
            body = F.substring(value, len(header) + 1, 0x7FFFFFFF)
            # Null for values of other schemas, so however the optimiser moves this, no decoder sees their bytes.
            own = F.when(F.col("header") == F.lit(header), F.concat(body, F.lit(self._end)))
            columns.append(from_avro(own, _dumps(_with_end(schema)), _OPTIONS).alias(f"d{number}"))
        decoded = framed.select("*", *columns)
        return decoded.withColumn("status", self._status())

    def _header(self, value: Column) -> Column:
        length = F.octet_length(value)
        header = F.when(
            (F.substring(value, 1, 2) == F.lit(SINGLE_OBJECT_MARK)) & (length >= SINGLE_OBJECT_HEADER),
            F.substring(value, 1, SINGLE_OBJECT_HEADER),
        )
        if self.registry:
            header = header.when(
                (F.substring(value, 1, 1) == F.lit(CONFLUENT_MARK)) & (length >= CONFLUENT_HEADER),
                F.substring(value, 1, CONFLUENT_HEADER),
            )
        return header

    def _status(self) -> Column:
        # A decoder that fails returns a row of nulls; one that misreads its bytes stops before or after their end.
        is_complete = [
            (F.col(f"d{n}.{_END}") == F.lit(self._end)) & (F.col(f"d{n}.event_id") != "")
            for n in range(len(self.layouts))
        ]
        return (
            F.when(F.col("topic") == self.gaps, DecodeStatus.GAP)
            .when(F.col("value").isNull(), DecodeStatus.TOMBSTONE)
            .when(F.col("header").isNull(), DecodeStatus.FRAMING)
            .when(F.col("header").isin(*self.given_up), DecodeStatus.FOREIGN)
            .when(~F.col("header").isin(*self.schemas), DecodeStatus.SCHEMA)
            .when(F.coalesce(self._by_schema(is_complete, "boolean"), F.lit(False)), DecodeStatus.CHANGE)
            .otherwise(DecodeStatus.DAMAGED)
        )

    def _by_schema(self, branches: Sequence[Column], kind: str | DataType) -> Column:
        """Return the branch of the schema that the header names; without one, null of type ``kind``."""
        chosen = F.lit(None).cast(kind)
        for header, branch in zip(self.schemas, branches, strict=True):
            chosen = F.when(F.col("header") == F.lit(header), branch).otherwise(chosen)
        return chosen


def _kept_value() -> Column:
    """Return the value of a record that is not a change; with an unknown schema, which many may have, its header."""
    value = F.col("value")
    return F.when(F.col("status") == DecodeStatus.SCHEMA, F.substring(value, 1, SINGLE_OBJECT_HEADER)).otherwise(value)


def _with_end(schema: Mapping[str, Any]) -> dict[str, Any]:
    end = {"name": _END, "type": {"type": "fixed", "name": "relay.End", "size": 8}}
    return {**schema, "fields": [*schema["fields"], end]}


def _change(d: Column, number: int, layout: Layout, typed: TypedTable | None) -> Column:
    """Return the columns ``_COLUMNS`` of a decoded change, with the same types for every schema."""
    token, snapshot, transaction = d["token"], d["snapshot"], d["transaction"]
    columns = {
        "layout": F.lit(number),
        "event_id": d["event_id"],
        "operation": d["operation"],
        "source": d["source"],
        "table": d["table"],
        "key": typed.of_key(d["key"], layout) if typed else _key_json(d["key"], layout.key),
        "key_texts": F.when(d["key"].isNotNull(), F.array(*(_key_text(d["key"], field) for field in layout.key))),
        "old": typed.of_image(d["old"], layout) if typed else _image(d["old"], layout),
        "new": typed.of_image(d["new"], layout) if typed else _image(d["new"], layout),
        "images": d["images"],
        "token": F.to_json(token, _KEEP_NULLS),
        "token_timestamp": token["timestamp"],
        "token_shard": token["shard"],
        "token_position": token["position"],
        "snapshot_id": snapshot["id"],
        "snapshot_as_of": snapshot["as_of"],
        "transaction_id": transaction["id"],
        "transaction_order": transaction["order"],
        "transaction_last": transaction["last"],
        "keyspace_id": d["keyspace_id"],
        "resume_timestamp": d["resume_timestamp"],
        "committed_at": d["committed_at"],
        "relayed_at": d["relayed_at"],
        "attributes": d["attributes"],
    }
    return F.struct(*(columns[name].alias(name) for name in _COLUMNS))


_COLUMNS = {
    "layout": "int",
    "event_id": "string",
    "operation": "string",
    "source": "string",
    "table": "string",
    "key": "string",
    "key_texts": "array<string>",
    "old": "string",
    "new": "string",
    "images": "string",
    "token": "string",
    "token_timestamp": "bigint",
    "token_shard": "string",
    "token_position": "string",
    "snapshot_id": "string",
    "snapshot_as_of": "bigint",
    "transaction_id": "string",
    "transaction_order": "int",
    "transaction_last": "boolean",
    "keyspace_id": "binary",
    "resume_timestamp": "bigint",
    "committed_at": "timestamp",
    "relayed_at": "timestamp",
    "attributes": "map<string,string>",
}


def _image(image: Column, layout: Layout) -> Column:
    return image if layout.row is None else _json(image, layout.row)


def _json(record: Column, fields: Sequence[RecordField]) -> Column:
    """Return a record as JSON with the source's names; null for null."""
    return _object(record, {field.name: _json_value(record[field.avro], field.type) for field in fields})


def _key_json(record: Column, fields: Sequence[RecordField]) -> Column:
    """Return a key as JSON: the same text for the same row, whatever its columns' types were."""
    values = {field.name: _json_value(record[field.avro], field.type) for field in fields}
    return _object(record, values | {field.name: _key_text(record, field) for field in fields if field.is_padded})


def _object(record: Column, values: Mapping[str, Column]) -> Column:
    named = [value.alias(name) for name, value in values.items()]
    return F.when(record.isNotNull(), F.to_json(F.struct(*named), _KEEP_NULLS))


def _json_value(value: Column, kind: Any) -> Column:
    """Return a value in a form that JSON holds exactly: binary as base64, decimals and times as text."""
    return _text(value, kind) if kind == "bytes" or _logical(kind) else value


def _key_text(record: Column, field: RecordField) -> Column:
    text = _text(record[field.avro], field.type)
    return unpadded(text) if field.is_padded else text


def _text(value: Column, kind: Any) -> Column:
    if kind == "bytes":
        # I8: by default Spark breaks base64 into lines, and a long key would not have the text of other readers.
        return F.translate(F.base64(value), "\r\n", "")
    if _logical(kind) == "timestamp-micros":
        return iso_utc(value)
    if isinstance(kind, dict) and kind.get("type") == "array":
        return F.to_json(value)
    # I8: without ANSI mode a cast writes a DECIMAL of 0.0000000001 as 1E-10, so its text would depend on the session.
    return value.try_cast("string")


def _logical(kind: Any) -> str | None:
    return kind.get("logicalType") if isinstance(kind, dict) else None


def _dumps(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)

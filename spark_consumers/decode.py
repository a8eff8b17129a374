"""Kafka values to changes, on the JVM: one ``from_avro`` for each writer schema.

Spark decodes any bytes with any schema and reports nothing: rows of zeros come out. So a value is given to the
decoder of the schema its header names and to no other, and what comes out counts only if the decoder stopped
exactly where the value ends. May be changed here: what the columns of a change are called and how values become
text, which the README of the consumers shows.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StringType, StructField, StructType

from relay.avro.framing import CONFLUENT_HEADER, CONFLUENT_MARK, SINGLE_OBJECT_HEADER, SINGLE_OBJECT_MARK
from relay.avro.schema import source_name, unescape
from relay.table import REST

_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
_KEEP_NULLS = {"ignoreNullFields": "false"}
_ISO_UTC = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"  # the session's time zone is UTC
_END = "relay_end"
BROKEN = "_broken"
"""The column, in an image that is not JSON, that holds it."""


class DecodeStatus(StrEnum):
    """What became of a record. All but CHANGE and TOMBSTONE are told apart by the driver."""

    CHANGE = "change"
    TOMBSTONE = "tombstone"  # null: Kafka's own deletion marker, which says nothing new
    GAP = "gap"  # a record of the relay's gaps topic
    FRAMING = "framing"  # begins like nothing that is known: dead letter
    SCHEMA = "schema"  # names a schema that is not known yet: try again
    DAMAGED = "damaged"  # is not what its schema says: dead letter


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a key or row record: its name in Avro, its name at the source, its Avro type and column type.

    ``column``: None for DynamoDB's key columns.
    """

    avro: str
    name: str
    type: Any
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What one writer schema says about its table. ``row`` None: images are DynamoDB-typed JSON."""

    source: str
    table: str
    key: tuple[Field, ...]
    row: tuple[Field, ...] | None

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Layout:
        types = {field["name"]: field["type"] for field in schema["fields"]}
        key, row = types["key"][1], types["old"][1]
        _, source, table = key["namespace"].split(".")
        return cls(unescape(source), unescape(table), _fields(key), None if row == "string" else _fields(row))

    @property
    def binary_key(self) -> tuple[bool, ...]:
        """Which key columns hold bytes, whose text is base64."""
        return tuple(field.type == "bytes" for field in self.key)

    @property
    def rest(self) -> Field | None:
        """The field of a typed DynamoDB row that holds, as JSON, the attributes that are in no column."""
        return next((field for field in self.row or () if field.column == REST), None)


def _fields(record: Mapping[str, Any]) -> tuple[Field, ...]:
    def bare(kind: Any) -> Any:
        return next(each for each in kind if each != "null") if isinstance(kind, list) else kind

    return tuple(Field(f["name"], source_name(f), bare(f["type"]), f.get("relay.type")) for f in record["fields"])


class Decoder:
    """Decodes under the schemas known when it was made.

    ``schemas``: by header. ``registry``: whether values may be framed for a schema registry. ``gaps``: the topic
    whose records are no changes.
    """

    def __init__(self, schemas: Mapping[bytes, Mapping[str, Any]], *, registry: bool, gaps: str) -> None:
        self.schemas = dict(sorted(schemas.items()))
        self.layouts = [Layout.of(schema) for schema in self.schemas.values()]
        self._registry = registry
        self._gaps = gaps
        # Follows each value into its decoder. Random, so that no value holds it by design.
        self._end = secrets.token_bytes(8)

    def changes(self, records: DataFrame) -> DataFrame:
        """Return status, topic, partition, offset, value (of what is no change) and all columns of a change."""
        kept = tuple(field["name"] for field in next(iter(self.schemas.values()))["fields"]) if self.schemas else ()
        decoded = self._decoded(records, kept)
        change = self._by_schema(
            [_change(F.col(f"d{n}"), n, layout) for n, layout in enumerate(self.layouts)],
            f"struct<{','.join(f'`{name}`:{kind}' for name, kind in _COLUMNS.items())}>",
        )
        whole = decoded.select("status", "topic", "partition", "offset", "value", change.alias("c"))
        return whole.select(
            "status",
            "topic",
            "partition",
            "offset",
            F.when(F.col("status") != DecodeStatus.CHANGE, _shown()).alias("value"),
            *(F.col(f"c.{name}").alias(name) for name in _COLUMNS),
        )

    def touched(self, records: DataFrame, columns: Mapping[str, Sequence[str]]) -> DataFrame:
        """Return one column ``doc``: JSON with what invalidating a cache needs to know of each record.

        ``columns``: by table, those columns of the images that cache keys are made of. A document holds ``i``, the
        number of the layout, ``op``, ``key`` as texts, ``old`` and ``new`` with those columns, and the token.
        Of what is no change it holds status, topic, partition, offset and value.
        """
        kept = ["event_id", "operation", "key", "token"]
        if any(columns.get(layout.table) for layout in self.layouts):
            kept += ["old", "new"]
        decoded = self._decoded(records, kept)
        change = self._by_schema(
            [
                _touched(F.col(f"d{n}"), n, layout, columns.get(layout.table, ()))
                for n, layout in enumerate(self.layouts)
            ],
            _TOUCHED,
        )
        is_change = F.col("status") == DecodeStatus.CHANGE
        place = F.when(~is_change, F.struct("status", "topic", "partition", "offset", _shown().alias("value")))
        return decoded.select(F.to_json(F.struct(F.when(is_change, change).alias("c"), place.alias("x"))).alias("doc"))

    def _decoded(self, records: DataFrame, kept: Sequence[str]) -> DataFrame:
        """Add the header, a column d0, d1, ... for each schema, null where a value is not of it, and the status."""
        value = F.col("value")
        framed = records.withColumn("header", self._header(value))
        columns = []
        for number, (header, schema) in enumerate(self.schemas.items()):
            body = F.substring(value, len(header) + 1, 0x7FFFFFFF)
            # Only its own bytes: whatever else the optimiser makes of this, others are null to this decoder.
            mine = F.when(F.col("header") == F.lit(header), F.concat(body, F.lit(self._end)))
            columns.append(from_avro(mine, _dumps(_with_end(schema)), self._options(schema, kept)).alias(f"d{number}"))
        decoded = framed.select("*", *columns)
        return decoded.withColumn("status", self._status())

    def _options(self, schema: Mapping[str, Any], kept: Sequence[str]) -> dict[str, str]:
        wanted = {**schema, "fields": [field for field in schema["fields"] if field["name"] in kept]}
        return {**_OPTIONS, "avroSchema": _dumps(_with_end(wanted))}

    def _header(self, value: Column) -> Column:
        length = F.octet_length(value)
        header = F.when(
            (F.substring(value, 1, 2) == F.lit(SINGLE_OBJECT_MARK)) & (length >= SINGLE_OBJECT_HEADER),
            F.substring(value, 1, SINGLE_OBJECT_HEADER),
        )
        if self._registry:
            header = header.when(
                (F.substring(value, 1, 1) == F.lit(CONFLUENT_MARK)) & (length >= CONFLUENT_HEADER),
                F.substring(value, 1, CONFLUENT_HEADER),
            )
        return header

    def _status(self) -> Column:
        # A decoder that fails gives a row of nulls, and one that was misled stops somewhere else.
        whole = [
            (F.col(f"d{n}.{_END}") == F.lit(self._end)) & (F.col(f"d{n}.event_id") != "")
            for n in range(len(self.layouts))
        ]
        return (
            F.when(F.col("topic") == self._gaps, DecodeStatus.GAP)
            .when(F.col("value").isNull(), DecodeStatus.TOMBSTONE)
            .when(F.col("header").isNull(), DecodeStatus.FRAMING)
            .when(~F.col("header").isin(*self.schemas) if self.schemas else F.lit(True), DecodeStatus.SCHEMA)
            .when(F.coalesce(self._by_schema(whole, "boolean"), F.lit(False)), DecodeStatus.CHANGE)
            .otherwise(DecodeStatus.DAMAGED)
        )

    def _by_schema(self, branches: Sequence[Column], kind: str) -> Column:
        """Return the branch of the schema that the header names; null, of the type ``kind``, for none."""
        chosen = F.lit(None).cast(kind)
        for header, branch in zip(self.schemas, branches, strict=True):
            chosen = F.when(F.col("header") == F.lit(header), branch).otherwise(chosen)
        return chosen


def _shown() -> Column:
    """Return what is kept of the value of a record that is no change: of many with unknown schemas their headers."""
    value = F.col("value")
    return F.when(F.col("status") == DecodeStatus.SCHEMA, F.substring(value, 1, SINGLE_OBJECT_HEADER)).otherwise(value)


def _with_end(schema: Mapping[str, Any]) -> dict[str, Any]:
    end = {"name": _END, "type": {"type": "fixed", "name": "relay.End", "size": 8}}
    return {**schema, "fields": [*schema["fields"], end]}


def _change(d: Column, number: int, layout: Layout) -> Column:
    """Give the columns of ``_COLUMNS`` of a decoded change, of the same types for every schema."""
    token, snapshot, transaction = d["token"], d["snapshot"], d["transaction"]
    columns = {
        "layout": F.lit(number),
        "event_id": d["event_id"],
        "operation": d["operation"],
        "source": d["source"],
        "table": d["table"],
        "key": _json(d["key"], layout.key),
        "key_texts": F.when(d["key"].isNotNull(), F.array(*_texts(d["key"], layout.key))),
        "old": _image(d["old"], layout),
        "new": _image(d["new"], layout),
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


_PLACE = "struct<`timestamp`:bigint,shard:string,position:string%s>"
_TOUCHED = (
    f"struct<i:int,op:string,key:array<string>,old:string,new:string,token:{_PLACE % (',origin:' + _PLACE % '')}>"
)


def _touched(d: Column, number: int, layout: Layout, columns: Sequence[str]) -> Column:
    return F.struct(
        F.lit(number).alias("i"),
        d["operation"].alias("op"),
        F.when(d["key"].isNotNull(), F.array(*_texts(d["key"], layout.key))).alias("key"),
        _part(d["old"] if columns else None, layout, columns).alias("old"),
        _part(d["new"] if columns else None, layout, columns).alias("new"),
        d["token"].alias("token"),
    )


def _part(image: Column | None, layout: Layout, columns: Sequence[str]) -> Column:
    """Give some columns of an image as one JSON text: of DynamoDB's as it types them, of typed rows as text.

    Of typed DynamoDB rows, `REST` holds those that are in no column, as it types them.
    """
    if image is None:
        return F.lit(None).cast("string")
    if layout.row is None:
        # The image itself may be of megabytes, and all of a batch meet on the driver.
        return F.to_json(_of_item(image, columns))
    rest = layout.rest
    fields = [field for field in layout.row if field.name in columns and field is not rest]
    parts = [text.alias(field.name) for text, field in zip(_texts(image, fields), fields, strict=True)]
    if rest is not None:
        # I6: a column that is not declared, or that could not hold the value, is in there.
        parts.append(_of_item(image[rest.avro], columns).alias(rest.name))
    return F.when(image.isNotNull(), F.to_json(F.struct(*parts)) if parts else F.lit("{}"))


def _of_item(item: Column, columns: Sequence[str]) -> Column:
    """Give some attributes of an item in DynamoDB's JSON, each still as JSON."""
    wanted = StructType([StructField(name, StringType()) for name in (*columns, BROKEN)])
    return F.from_json(item, wanted, {"columnNameOfCorruptRecord": BROKEN})


def _image(image: Column, layout: Layout) -> Column:
    return image if layout.row is None else _json(image, layout.row)


def _json(record: Column, fields: Sequence[Field]) -> Column:
    """Give a record as JSON under the names of the source; null for null."""
    values = [_json_value(record[field.avro], field.type).alias(field.name) for field in fields]
    return F.when(record.isNotNull(), F.to_json(F.struct(*values), _KEEP_NULLS))


def _json_value(value: Column, kind: Any) -> Column:
    """Give a value as JSON can hold it exactly: binary in base64, decimals and times as text."""
    return _text(value, kind) if kind == "bytes" or _logical(kind) else value


def _texts(record: Column, fields: Sequence[Field]) -> list[Column]:
    return [_text(record[field.avro], field.type) for field in fields]


def _text(value: Column, kind: Any) -> Column:
    if kind == "bytes":
        return F.base64(value)
    if _logical(kind) == "timestamp-micros":
        return F.date_format(value, _ISO_UTC)
    if isinstance(kind, dict) and kind.get("type") == "array":
        return F.to_json(value)
    return value.cast("string")


def _logical(kind: Any) -> str | None:
    return kind.get("logicalType") if isinstance(kind, dict) else None


def _dumps(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)

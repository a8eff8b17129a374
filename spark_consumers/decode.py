"""Decodes Kafka values to changes on the JVM, whatever their schemas, by the Java class `ChangeReader`.

A query with 200 of Spark's ``from_avro``, which has one schema for a column, took 40 s of CPU to be planned.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, StringType, StructField, StructType

from relay.avro.framing import SINGLE_OBJECT_HEADER
from relay.config import Config
from relay.errors import ConfigError
from relay.types.columns import MAX_AVRO_PRECISION
from spark_consumers.java_classes import new_instance
from spark_consumers.records import DecodeStatus, Layout, RecordField
from spark_consumers.sinks.columns import merged
from spark_consumers.sinks.delta import sql_type
from spark_consumers.spark_internals import applied, java_type, let_java_call

_PADDING = r"\.0*$|(\.\d*[1-9])0+$"


def _types(table: str, versions: Sequence[tuple[Layout, StructType]]) -> tuple[StructType, StructType | StringType]:
    """Return the types of a table's key and rows, for all values of all ``versions`` (layout, decoded type) (I8).

    Rows are text for DynamoDB items without ``columns:``. Raises ``ConfigError`` if no types can hold them all.
    """
    keys = [(layout.key, _struct(decoded, "key")) for layout, decoded in versions]
    rows = [(layout.row, _struct(decoded, "old")) for layout, decoded in versions if layout.row is not None]
    if rows and len(rows) < len(versions):
        raise ConfigError(
            f"table {table}: some of its changes have typed columns and others do not: omit `table` to read the "
            "changes as JSON"
        )
    return _union(table, keys), _union(table, rows) if rows else StringType()


def _struct(decoded: StructType, part: str) -> StructType:
    found = decoded[part].dataType
    assert isinstance(found, StructType)
    return found


def _union(table: str, versions: Iterable[tuple[Sequence[RecordField], StructType]]) -> StructType:
    found: defaultdict[str, list[tuple[str, DataType]]] = defaultdict(list)
    for fields, decoded in versions:
        for each in fields:
            found[each.name].append((each.kind, decoded[each.avro].dataType))
    return StructType([StructField(name, _type(table, name, of_column)) for name, of_column in found.items()])


def _type(table: str, column: str, versions: Sequence[tuple[str, DataType]]) -> DataType:
    kind, decoded = versions[0]
    if all(other == decoded for _, other in versions):
        return decoded
    for other, _ in versions:
        wider = merged(kind, other, MAX_AVRO_PRECISION)
        if wider is None:
            had = " and ".join(dict.fromkeys(kind for kind, _ in versions))
            raise ConfigError(
                f"table {table}: column {column} has had the types {had}, and no single type holds the values of all "
                "of them exactly: omit `table` to read the changes as JSON"
            )
        kind = wider
    return DataType.fromDDL(sql_type(kind))


def _cast(record: Column, fields: Sequence[RecordField], wanted: StructType, *, in_key: bool = False) -> Column:
    """Return a record under the source's column names; columns that its version of the table lacks are null.

    Texts of numbers and times in a key have no trailing zeros. I7: a key stays as its column gets more decimals.
    """
    found = {each.name: record[each.avro] for each in fields}
    for each in fields if in_key else ():
        if each.is_padded and each.type == "string":
            found[each.name] = F.regexp_replace(found[each.name], _PADDING, "$1")
    values = [found.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in wanted]
    return F.when(record.isNotNull(), F.struct(*values))


Schemas = Mapping[bytes, Mapping[str, Any]]  # by the header of their values
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
# The columns that the Java class returns, in order. Times are in microseconds.
_READ = (
    "status string, layout int, event_id string, operation string, source string, `table` string, key string, "
    "key_texts array<string>, old string, new string, images string, token string, token_timestamp long, "
    "token_shard string, token_position string, snapshot_id string, snapshot_as_of long, transaction_id string, "
    "transaction_order int, transaction_last boolean, keyspace_id binary, resume_timestamp long, committed_at long, "
    "relayed_at long, attributes map<string, string>"
)


class Decoder:
    """Decodes with ``schemas``, and with the schemas that ``look`` returns before each batch.

    ``registry``: whether values may have the framing of a schema registry. ``gaps``: the gaps topic, whose records are
    not changes. ``given_up``: headers whose schemas are no longer waited for.
    """

    def __init__(
        self,
        schemas: Schemas,
        *,
        registry: bool,
        gaps: str,
        given_up: Sequence[bytes] = (),
        look: Callable[[], Schemas] | None = None,
    ) -> None:
        self.schemas = dict(sorted(schemas.items()))
        self.layouts = [Layout.of(schema) for schema in self.schemas.values()]
        self.registry = registry
        self.gaps = gaps
        self.given_up = [header for header in given_up if header not in schemas]
        self.look = look

    @classmethod
    def of(
        cls, config: Config, schemas: Schemas, given_up: Sequence[bytes] = (), look: Callable[[], Schemas] | None = None
    ) -> Self:
        """Return a decoder of the topics of ``config``."""
        has_registry, gaps = config.schema_registry is not None, config.internal("gaps")
        return cls(schemas, registry=has_registry, gaps=gaps, given_up=given_up, look=look)

    def lookup(self, header: bytes) -> Mapping[str, Any] | None:
        return self.schemas.get(header)

    def changes(self, records: DataFrame, *, typed: str | None = None, in_full: bool = False) -> DataFrame:
        """Return status, topic, partition, offset, value (null for changes) and all columns of a change.

        If a record's schema is unknown, as many may be, ``value`` is only the header unless ``in_full``. ``key``,
        ``old`` and ``new`` are JSON; of the table ``typed`` they are structs (`_types`), and null for all others.
        """
        struct = StructType.fromDDL(_READ)
        assert isinstance(struct, StructType)
        read = records.withColumn("c", self._read_by(records.sparkSession, struct))
        is_gap = F.col("topic") == self.gaps
        read = read.withColumn("status", F.when(is_gap, DecodeStatus.GAP).otherwise(F.col("c.status")))
        columns = {name: F.col(f"c.{name}") for name in struct.names if name != "status"}
        columns |= {name: F.timestamp_micros(f"c.{name}") for name in ("committed_at", "relayed_at")}
        if typed is not None:
            read, structs = self._typed(read, typed)
            columns |= structs
        status, value = F.col("status"), F.col("value")
        if not in_full:
            header = F.substring(value, 1, SINGLE_OBJECT_HEADER)
            value = F.when(status == DecodeStatus.SCHEMA, header).otherwise(value)
        columns = {"value": F.when(status != DecodeStatus.CHANGE, value), **columns}
        aliased = (column.alias(name) for name, column in columns.items())
        return read.select("status", "topic", "partition", "offset", *aliased)

    def _read_by(self, session: SparkSession, struct: StructType) -> Column:
        """Return a ``struct`` for each value. Its layout is its position among the schemas."""
        context = session.sparkContext
        reader = new_instance(context, "ChangeReader", self.registry)
        for number, (header, schema) in enumerate(self.schemas.items()):
            reader.add(header, _dumps(schema), number)
        for header in self.given_up:
            reader.giveUp(header)
        if self.look is not None:
            let_java_call(context)
            reader.learnBy(_Learning(self.look, self.schemas))
        return applied(context, reader.into(java_type(context, struct)), F.col("value"))

    def _typed(self, read: DataFrame, table: str) -> tuple[DataFrame, dict[str, Column]]:
        """Add a column d0, d1, ... per schema of a table, null for others' values; return key and images from them."""
        layouts = {number: layout for number, layout in enumerate(self.layouts) if layout.table == table}
        is_change = F.col("status") == DecodeStatus.CHANGE
        is_later = is_change & (F.col("c.table") == table) & ~F.col("c.layout").isin(*layouts)
        read = read.withColumn("status", F.when(is_later, DecodeStatus.SCHEMA).otherwise(F.col("status")))  # I8
        columns = []
        for number, (header, schema) in enumerate(self.schemas.items()):
            if number not in layouts:
                continue
            # Null for all other values: Spark decodes any bytes with any schema, and reports nothing.
            is_own = (F.col("status") == DecodeStatus.CHANGE) & (F.col("c.layout") == number)
            body = F.when(is_own, F.substring("value", len(header) + 1, 0x7FFFFFFF))
            columns.append(from_avro(body, _dumps(schema), _OPTIONS).alias(f"d{number}"))
        decoded = read.select("*", *columns)
        kinds = [(layout, _struct(decoded.schema, f"d{number}")) for number, layout in layouts.items()]
        key, row = _types(table, kinds)
        found: dict[str, Column] = {}
        for name, kind in {"key": key, "old": row, "new": row}.items():
            chosen = F.lit(None).cast(kind)
            for number, layout in layouts.items():
                own, fields = F.col(f"d{number}")[name], layout.key if name == "key" else layout.row
                if fields is not None and isinstance(kind, StructType):
                    own = _cast(own, fields, kind, in_key=name == "key")
                chosen = F.when(F.col("c.layout") == number, own).otherwise(chosen)
            found[name] = chosen
        return decoded, found


class _Learning:
    """Adds later schemas to a reader in Spark's JVM, which calls this before it sends the reader to the executors.

    By then Spark has chosen the end of the batch, so the schemas of all its records are published. This object does not
    refer to the reader, which refers to it.
    """

    def __init__(self, look: Callable[[], Schemas], known: Iterable[bytes]) -> None:
        self._look = look
        self._known = set(known)

    def accept(self, reader: Any) -> None:
        found = self._look()
        for header in found.keys() - self._known:
            reader.addLater(header, _dumps(found[header]))
            self._known.add(header)

    class Java:
        implements = ("java.util.function.Consumer",)


def _dumps(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)

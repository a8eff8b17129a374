"""One table of the copy in Delta: its columns, reading the state of rows, and writing them conditionally.

Users query the columns, which the README of the consumers lists: add new ones at the end.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from relay.errors import RelayError
from relay.token import EventToken
from spark_consumers.fold import Place, StoredRow
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.sinks import delta
from spark_consumers.sinks.target import Item, Key, Write, is_same_change
from spark_consumers.sinks.tombstones import COLLECTED_AT

_COLUMNS = {
    "item": "STRING",
    "_relay_token": "STRING",
    "_relay_deleted": "BOOLEAN",
    "_relay_event_id": "STRING",
    "_relay_incomplete": "BOOLEAN",
    "_relay_updated_at": "TIMESTAMP",
    "_relay_read_as_of": "BIGINT",
    "_relay_partition": "INT",
    "_relay_topic": "STRING",
    "_relay_offset": "BIGINT",
}
_STATE = (
    "_relay_token",
    "_relay_deleted",
    "_relay_event_id",
    "_relay_incomplete",
    "_relay_read_as_of",
    "_relay_topic",
    "_relay_partition",
    "_relay_offset",
)
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")


class DeltaTable:
    """The copy of one table in Delta, below ``path``."""

    def __init__(self, path: str, source: str, table: str) -> None:
        self.name = delta.table(f"{path}/{source}/{table}")
        self._source_table = source, table
        self._is_created = False

    def prepare(self, batch: DataFrame, layouts: Mapping[int, Layout]) -> None:
        if self._is_created:
            return
        layout = next(iter(layouts.values()))
        self._binary = layout.binary_key
        # A key column with the name of one of ours gets a prefix.
        self.key_columns = [f"key_{field.name}" if field.name in _COLUMNS else field.name for field in layout.key]
        if len({name.lower() for name in self.key_columns}) < len(self.key_columns):
            raise RelayError(
                f"copy of {layout.source}/{layout.table}: Delta cannot store key columns that differ only in case "
                f"({', '.join(self.key_columns)}): rename one at the source"
            )
        self._create(batch.sparkSession)
        self._is_created = True

    # ------------------------------------------------------------------ reading

    def read(self, batch: DataFrame, keys: Collection[Key]) -> dict[Key, StoredRow]:
        session = batch.sparkSession
        wanted = session.createDataFrame(list(keys), self._key_schema())
        self._with_key_types(wanted).createOrReplaceTempView("relay_keys")
        columns = ", ".join(f"t.{delta.quoted(name)}" for name in (*self.key_columns, *_STATE))
        rows = session.sql(
            f"SELECT /*+ BROADCAST(s) */ {columns} FROM {self.name} t JOIN relay_keys s ON {self._same_key()}"
        ).collect()
        return dict(map(self._state, rows))

    def rows(
        self,
        batch: DataFrame,
        topic: str,
        partitions: Collection[int],
        *,
        of_other_topics: bool,
        read_before: int | None = None,
    ) -> Iterator[tuple[Key, StoredRow]]:
        columns = ", ".join(map(delta.quoted, (*self.key_columns, *_STATE)))
        is_topic = f"_relay_topic <=> {delta.literal(topic)}"
        where = f"({is_topic} AND _relay_partition IN ({', '.join(map(str, partitions))})"
        where += f" OR NOT {is_topic})" if of_other_topics else ")"
        if read_before is not None:
            where += f" AND _relay_read_as_of < {read_before}"
        rows = batch.sparkSession.sql(
            f"SELECT {columns} FROM {self.name} WHERE (NOT _relay_deleted OR _relay_incomplete) AND {where}"
        )
        return map(self._state, rows.toLocalIterator())

    def _state(self, row: Row) -> tuple[Key, StoredRow]:
        key = tuple(_text(row[name]) for name in self.key_columns)
        token = row["_relay_token"]
        return key, StoredRow(
            Item.AS_STORED,
            None if token is None else EventToken.from_json(token),
            row["_relay_event_id"],
            deleted=row["_relay_deleted"],
            incomplete=row["_relay_incomplete"],
            read_as_of=row["_relay_read_as_of"],
            place=None
            if row["_relay_topic"] is None
            else Place(row["_relay_topic"], row["_relay_partition"], row["_relay_offset"]),
        )

    # ------------------------------------------------------------------ writing

    def write(self, batch: DataFrame, writes: Sequence[Write]) -> set[Key]:
        if not writes:
            return set()
        session = batch.sparkSession
        decided = session.createDataFrame([self._decided(write) for write in writes], self._write_schema())
        # Partition and offset are unique within a topic, and a batch has several topics.
        source, name = self._source_table
        of_table = (F.col("status") == DecodeStatus.CHANGE) & (F.col("source") == source) & (F.col("table") == name)
        images = batch.where(of_table).select(
            F.col("partition").alias("_partition"), F.col("offset").alias("_offset"), F.col("new").alias("_item")
        )
        self._with_key_types(decided).join(
            images,
            (F.col("item_partition") == F.col("_partition")) & (F.col("item_offset") == F.col("_offset")),
            "left",
        ).createOrReplaceTempView("relay_batch")
        keys = [delta.quoted(name) for name in self.key_columns]
        item = "CASE WHEN s.keep THEN t.item ELSE s._item END"
        values = {
            "_relay_token": "s.token",
            "_relay_deleted": "s.deleted",
            "_relay_event_id": "s.event_id",
            "_relay_incomplete": "s.incomplete",
            "_relay_updated_at": "current_timestamp()",
            "_relay_read_as_of": "s.read_as_of",
            "_relay_partition": "s.kafka_partition",
            "_relay_topic": "s.kafka_topic",
            "_relay_offset": "s.kafka_offset",
        }
        updates = ", ".join(f"t.{name} = {value}" for name, value in values.items())
        inserted = [*(f"s.k{n}" for n in range(len(keys))), "s._item", *values.values()]
        written = delta.merge(
            session,
            f"""MERGE INTO {self.name} t USING relay_batch s ON {self._same_key()}
            WHEN MATCHED AND s.existed AND t._relay_token <=> s.read_token
                AND t._relay_event_id = s.read_event_id AND t._relay_deleted = s.read_deleted
                AND t._relay_incomplete = s.read_incomplete
            THEN UPDATE SET t.item = {item}, {updates}
            WHEN NOT MATCHED AND NOT s.existed
            THEN INSERT ({", ".join((*keys, "item", *values))})
            VALUES ({", ".join(inserted)})""",
        )
        if written == len(writes):
            return set()
        # Another driver was faster for some keys: their rows are not those that were written.
        current = self.read(batch, [write.key for write in writes])
        return {write.key for write in writes if not is_same_change(write.row, current.get(write.key))}

    def _decided(self, write: Write) -> tuple[object, ...]:
        row, read = write.row, write.read
        image: tuple[int | None, int | None] = row.item if isinstance(row.item, tuple) else (None, None)
        return (
            *write.key,
            *image,
            row.item is Item.AS_STORED,
            _json(row.token),
            row.deleted,
            row.event_id,
            row.incomplete,
            row.read_as_of,
            *((None, None, None) if row.place is None else astuple(row.place)),
            read is not None,
            _json(read.token) if read else None,
            read.event_id if read else None,
            read.deleted if read else None,
            read.incomplete if read else None,
        )

    # ------------------------------------------------------------------ tombstones and properties

    def delete_tombstones(self, batch: DataFrame, written_before: float) -> int:
        until = f"timestamp_micros({int(written_before * 1_000_000)})"
        where = f"_relay_deleted AND NOT _relay_incomplete AND _relay_updated_at < {until}"
        row = batch.sparkSession.sql(f"DELETE FROM {self.name} WHERE {where}").collect()[0]
        return int(row["num_affected_rows"])

    def properties(self, batch: DataFrame) -> Mapping[str, str]:
        rows = batch.sparkSession.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        return {row["key"]: row["value"] for row in rows}

    def set_property(self, batch: DataFrame, name: str, value: str) -> None:
        assigned = f"{delta.literal(name)} = {delta.literal(value)}"
        batch.sparkSession.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({assigned})")

    # ------------------------------------------------------------------ columns

    def _create(self, session: SparkSession) -> None:
        kinds = ["BINARY" if binary else "STRING" for binary in self._binary]
        keys = [f"{delta.quoted(name)} {kind}" for name, kind in zip(self.key_columns, kinds, strict=True)]
        ours = [f"{name} {kind}" for name, kind in _COLUMNS.items()]
        properties = {"delta.checkpointInterval": "50", COLLECTED_AT: str(time.time())}
        if _NOT_IN_PARQUET & set("".join(self.key_columns)):
            properties["delta.columnMapping.mode"] = "name"
        listed = ", ".join(f"{delta.literal(key)} = {delta.literal(value)}" for key, value in properties.items())
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(keys + ours)}) USING DELTA TBLPROPERTIES ({listed})"
        )
        present = set(session.table(self.name).columns)
        added = [f"{name} {kind}" for name, kind in _COLUMNS.items() if name not in present]
        if added:
            session.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({', '.join(added)})")

    def _key_schema(self) -> StructType:
        return StructType([StructField(f"k{n}", StringType(), False) for n in range(len(self.key_columns))])

    def _write_schema(self) -> StructType:
        text, flag = StringType(), BooleanType()
        return StructType(
            [
                *self._key_schema(),
                StructField("item_partition", IntegerType()),
                StructField("item_offset", LongType()),
                StructField("keep", flag),
                StructField("token", text),
                StructField("deleted", flag),
                StructField("event_id", text),
                StructField("incomplete", flag),
                StructField("read_as_of", LongType()),
                StructField("kafka_topic", text),
                StructField("kafka_partition", IntegerType()),
                StructField("kafka_offset", LongType()),
                StructField("existed", flag),
                StructField("read_token", text),
                StructField("read_event_id", text),
                StructField("read_deleted", flag),
                StructField("read_incomplete", flag),
            ]
        )

    def _with_key_types(self, frame: DataFrame) -> DataFrame:
        """Turn the text of the key columns k0, k1, ... into the types of the table."""
        for number, binary in enumerate(self._binary):
            if binary:
                frame = frame.withColumn(f"k{number}", F.unbase64(f"k{number}"))
        return frame

    def _same_key(self) -> str:
        return " AND ".join(f"t.{delta.quoted(name)} = s.k{n}" for n, name in enumerate(self.key_columns))


def _text(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else str(value)


def _json(token: EventToken | None) -> str | None:
    return None if token is None else token.to_json()

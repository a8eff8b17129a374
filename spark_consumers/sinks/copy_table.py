"""One table of the copy in Delta: its columns, reading the state of rows, and writing them conditionally.

Users query the columns, which the README of the consumers lists: add new ones at the end.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from relay.errors import RelayError
from relay.token import EventToken
from spark_consumers.fold import (
    ChangeLike,
    PartitionOffset,
    StoredRow,
    Verdict,
    VerdictCounts,
    fold,
    sweep,
    truncate,
)
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.sinks import delta
from spark_consumers.sinks.tombstones import COLLECTED_AT, Tombstones

Key = tuple[str, ...]
"""The key columns as text; binary in base64."""

_COLUMNS = {
    "item": "STRING",
    "_relay_token": "STRING",
    "_relay_deleted": "BOOLEAN",
    "_relay_event_id": "STRING",
    "_relay_incomplete": "BOOLEAN",
    "_relay_updated_at": "TIMESTAMP",
    "_relay_read_as_of": "BIGINT",
    "_relay_partition": "INT",
}
_STATE = ("_relay_token", "_relay_deleted", "_relay_event_id", "_relay_incomplete", "_relay_read_as_of")
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")
_ATTEMPTS = 20  # more conflicts in a row are a fault, not contention
_ROWS_PER_SWEEP = 20_000  # rows decided and written at once (I11)


_Rule = Callable[[StoredRow], tuple[StoredRow, Verdict]]


class BatchChange(ChangeLike, Protocol):
    """A change of a batch. ``new``: the partition and offset of its image."""

    @property
    def partition_offset(self) -> PartitionOffset: ...


class Item(Enum):
    """Stands in for the item of a stored row, since items are never read back from the table."""

    AS_STORED = "as stored"


@dataclass(frozen=True, slots=True)
class _Write:
    key: Key
    read: StoredRow | None
    row: StoredRow
    partition: int | None = None  # the Kafka partition of the row's changes; None leaves it as it is


class CopyTable:
    """The copy of one table, at ``path``; created on first use. ``tombstone_retention``: seconds."""

    def __init__(self, path: str, layout: Layout, tombstone_retention: float) -> None:
        self._table = delta.table(path)
        self._retention = tombstone_retention
        self._tombstones: Tombstones | None = None
        self._source_table = layout.source, layout.table
        self._binary = layout.binary_key
        self._is_created = False
        # A key column with the name of one of ours gets a prefix.
        self.key_columns = [f"key_{field.name}" if field.name in _COLUMNS else field.name for field in layout.key]
        if len({name.lower() for name in self.key_columns}) < len(self.key_columns):
            raise RelayError(
                f"copy of {layout.source}/{layout.table}: Delta cannot store key columns that differ only in case "
                f"({', '.join(self.key_columns)}): rename one at the source"
            )

    def apply(self, batch: DataFrame, items: Mapping[Key, Sequence[BatchChange]], counts: VerdictCounts) -> None:
        """Apply the changes of some items, each item's in order."""
        session = batch.sparkSession
        pending = items
        for _ in range(_ATTEMPTS):
            if not pending:
                return
            stored = self._read(session, list(pending))
            counts_by_key = {key: VerdictCounts() for key in pending}
            writes = []
            for key, changes in pending.items():
                read = stored.get(key)
                row = fold(read, changes, counts_by_key[key])
                if row is not None and not _is_same_change(row, read):
                    writes.append(_Write(key, read, row, changes[0].partition_offset[0]))
            conflicts = self._write(batch, writes)
            for key, of_key in counts_by_key.items():
                if key not in conflicts:
                    counts.add(of_key)
            pending = {key: pending[key] for key in conflicts}
        if pending:
            raise self._too_many_conflicts(next(iter(pending)))

    def truncate(
        self,
        batch: DataFrame,
        change: ChangeLike,
        partitions: Iterable[int],
        truncations_of: Callable[[StoredRow], Sequence[ChangeLike]],
        counts: VerdictCounts,
    ) -> None:
        """Delete every older row of these Kafka partitions. ``truncations_of``: all that came after a row."""
        where = f"_relay_partition IN ({', '.join(map(str, partitions))})"
        self._apply_to_rows(batch, where, lambda row: truncate(row, change, truncations_of(row)), counts)

    def sweep(self, batch: DataFrame, end: ChangeLike, partition: int, counts: VerdictCounts) -> None:
        """Delete every row of a Kafka partition that the snapshot that ended did not find."""
        begin = end.snapshot.as_of if end.snapshot is not None else 0
        where = f"_relay_partition = {partition} AND _relay_read_as_of < {begin}"
        self._apply_to_rows(batch, where, lambda row: sweep(row, end), counts)

    def tombstones(self, session: SparkSession) -> Tombstones:
        if self._tombstones is None:
            self._create(session)
            self._tombstones = Tombstones(session, self._table, self._retention)
        return self._tombstones

    def _apply_to_rows(self, batch: DataFrame, where: str, rule: _Rule, counts: VerdictCounts) -> None:
        """Apply ``rule`` to each row that may exist at the source and matches ``where``."""
        session = batch.sparkSession
        self._create(session)
        columns = ", ".join(map(delta.quoted, (*self.key_columns, *_STATE)))
        rows = session.sql(
            f"SELECT {columns} FROM {self._table} WHERE (NOT _relay_deleted OR _relay_incomplete) AND {where}"
        ).toLocalIterator()
        states = (self._state(row) for row in rows)
        while part := list(islice(states, _ROWS_PER_SWEEP)):
            self._apply_to_states(batch, dict(part), rule, counts)

    def _apply_to_states(
        self, batch: DataFrame, read: Mapping[Key, StoredRow], rule: _Rule, counts: VerdictCounts
    ) -> None:
        for _ in range(_ATTEMPTS):
            decided = {key: rule(state) for key, state in read.items()}
            writes = [
                _Write(key, read[key], row) for key, (row, _) in decided.items() if not _is_same_change(row, read[key])
            ]
            conflicts = self._write(batch, writes)
            for key, (row, verdict) in decided.items():
                if key not in conflicts:
                    counts.count(verdict, row)
            if not conflicts:
                return
            read = self._read(batch.sparkSession, list(conflicts))
        raise self._too_many_conflicts(next(iter(read)))

    def _too_many_conflicts(self, key: Key) -> RelayError:
        return RelayError(
            f"{self._table}: row {key} was changed by another writer during {_ATTEMPTS} attempts in a row to write it: "
            "stop whatever else writes to this table"
        )

    # ------------------------------------------------------------------ reading

    def _read(self, session: SparkSession, keys: Sequence[Key]) -> dict[Key, StoredRow]:
        """Return the state of each of ``keys`` that is in the table."""
        self._create(session)
        wanted = session.createDataFrame(list(keys), self._key_schema())
        self._with_key_types(wanted).createOrReplaceTempView("relay_keys")
        columns = ", ".join(f"t.{delta.quoted(name)}" for name in (*self.key_columns, *_STATE))
        rows = session.sql(
            f"SELECT /*+ BROADCAST(s) */ {columns} FROM {self._table} t JOIN relay_keys s ON {self._same_key()}"
        ).collect()
        return dict(map(self._state, rows))

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
        )

    # ------------------------------------------------------------------ writing

    def _write(self, batch: DataFrame, writes: Sequence[_Write]) -> set[Key]:
        """Write each row whose state is still the one that was read; return the keys of the others."""
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
        }
        updates = ", ".join(f"t.{name} = {value}" for name, value in values.items())
        inserted = [*(f"s.k{n}" for n in range(len(keys))), "s._item", *values.values(), "s.kafka_partition"]
        written = delta.merge(
            session,
            f"""MERGE INTO {self._table} t USING relay_batch s ON {self._same_key()}
            WHEN MATCHED AND s.existed AND t._relay_token <=> s.read_token
                AND t._relay_event_id = s.read_event_id AND t._relay_deleted = s.read_deleted
                AND t._relay_incomplete = s.read_incomplete
            THEN UPDATE SET t.item = {item}, {updates}
            WHEN NOT MATCHED AND NOT s.existed
            THEN INSERT ({", ".join((*keys, "item", *values, "_relay_partition"))})
            VALUES ({", ".join(inserted)})""",
        )
        if written == len(writes):
            return set()
        # Another driver was faster for some keys: their rows are not those that were written.
        current = self._read(session, [write.key for write in writes])
        return {write.key for write in writes if not _is_same_change(write.row, current.get(write.key))}

    def _decided(self, write: _Write) -> tuple[object, ...]:
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
            write.partition,
            read is not None,
            _json(read.token) if read else None,
            read.event_id if read else None,
            read.deleted if read else None,
            read.incomplete if read else None,
        )

    # ------------------------------------------------------------------ columns

    def _create(self, session: SparkSession) -> None:
        if self._is_created:
            return
        kinds = ["BINARY" if binary else "STRING" for binary in self._binary]
        keys = [f"{delta.quoted(name)} {kind}" for name, kind in zip(self.key_columns, kinds, strict=True)]
        ours = [f"{name} {kind}" for name, kind in _COLUMNS.items()]
        properties = {"delta.checkpointInterval": "50", COLLECTED_AT: str(time.time())}
        if _NOT_IN_PARQUET & set("".join(self.key_columns)):
            properties["delta.columnMapping.mode"] = "name"
        listed = ", ".join(f"{delta.literal(key)} = {delta.literal(value)}" for key, value in properties.items())
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(keys + ours)}) USING DELTA TBLPROPERTIES ({listed})"
        )
        self._is_created = True

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
                StructField("kafka_partition", IntegerType()),
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


def _is_same_change(row: StoredRow, other: StoredRow | None) -> bool:
    """Whether two states come from the same change, and so hold the same item."""
    return other is not None and replace(row, item=None) == replace(other, item=None)


def _text(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else str(value)


def _json(token: EventToken | None) -> str | None:
    return None if token is None else token.to_json()

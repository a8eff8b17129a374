"""One table of the copy in Delta: its columns, the states of some of its rows, and the guarded write.

The columns are a contract with those who query the copy, shown in the README of the consumers. Add some at the end.
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
from spark_consumers.decode import DecodeStatus, Layout
from spark_consumers.fold import ChangeLike, StoredRow, Verdict, VerdictCounts, fold, sweep, tally, truncate
from spark_consumers.sinks import delta
from spark_consumers.sinks.tombstones import COLLECTED_AT, Tombstones

Place = tuple[int, int]
"""Partition and offset: where in a batch a change and its image are."""

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
_ROUNDS = 20  # a row that changes under as many attempts in a row is no contention but a fault
_SWEPT_AT_ONCE = 20_000  # rows decided and written in one go (I11)


_Rule = Callable[[StoredRow], tuple[StoredRow, Verdict]]


class PlacedChange(ChangeLike, Protocol):
    @property
    def place(self) -> Place: ...


class Item(Enum):
    """Stands in a row's state for the item that is in the table."""

    AS_STORED = "as stored"


@dataclass(frozen=True, slots=True)
class _Write:
    key: Key
    read: StoredRow | None
    row: StoredRow
    partition: int | None = None  # of Kafka, where the row's changes are; None leaves it


class CopyTable:
    """The copy of one table, at ``path``. Made when first used. ``retention``: of tombstones, in seconds."""

    def __init__(self, path: str, layout: Layout, retention: float) -> None:
        self._table = delta.table(path)
        self._retention = retention
        self._tombstones: Tombstones | None = None
        self._of = layout.source, layout.table
        self._binary = layout.binary_key
        self._made = False
        # A key column that is called like one of ours makes room.
        self.key_columns = [f"key_{field.name}" if field.name in _COLUMNS else field.name for field in layout.key]
        if len({name.lower() for name in self.key_columns}) < len(self.key_columns):
            raise RelayError(
                f"the key of {layout.source}/{layout.table} has columns that differ only in case "
                f"({', '.join(self.key_columns)}): Delta cannot keep them"
            )

    def apply(self, batch: DataFrame, items: Mapping[Key, Sequence[PlacedChange]], counts: VerdictCounts) -> None:
        """Apply the changes of some items, each item's in order."""
        session = batch.sparkSession
        left = items
        for _ in range(_ROUNDS):
            if not left:
                return
            stored = self._read(session, list(left))
            round_counts = {key: VerdictCounts() for key in left}
            writes = []
            for key, changes in left.items():
                read = stored.get(key)
                row = fold(read, changes, round_counts[key])
                if row is not None and not _same(row, read):
                    writes.append(_Write(key, read, row, changes[0].place[0]))
            lost = self._write(batch, writes)
            for key, of_key in round_counts.items():
                if key not in lost:
                    _add(counts, of_key)
            left = {key: left[key] for key in lost}
        raise RelayError(f"{self._table}: a row changed under {_ROUNDS} attempts to write it: {next(iter(left))}")

    def truncate(
        self,
        batch: DataFrame,
        change: ChangeLike,
        partitions: Iterable[int],
        beside: Callable[[StoredRow], Sequence[ChangeLike]],
        counts: VerdictCounts,
    ) -> None:
        """Delete, of ``partitions`` of Kafka, every row that is older. ``beside``: further truncations, for a row."""
        where = f"_relay_partition IN ({', '.join(map(str, partitions))})"
        self._sweep(batch, where, lambda row: truncate(row, change, beside(row)), counts)

    def sweep(self, batch: DataFrame, end: ChangeLike, partition: int, counts: VerdictCounts) -> None:
        """Delete, of one partition of Kafka, every row that a snapshot that has ended did not find."""
        begin = end.snapshot.as_of if end.snapshot is not None else 0
        where = f"_relay_partition = {partition} AND _relay_read_as_of < {begin}"
        self._sweep(batch, where, lambda row: sweep(row, end), counts)

    def tombstones(self, session: SparkSession) -> Tombstones:
        if self._tombstones is None:
            self._make(session)
            self._tombstones = Tombstones(session, self._table, self._retention)
        return self._tombstones

    def _sweep(self, batch: DataFrame, where: str, rule: _Rule, counts: VerdictCounts) -> None:
        session = batch.sparkSession
        self._make(session)
        columns = ", ".join(map(delta.quoted, (*self.key_columns, *_STATE)))
        rows = session.sql(
            f"SELECT {columns} FROM {self._table} WHERE (NOT _relay_deleted OR _relay_incomplete) AND {where}"
        ).toLocalIterator()
        states = (self._state(row) for row in rows)
        while part := list(islice(states, _SWEPT_AT_ONCE)):
            self._apply_to_all(batch, dict(part), rule, counts)

    def _apply_to_all(
        self, batch: DataFrame, read: Mapping[Key, StoredRow], rule: _Rule, counts: VerdictCounts
    ) -> None:
        for _ in range(_ROUNDS):
            decided = {key: rule(state) for key, state in read.items()}
            writes = [_Write(key, read[key], row) for key, (row, _) in decided.items() if not _same(row, read[key])]
            lost = self._write(batch, writes)
            for key, (row, verdict) in decided.items():
                if key not in lost:
                    tally(counts, verdict, row)
            if not lost:
                return
            read = self._read(batch.sparkSession, list(lost))
        raise RelayError(f"{self._table}: a row changed under {_ROUNDS} attempts to write it")

    # ------------------------------------------------------------------ reading

    def _read(self, session: SparkSession, keys: Sequence[Key]) -> dict[Key, StoredRow]:
        """Return the states of those of ``keys`` that are in the table."""
        self._make(session)
        self._keyed(session.createDataFrame(list(keys), self._key_schema())).createOrReplaceTempView("relay_keys")
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
        """Write each row where what was read still stands; return the keys of those where it does not."""
        if not writes:
            return set()
        session = batch.sparkSession
        decided = session.createDataFrame([self._decided(write) for write in writes], self._write_schema())
        # Partition and offset tell changes apart within a topic, and a batch is of all topics.
        source, name = self._of
        ours = (F.col("status") == DecodeStatus.CHANGE) & (F.col("source") == source) & (F.col("table") == name)
        images = batch.where(ours).select(
            F.col("partition").alias("_partition"), F.col("offset").alias("_offset"), F.col("new").alias("_item")
        )
        self._keyed(decided).join(
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
        written = delta.merged(
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
        # Another driver was faster somewhere: what stands there now is not what was written.
        stands = self._read(session, [write.key for write in writes])
        return {write.key for write in writes if not _same(write.row, stands.get(write.key))}

    def _decided(self, write: _Write) -> tuple[object, ...]:
        row, read = write.row, write.read
        place: tuple[int | None, int | None] = row.item if isinstance(row.item, tuple) else (None, None)
        return (
            *write.key,
            *place,
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

    def _make(self, session: SparkSession) -> None:
        if self._made:
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
        self._made = True

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

    def _keyed(self, frame: DataFrame) -> DataFrame:
        """Turn the texts of key columns k0, k1, ... into what the table holds."""
        for number, binary in enumerate(self._binary):
            if binary:
                frame = frame.withColumn(f"k{number}", F.unbase64(f"k{number}"))
        return frame

    def _same_key(self) -> str:
        return " AND ".join(f"t.{delta.quoted(name)} = s.k{n}" for n, name in enumerate(self.key_columns))


def _same(row: StoredRow, other: StoredRow | None) -> bool:
    """Whether two states are of the same change, and so hold the same item."""
    return other is not None and replace(row, item=None) == replace(other, item=None)


def _add(counts: VerdictCounts, more: VerdictCounts) -> None:
    counts.applied += more.applied
    counts.ignored += more.ignored
    counts.unknown += more.unknown
    counts.incomplete += more.incomplete


def _text(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else str(value)


def _json(token: EventToken | None) -> str | None:
    return None if token is None else token.to_json()

"""One table of the copy in Delta: its columns, reading the state of rows, and writing them conditionally."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StringType, StructField, StructType

from relay.errors import RelayError
from spark_consumers.fold import StoredRow
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, delta
from spark_consumers.sinks.columns import ITEM, ColumnPlan
from spark_consumers.sinks.delta_values import OURS, VARIANT, from_image, is_ansi, kind_of, naming, text_of, value_of
from spark_consumers.sinks.target import STATE, Item, Key, Write, images, state, stored_row
from spark_consumers.sinks.tombstones import COLLECTED_AT
from spark_consumers.sinks.upkeep import Schedule, TableUpkeep

FORMAT = "relay.format"
"""A property of tables whose rows are typed columns. Earlier ones have every row as JSON, in `ITEM`."""

# Other changes do not change a state whose change is the same.
_GUARDED = ("_relay_token", "_relay_event_id", "_relay_deleted", "_relay_incomplete")
_ROWS_OF_A_FILE = 5_000  # up to which a batch inserts one file
_PARTS = 50  # that `write_all` writes in one statement
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")
_STATE_TYPES: Mapping[type, DataType] = {str: StringType(), bool: BooleanType(), int: LongType()}


class DeltaTable:
    """The copy of one table in Delta, below ``path``. ``items``: how it keeps JSON."""

    def __init__(self, path: str, schedule: Schedule, source: str, table: str, *, items: str = "json") -> None:
        self.name = delta.table(f"{path}/{source}/{table}")
        self._source_table = source, table
        self._upkeep = TableUpkeep(self.name, schedule)
        self._naming = naming("string" if items == "json" else VARIANT)
        self._layouts: Mapping[int, Layout] | None = None
        self._plan = ColumnPlan((), ())

    # ------------------------------------------------------------------ columns

    def prepare(self, batch: DataFrame, layouts: Mapping[int, Layout]) -> None:
        if layouts == self._layouts:
            return
        session = batch.sparkSession
        self._create(session, columns.plan(self.name, {}, layouts, self._naming))
        kinds = {field.name: kind_of(field.dataType) for field in session.table(self.name).schema}
        stored = {name: kind for name, kind in kinds.items() if name not in OURS}
        if ITEM in stored and any(each.row is not None for each in layouts.values()):
            self._refuse_earlier_format(batch)
        self._plan = columns.plan(self.name, stored, layouts, self._naming)
        self._alter(session, {name: OURS[name] for name in OURS if name not in kinds})
        self._layouts = dict(layouts)

    def _refuse_earlier_format(self, batch: DataFrame) -> None:
        if FORMAT not in self.properties(batch):
            raise RelayError(
                f"{self.name}: an earlier version made this copy, with each row as JSON in `{ITEM}`; now the rows are "
                "typed columns: keep the copy at another `copy.url` from now on, with a new checkpoint"
            )

    def _create(self, session: SparkSession, plan: ColumnPlan) -> None:
        """Create the table unless it exists."""
        listed = [f"{delta.quoted(name)} {delta.sql_type(kind)}" for name, kind in plan.added.items()]
        listed += [f"{name} {kind}" for name, kind in OURS.items()]
        properties = {
            "delta.checkpointInterval": "50",
            # Without them each batch writes whole files again for the few rows that it changes.
            "delta.enableDeletionVectors": "true",
            COLLECTED_AT: str(time.time()),
            FORMAT: "1",
            **self._upkeep.properties(time.time()),
        }
        if _NOT_IN_PARQUET & set("".join(plan.added)):
            properties["delta.columnMapping.mode"] = "name"
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(listed)}) USING DELTA "
            f"TBLPROPERTIES ({delta.assigned(properties)})"
        )

    def _alter(self, session: SparkSession, ours: Mapping[str, str]) -> None:
        properties = {}
        if _NOT_IN_PARQUET & set("".join(self._plan.added)):
            properties["delta.columnMapping.mode"] = "name"
        if self._plan.widened:
            properties["delta.enableTypeWidening"] = "true"
        if properties:
            session.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({delta.assigned(properties)})")
        added = [f"{delta.quoted(name)} {delta.sql_type(kind)}" for name, kind in self._plan.added.items()]
        added += [f"{name} {kind}" for name, kind in ours.items()]
        if added:
            session.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({', '.join(added)})")
        for name, kind in self._plan.widened.items():
            session.sql(f"ALTER TABLE {self.name} ALTER COLUMN {delta.quoted(name)} TYPE {delta.sql_type(kind)}")

    # ------------------------------------------------------------------ reading

    def read(self, batch: DataFrame, keys: Collection[Key]) -> dict[Key, StoredRow]:
        session, wanted = batch.sparkSession, list(keys)
        schema = StructType([StructField("n", IntegerType()), *self._key_fields()])
        numbered = delta.local_frame(session, ((n, *key) for n, key in enumerate(wanted)), schema)
        self._with_key_types(numbered).createOrReplaceTempView("relay_keys")
        listed = ", ".join(f"t.{name}" for name in STATE)
        rows = session.sql(
            f"SELECT /*+ BROADCAST(s) */ s.n, {listed} FROM {self.name} t JOIN relay_keys s"
            f" ON {self._same_key()} AND {self._between(wanted)}"
        ).collect()
        return {wanted[row[0]]: stored_row(row[1:]) for row in rows}

    def rows(
        self,
        batch: DataFrame,
        topic: str,
        partitions: Collection[int],
        *,
        of_other_topics: bool,
        read_before: int | None = None,
    ) -> Iterator[tuple[Key, StoredRow]]:
        is_topic = f"_relay_topic <=> {delta.literal(topic)}"
        where = f"({is_topic} AND _relay_partition IN ({', '.join(map(str, partitions))})"
        where += f" OR NOT {is_topic})" if of_other_topics else ")"
        if read_before is not None:
            where += f" AND _relay_read_as_of < {read_before}"
        keys = [text_of(F.col(delta.quoted(key.name)), key.kind) for key in self._plan.keys]
        found = batch.sparkSession.table(self.name).where(f"(NOT _relay_deleted OR _relay_incomplete) AND {where}")
        rows: Iterator[Row] = found.select(*keys, *STATE).toLocalIterator()
        return ((tuple(row[: len(keys)]), stored_row(row[len(keys) :])) for row in rows)

    # ------------------------------------------------------------------ writing

    def write(self, batch: DataFrame, writes: Sequence[Write]) -> set[Key]:
        if not writes:
            return set()
        decided = self._decided(batch.sparkSession, writes)
        if any(isinstance(write.row.item, tuple) for write in writes):
            decided = decided.join(
                self._typed(images(batch, *self._source_table)),
                (F.col("item_partition") == F.col("_partition")) & (F.col("item_offset") == F.col("_offset")),
                "left",
            )
        else:
            decided = self._without_images(decided)
        return self._merge(decided, len(writes), [write.key for write in writes])

    def write_all(self, batch: DataFrame, parts: Iterable[Sequence[Write]]) -> set[Key]:
        # In one statement, since each reads the whole table. Spark keeps what was decided, on disk if need be.
        session, conflicts = batch.sparkSession, set[Key]()
        written = filter(None, parts)
        while several := list(islice((self._staged(session, part) for part in written), _PARTS)):
            frames, sizes = zip(*several, strict=True)
            decided = self._without_images(reduce(DataFrame.unionAll, frames))
            conflicts |= self._merge(decided, sum(sizes))
        return conflicts

    def _staged(self, session: SparkSession, writes: Sequence[Write]) -> tuple[DataFrame, int]:
        return self._decided(session, writes).coalesce(1).localCheckpoint(), len(writes)

    def _decided(self, session: SparkSession, writes: Sequence[Write]) -> DataFrame:
        found = delta.local_frame(session, map(_decided, writes), self._write_schema())
        return self._with_key_types(found.withColumns({f"text_{name}": F.col(name) for name in self._key_names()}))

    def _without_images(self, decided: DataFrame) -> DataFrame:
        nulls = {f"c{n}": F.lit(None).cast(delta.sql_type(each.kind)) for n, each in enumerate(self._plan.row)}
        return decided.withColumns(nulls)

    def _merge(self, decided: DataFrame, number: int, keys: Sequence[Key] = ()) -> set[Key]:
        """Write ``number`` rows, each over the state that was read; return the keys of the others.

        ``keys``: theirs, if they are known.
        """
        decided = decided.coalesce(1) if number <= _ROWS_OF_A_FILE else decided
        decided.createOrReplaceTempView("relay_batch")
        session = decided.sparkSession
        row = {delta.quoted(column.name): f"c{n}" for n, column in enumerate(self._plan.row)}
        ours = {name: f"s.{name}" for name in STATE} | {"_relay_updated_at": "current_timestamp()"}
        updates = [f"t.{name} = CASE WHEN s.keep THEN t.{name} ELSE s.{value} END" for name, value in row.items()]
        updates += [f"t.{name} = {value}" for name, value in ours.items()]
        names = [delta.quoted(key.name) for key in self._plan.keys]
        inserted = [f"s.{name}" for name in (*self._key_names(), *row.values())] + list(ours.values())
        unchanged = " AND ".join(f"t.{name} <=> s.read{name}" for name in _GUARDED)
        written = delta.merge(
            session,
            f"""MERGE INTO {self.name} t USING relay_batch s ON {self._same_key()} AND {self._between(keys)}
            WHEN MATCHED AND s.existed AND {unchanged} THEN UPDATE SET {", ".join(updates)}
            WHEN NOT MATCHED AND NOT s.existed
            THEN INSERT ({", ".join((*names, *row, *ours))}) VALUES ({", ".join(inserted)})""",
        )
        if written == number:
            return set()
        # Another driver was faster for some keys: their rows are not those that were written.
        is_written = " AND ".join(f"t.{name} <=> s.{name}" for name in STATE)
        texts = ", ".join(f"s.text_{name}" for name in self._key_names())
        others = session.sql(
            f"SELECT {texts} FROM relay_batch s LEFT JOIN {self.name} t ON {self._same_key()} WHERE NOT ({is_written})"
        ).collect()
        return {tuple(other) for other in others}

    def _typed(self, found: DataFrame) -> DataFrame:
        """Return partition, offset, and the columns c0, c1, ... of the row that an image holds."""
        # As a map: two names may differ in case only.
        parsed = found.withColumn("fields", F.from_json("new", "map<string,string>"))
        casts_fail = is_ansi(found)
        values = [from_image(column, casts_fail).alias(f"c{n}") for n, column in enumerate(self._plan.row)]
        return parsed.select(F.col("partition").alias("_partition"), F.col("offset").alias("_offset"), *values)

    def _write_schema(self) -> StructType:
        read = [StructField(f"read{name}", _STATE_TYPES[kind]) for name, kind in STATE.items()]
        return StructType(
            [
                *self._key_fields(),
                StructField("item_partition", IntegerType()),
                StructField("item_offset", LongType()),
                StructField("keep", BooleanType()),
                StructField("existed", BooleanType()),
                *(StructField(name, _STATE_TYPES[kind]) for name, kind in STATE.items()),
                *read,
            ]
        )

    def _key_names(self) -> list[str]:
        return [f"k{n}" for n in range(len(self._plan.keys))]

    def _key_fields(self) -> list[StructField]:
        return [StructField(name, StringType(), False) for name in self._key_names()]

    def _with_key_types(self, frame: DataFrame) -> DataFrame:
        """Turn the text of the key columns k0, k1, ... into the types of the table."""
        for n, key in enumerate(self._plan.keys):
            frame = frame.withColumn(f"k{n}", value_of(F.col(f"k{n}"), key.kind, is_ansi(frame)))
        return frame

    def _same_key(self) -> str:
        return " AND ".join(f"t.{delta.quoted(key.name)} = s.k{n}" for n, key in enumerate(self._plan.keys))

    def _between(self, keys: Sequence[Key]) -> str:
        """Return a condition on ``t`` that all ``keys`` meet, so that Delta skips files that have none of them."""
        ranges = ["true"]
        for n, key in enumerate(self._plan.keys if keys else ()):
            parts = [each[n] for each in keys]
            if key.kind == "string":
                # In Python as in Spark, texts are in the order of their code points.
                bounds = [delta.literal(min(parts)), delta.literal(max(parts))]
            elif key.kind in ("int", "long"):
                numbers = [int(part) for part in parts]
                bounds = [f"{bound}{'L' if key.kind == 'long' else ''}" for bound in (min(numbers), max(numbers))]
            else:
                continue
            ranges.append(f"t.{delta.quoted(key.name)} BETWEEN {' AND '.join(bounds)}")
        return " AND ".join(ranges)

    # ------------------------------------------------------------------ tombstones and properties

    def delete_tombstones(self, batch: DataFrame, written_before: float) -> int:
        until = f"timestamp_micros({int(written_before * 1_000_000)})"
        where = f"_relay_deleted AND NOT _relay_incomplete AND _relay_updated_at < {until}"
        row = batch.sparkSession.sql(f"DELETE FROM {self.name} WHERE {where}").collect()[0]
        return int(row["num_affected_rows"])

    def maintain(self, batch: DataFrame) -> None:
        self._upkeep.run(batch.sparkSession)

    def properties(self, batch: DataFrame) -> Mapping[str, str]:
        rows = batch.sparkSession.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        return {row["key"]: row["value"] for row in rows}

    def set_property(self, batch: DataFrame, name: str, value: str) -> None:
        batch.sparkSession.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({delta.assigned({name: value})})")


def _decided(write: Write) -> tuple[object, ...]:
    row, read = write.row, write.read
    image: tuple[int | None, int | None] = row.item if isinstance(row.item, tuple) else (None, None)
    before = (None,) * len(STATE) if read is None else state(read)
    return (*write.key, *image, row.item is Item.AS_STORED, read is not None, *state(row), *before)

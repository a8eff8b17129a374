"""One table of the copy in Delta: its columns, reading the state of rows, and writing them conditionally."""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from relay.types.columns import ColumnKind
from spark_consumers.fold import StoredRow
from spark_consumers.locations import table_folder
from spark_consumers.plain_items import KeyBounds, TableSummary
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, delta
from spark_consumers.sinks.columns import ColumnPlan
from spark_consumers.sinks.delta_upsert import BatchMerge, NewestInDelta
from spark_consumers.sinks.delta_values import (
    KEY,
    OURS,
    VARIANT,
    from_image,
    from_json,
    is_ansi,
    key_of,
    naming,
    text_of,
    value_of,
)
from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.target import (
    LACKS_IMAGES,
    OF_CHANGE,
    PLACE,
    STATE,
    Item,
    Key,
    SelectedRows,
    TargetTable,
    Write,
    Written,
    images,
    state,
    stored_row,
)
from spark_consumers.sinks.tombstones import COLLECTED_AT
from spark_consumers.sinks.upkeep import Schedule, TableUpkeep

FORMAT = "relay.format"
"""The property of a table that says in which format it is."""

_OURS = "1"

# Other changes do not change a state whose change is the same.
_GUARDED = ("_relay_token", "_relay_event_id", "_relay_deleted", "_relay_incomplete")
_WITH_BOUNDS = "delta.dataSkippingNumIndexedCols"
_MOST_WITH_BOUNDS = 32  # Delta's default
_ALL_DIFFERENT = ("_relay_token", "_relay_event_id")
_ROWS_OF_A_FILE = 5_000  # up to which a batch inserts one file
_PARTS = 50  # that `write_all` writes in one statement
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")


class DeltaTable(TargetTable):
    """The copy of one table in Delta, below ``path``. ``items``: how it keeps JSON."""

    def __init__(self, path: str, schedule: Schedule, source: str, table: str, *, items: str = "json") -> None:
        self.name = delta.table(table_folder(path, source, table))
        self.source_table = source, table
        self._upkeep = TableUpkeep(self.name, schedule)
        self._naming = naming("string" if items == "json" else VARIANT)
        self._layouts: Mapping[int, Layout] | None = None
        self._plan = ColumnPlan((), ())
        self._newest = NewestInDelta()

    # ------------------------------------------------------------------ columns

    @delta.faults()
    def prepare(self, batch: DataFrame, layouts: Mapping[int, Layout]) -> None:
        if layouts == self._layouts:
            return
        session = batch.sparkSession
        delta.refuse_replaced(session, (each.name for one in layouts.values() for each in (*one.key, *(one.row or ()))))
        if delta.schema_of(session, self.name) is None:
            self._create(session, columns.plan(self.name, {}, None, layouts, self._naming))
        kinds = {field.name: delta.kind_of(field.dataType) for field in session.table(self.name).schema}
        stored = {name: kind for name, kind in kinds.items() if name not in OURS}
        properties = self.properties(batch)
        self._refuse_other_format(properties)
        self._plan = columns.plan(self.name, stored, key_of(properties), layouts, self._naming)
        self._alter(session)
        self._layouts = dict(layouts)

    def _refuse_other_format(self, properties: Mapping[str, str]) -> None:
        if (found := properties.get(FORMAT)) != _OURS:
            raise TableFault(
                f"{self.name} is not a copy that this version can continue: its property {FORMAT} is {found}, not "
                f"{_OURS}: rebuild it with `relay replay copy CONFIG --into PLACE --swap`, or keep the copy at another "
                "`copy.url`, with a new checkpoint, and fill it with `relay snapshot`"
            )

    def _create(self, session: SparkSession, plan: ColumnPlan) -> None:
        """Create the table unless it exists."""
        listed = [f"{delta.quoted(name)} {delta.sql_type(kind)}" for name, kind in plan.added.items()]
        listed += [f"{name} {kind}" for name, kind in OURS.items()]
        properties = {
            "delta.checkpointInterval": "50",
            # Without them each batch writes whole files again for the few rows that it changes.
            "delta.enableDeletionVectors": "true",
            # Minima and maxima of our columns would take time, and no query of the consumer has a use for them.
            _WITH_BOUNDS: str(min(len(plan.added), _MOST_WITH_BOUNDS)),
            **delta.without_dictionaries(_ALL_DIFFERENT),
            COLLECTED_AT: str(time.time()),
            FORMAT: _OURS,
            KEY: json.dumps([key.name for key in plan.keys]),
            **self._upkeep.properties(time.time()),
        }
        if _NOT_IN_PARQUET & set("".join(plan.added)):
            properties["delta.columnMapping.mode"] = "name"
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(listed)}) USING DELTA "
            f"TBLPROPERTIES ({delta.assigned(properties)})"
        )

    def _alter(self, session: SparkSession) -> None:
        properties = {}
        if _NOT_IN_PARQUET & set("".join(self._plan.added)):
            properties["delta.columnMapping.mode"] = "name"
        if self._plan.added:
            properties[_WITH_BOUNDS] = str(_MOST_WITH_BOUNDS)  # the columns that are added are behind ours
        if self._plan.widened:
            properties["delta.enableTypeWidening"] = "true"
        if properties:
            session.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({delta.assigned(properties)})")
        added = [f"{delta.quoted(name)} {delta.sql_type(kind)}" for name, kind in self._plan.added.items()]
        if added:
            session.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({', '.join(added)})")
        for name, kind in self._plan.widened.items():
            session.sql(f"ALTER TABLE {self.name} ALTER COLUMN {delta.quoted(name)} TYPE {delta.sql_type(kind)}")

    # ------------------------------------------------------------------ reading

    @delta.faults()
    def exists(self, batch: DataFrame) -> bool:
        return delta.schema_of(batch.sparkSession, self.name) is not None

    @delta.faults()
    def read(self, batch: DataFrame, keys: Collection[Key]) -> dict[Key, StoredRow]:
        session, wanted = batch.sparkSession, list(keys)
        typed = {"n": "INT", **dict.fromkeys(self._key_names(), "STRING")}
        numbered = delta.local_frame(session, ((n, *key) for n, key in enumerate(wanted)), typed)
        self._with_key_types(numbered).createOrReplaceTempView("relay_keys")
        listed = ", ".join(f"t.{name}" for name in STATE)
        rows = session.sql(
            f"SELECT /*+ BROADCAST(s) */ s.n, {listed} FROM {self.name} t JOIN relay_keys s"
            f" ON {self._same_key()} AND {self._between(self._bounds(wanted))}"
        ).collect()
        return {wanted[row[0]]: stored_row(row[1:]) for row in rows}

    def rows(self, batch: DataFrame, selected: SelectedRows) -> Iterator[tuple[Key, StoredRow]]:
        keys = [text_of(F.col(delta.quoted(key.name)), key.kind) for key in self._plan.keys]
        with delta.faults():
            found = batch.sparkSession.table(self.name).where(selected.where(delta.literal(selected.topic)))
            rows: Iterator[Row] = found.select(*keys, *STATE).toLocalIterator()
            for row in rows:
                yield tuple(row[: len(keys)]), stored_row(row[len(keys) :])

    # ------------------------------------------------------------------ writing

    def write(self, batch: DataFrame, writes: Sequence[Write]) -> set[Key]:
        if not writes:
            return set()
        decided = self._decided(batch.sparkSession, writes)
        if any(isinstance(write.row.item, tuple) for write in writes):
            decided = decided.join(
                self._typed(images(batch, *self.source_table)),
                (F.col("item_partition") == F.col("_partition")) & (F.col("item_offset") == F.col("_offset")),
                "left",
            )
            lacks = F.col("item_partition").isNotNull() & F.col("_partition").isNull()
            said = F.raise_error(F.lit(f"{self.name}: {LACKS_IMAGES}"))
            decided = decided.withColumn("existed", F.when(lacks, said).otherwise(F.col("existed")))  # I8
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
        typed = dict.fromkeys(self._key_names(), "STRING")
        typed |= {"item_partition": "INT", "item_offset": "BIGINT", "keep": "BOOLEAN", "existed": "BOOLEAN"}
        typed |= {f"{prefix}{name}": OURS[name] for prefix in ("", "read") for name in STATE}
        found = delta.local_frame(session, map(_decided, writes), typed)
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
        on = f"{self._same_key()} AND {self._between(self._bounds(keys))}"
        written = delta.merge(
            session,
            f"""MERGE INTO {self.name} t USING relay_batch s ON {on}
            WHEN MATCHED AND s.existed AND {unchanged} THEN UPDATE SET {", ".join(updates)}
            WHEN NOT MATCHED AND NOT s.existed
            THEN INSERT ({", ".join((*names, *row, *ours))}) VALUES ({", ".join(inserted)})""",
        )
        if written.rows == number:
            return set()
        # Another driver was faster for some keys: their rows are not the ones that were written.
        is_written = " AND ".join(f"t.{name} <=> s.{name}" for name in STATE)
        texts = ", ".join(f"s.text_{name}" for name in self._key_names())
        others = session.sql(
            f"SELECT {texts} FROM relay_batch s LEFT JOIN {self.name} t ON {self._same_key()} WHERE NOT ({is_written})"
        ).collect()
        return {tuple(other) for other in others}

    def write_newest(self, changes: DataFrame, found: TableSummary) -> Written:
        rows = found.found.newest(found.layouts, found.size(found.items), time.time_ns() // 1000)
        return self._newest.write(changes.sparkSession, self._merge_of(rows, found.items, found), found)

    def write_reads(self, changes: DataFrame, found: TableSummary) -> int:
        rows = found.found.reads(found.layouts, found.size(found.reads), time.time_ns() // 1000)
        return self._newest.write_reads(changes.sparkSession, self._merge_of(rows, found.reads, found), found)

    def _merge_of(self, found: DataFrame, number: int, summary: TableSummary) -> BatchMerge:
        """Return the MERGE of ``number`` rows of `PlainItems`."""
        rows = self._with_fields(found)
        texts = [F.col("key_texts")[n] for n in range(len(self._plan.keys))]
        rows = rows.select(
            *(text.alias(f"k{n}") for n, text in enumerate(texts)),
            *(text.alias(f"text_k{n}") for n, text in enumerate(texts)),
            *self._values(rows),
            *OF_CHANGE,
            *("stem", "first", "number", "changes", "first_offset", "now", "as_of"),
        )
        rows = self._with_key_types(rows.coalesce(1) if number <= _ROWS_OF_A_FILE else rows)
        rows.createOrReplaceTempView("relay_batch")
        on = f"{self._same_key()} AND {self._between(summary.bounds)}"
        keys = {delta.quoted(key.name): f"s.k{n}" for n, key in enumerate(self._plan.keys)}
        row = {delta.quoted(column.name): f"s.c{n}" for n, column in enumerate(self._plan.row)}
        row |= {name: f"s.{name}" for name in OF_CHANGE} | {"_relay_updated_at": "s.now"}
        return BatchMerge(self.name, on, keys, row, summary.size(number))

    def _typed(self, found: DataFrame) -> DataFrame:
        """Return partition, offset, and the columns c0, c1, ... of the row that an image holds."""
        place = F.col("partition").alias("_partition"), F.col("offset").alias("_offset")
        return self._with_fields(found).select(*place, *self._values(found))

    def _with_fields(self, found: DataFrame) -> DataFrame:
        # As a map: two names may differ in case only.
        return found.withColumn("fields", from_json(F.col("new"), "map<string,string>"))

    def _values(self, found: DataFrame) -> list[Column]:
        casts_fail = is_ansi(found)
        return [from_image(column, casts_fail).alias(f"c{n}") for n, column in enumerate(self._plan.row)]

    def _key_names(self) -> list[str]:
        return [f"k{n}" for n in range(len(self._plan.keys))]

    def _with_key_types(self, frame: DataFrame) -> DataFrame:
        """Turn the text of the key columns k0, k1, ... into the types of the table."""
        for n, key in enumerate(self._plan.keys):
            frame = frame.withColumn(f"k{n}", value_of(F.col(f"k{n}"), key.kind, is_ansi(frame)))
        return frame

    def _same_key(self) -> str:
        return " AND ".join(f"t.{delta.quoted(key.name)} = s.k{n}" for n, key in enumerate(self._plan.keys))

    def _between(self, bounds: Sequence[KeyBounds]) -> str:
        """Return a condition on ``t`` that all keys meet, so that Delta skips files that have none of them."""
        ranges = ["true"]
        for key, found in zip(self._plan.keys, bounds, strict=False):
            if key.kind == ColumnKind.STRING:
                # In Python as in Spark, texts are in the order of their code points.
                ends = [delta.literal(text) for text in found.texts]
            elif key.kind in (ColumnKind.INT, ColumnKind.LONG) and found.numbers is not None:
                ends = [
                    f"{number}{'L' if key.kind == ColumnKind.LONG else ''}"
                    for number in rounded(found.numbers, key.kind)
                ]
            else:
                continue
            ranges.append(f"t.{delta.quoted(key.name)} BETWEEN {' AND '.join(ends)}")
        return " AND ".join(ranges)

    def _bounds(self, keys: Sequence[Key]) -> list[KeyBounds]:
        found = []
        for n, key in enumerate(self._plan.keys if keys else ()):
            texts = [each[n] for each in keys]
            numbers = [int(text) for text in texts] if key.kind in (ColumnKind.INT, ColumnKind.LONG) else None
            found.append(KeyBounds((min(texts), max(texts)), (min(numbers), max(numbers)) if numbers else None))
        return found

    # ------------------------------------------------------------------ tombstones and properties

    @delta.faults()
    def forget_places(self, batch: DataFrame, topic: str) -> None:
        nulls = ", ".join(f"{name} = NULL" for name in PLACE)
        batch.sparkSession.sql(f"UPDATE {self.name} SET {nulls} WHERE _relay_topic = {delta.literal(topic)}").collect()

    @delta.faults()
    def delete_tombstones(self, batch: DataFrame, written_before: float) -> int:
        until = f"timestamp_micros({int(written_before * 1_000_000)})"
        where = f"_relay_deleted AND NOT _relay_incomplete AND _relay_updated_at < {until}"
        row = batch.sparkSession.sql(f"DELETE FROM {self.name} WHERE {where}").collect()[0]
        return int(row["num_affected_rows"])

    @delta.faults()
    def maintain(self, batch: DataFrame) -> None:
        self._upkeep.run(batch.sparkSession)

    @delta.faults()
    def properties(self, batch: DataFrame) -> Mapping[str, str]:
        return delta.properties_of(batch.sparkSession, self.name)

    @delta.faults()
    def set_property(self, batch: DataFrame, name: str, value: str) -> None:
        batch.sparkSession.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({delta.assigned({name: value})})")

    def replace_property(self, batch: DataFrame, name: str, before: str | None, after: str) -> bool:
        # Not in one step: our lock keeps a second driver out, but only of a local folder.
        if self.properties(batch).get(name) != before:
            return False
        self.set_property(batch, name, after)
        return True


def rounded(numbers: tuple[int, int], kind: str) -> tuple[int, int]:
    """Return bounds around others that are mostly the same for each batch.

    Spark writes them into the code of a query, and so would compile it for each batch.
    """
    least, greatest = numbers
    step = max(1, (1 << (greatest - least).bit_length()) // 4)
    end = 1 << (31 if kind == ColumnKind.INT else 63)
    return max(least // step * step, min(least, -end)), min(greatest // step * step + step - 1, max(greatest, end - 1))


def _decided(write: Write) -> tuple[object, ...]:
    row, read = write.row, write.read
    image: tuple[int | None, int | None] = row.item if isinstance(row.item, tuple) else (None, None)
    before = (None,) * len(STATE) if read is None else state(read)
    return (*write.key, *image, row.item is Item.AS_STORED, read is not None, *state(row), *before)

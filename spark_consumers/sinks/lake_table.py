"""A table of the copy that Spark writes: its columns, its reads of the state of rows, and its conditional writes."""

import json
import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from relay.types.columns import ColumnKind
from spark_consumers.fold import StoredRow
from spark_consumers.plain_items import KeyBounds, TableSummary
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, delta, delta_values, target
from spark_consumers.sinks.columns import AS_TEXT, UNFIT, ColumnPlan, Naming
from spark_consumers.sinks.delta_upsert import BatchMerge
from spark_consumers.sinks.delta_values import HIDDEN, OURS, is_ansi, key_columns, text_of, value_of
from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.target import STATE, Key, SelectedRows, TargetTable, Write
from spark_consumers.sinks.tombstones import COLLECTED_AT
from spark_consumers.sinks.upkeep import TableUpkeep

FORMAT = "relay.format"
"""The property of a table that says in which format it is."""

_ROWS_OF_A_FILE = 5_000  # up to which a batch inserts one file
_PARTS = 50  # that `write_all` writes in one statement


class LakeTable(TargetTable):
    """The copy of one table in a lake. ``name``: in SQL. ``form``: the version of its layout. ``naming``: its types."""

    _upkeep: TableUpkeep

    def __init__(self, name: str, source_table: tuple[str, str], form: str, naming: Naming) -> None:
        self.name = self.where = name
        self.source_table = source_table
        self.naming = naming
        self._form = form
        self._layouts: Mapping[int, Layout] = {}
        self._plan = ColumnPlan((), ())

    # ------------------------------------------------------------------ what the formats have of their own

    @abstractmethod
    def schema(self, session: SparkSession) -> StructType | None:
        """Return the columns of the table, or None if there is no table."""

    @abstractmethod
    def _create(self, session: SparkSession, plan: ColumnPlan) -> None:
        """Create the table unless it exists. Raises ``TableFault`` if something else has its name."""

    @abstractmethod
    def _alter(self, session: SparkSession) -> None:
        """Change the columns of the table as the plan says."""

    @abstractmethod
    def _run(self, session: SparkSession, statement: str) -> int:
        """Run a MERGE; return how many rows it wrote, or fewer if unknown. Raises ``RowFault`` and ``TableFault``."""

    # ------------------------------------------------------------------ columns

    @delta.faults()
    def prepare(self, batch: DataFrame, layouts: Mapping[int, Layout]) -> None:
        if layouts == self._layouts:
            return
        session = batch.sparkSession
        delta.refuse_replaced(session, (each.name for one in layouts.values() for each in (*one.key, *(one.row or ()))))
        if self.schema(session) is None:
            self._create(session, columns.plan(self.name, {}, None, layouts, self.naming))
        schema, properties = self.schema(session), self.properties(batch)
        assert schema is not None
        if (found := properties.get(FORMAT)) != self._form:
            raise not_ours(self.name, f"its property {FORMAT} is {found}, not {self._form}")
        key = delta_values.key_of(properties)
        self._plan = columns.plan(self.name, delta_values.stored_kinds(schema, key), key, layouts, self.naming)
        self._alter(session)
        self._layouts = dict(layouts)

    def _first_properties(self, plan: ColumnPlan) -> dict[str, str]:
        now, key = time.time(), json.dumps([key.name for key in plan.keys])
        return {COLLECTED_AT: str(now), FORMAT: self._form, delta_values.KEY: key, **self._upkeep.properties(now)}

    def _created_columns(self, plan: ColumnPlan) -> str:
        kinds = {name: kind.removesuffix(AS_TEXT) for name, kind in plan.added.items()}
        listed = [f"{delta.quoted(name)} {delta.sql_type(kind)}" for name, kind in kinds.items()]
        listed += [f"{name} {kind}" for name, kind in OURS.items()]
        return ", ".join([*listed, *(f"{name} STRING" for name in key_columns(plan.keys) if name in HIDDEN)])

    def _change_columns(self, session: SparkSession) -> None:
        added = [f"{delta.quoted(name)} {delta.sql_type(kind)}" for name, kind in self._plan.added.items()]
        if added:
            session.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({', '.join(added)})")
        for name, kind in self._plan.widened.items():
            session.sql(f"ALTER TABLE {self.name} ALTER COLUMN {delta.quoted(name)} TYPE {delta.sql_type(kind)}")

    # ------------------------------------------------------------------ reading

    @delta.faults()
    def exists(self, batch: DataFrame) -> bool:
        return self.schema(batch.sparkSession) is not None

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
        return {wanted[row[0]]: target.stored_row(row[1:]) for row in rows}

    def rows(self, batch: DataFrame, selected: SelectedRows) -> Iterator[tuple[Key, StoredRow]]:
        parts = zip(key_columns(self._plan.keys), self._plan.keys, strict=True)
        keys = [text_of(F.col(delta.quoted(column)), key.kind) for column, key in parts]
        with delta.faults():
            found = batch.sparkSession.table(self.name).where(selected.where(delta.literal(selected.topic)))
            rows: Iterator[Row] = found.select(*keys, *STATE).toLocalIterator()
            for row in rows:
                yield tuple(row[: len(keys)]), target.stored_row(row[len(keys) :])

    # ------------------------------------------------------------------ writing

    def write(self, batch: DataFrame, writes: Sequence[Write]) -> set[Key]:
        if not writes:
            return set()
        decided = self._decided(batch.sparkSession, writes)
        if any(write.image for write in writes):
            found = self._with_fields(target.images(batch, *self.source_table))
            place = F.col("partition").alias("_partition"), F.col("offset").alias("_offset")
            decided = decided.join(
                found.select(*place, *self._values(found)),
                (F.col("item_partition") == F.col("_partition")) & (F.col("item_offset") == F.col("_offset")),
                "left",
            )
            lacks = F.col("item_partition").isNotNull() & F.col("_partition").isNull()
            said = F.raise_error(F.lit(f"{self.name}: {target.LACKS_IMAGES}"))
            decided = decided.withColumn("existed", F.when(lacks, said).otherwise(F.col("existed")))  # I8
        else:
            decided = self._without_images(decided)
        return self._merge(decided, len(writes), [write.key for write in writes])

    def write_all(self, batch: DataFrame, parts: Iterable[Sequence[Write]]) -> set[Key]:
        # In one statement, since each reads the whole table. Spark keeps what was decided, on disk if need be.
        session, conflicts = batch.sparkSession, set[Key]()
        staged = ((self._decided(session, part).coalesce(1).localCheckpoint(), len(part)) for part in parts if part)
        while several := list(islice(staged, _PARTS)):
            frames, sizes = zip(*several, strict=True)
            decided = self._without_images(reduce(DataFrame.unionAll, frames))
            conflicts |= self._merge(decided, sum(sizes))
        return conflicts

    def _decided(self, session: SparkSession, writes: Sequence[Write]) -> DataFrame:
        typed = dict.fromkeys(self._key_names(), "STRING")
        typed |= {"item_partition": "INT", "item_offset": "BIGINT", "keep": "BOOLEAN", "existed": "BOOLEAN"}
        typed |= {f"{prefix}{name}": OURS[name] for prefix in ("", "read") for name in STATE}
        rows = ((*write.key, *(write.image or (None, None)), *write.states) for write in writes)
        found = delta.local_frame(session, rows, typed).withColumn("now", F.current_timestamp())
        return self._with_key_types(found.withColumns({f"text_{name}": F.col(name) for name in self._key_names()}))

    def _without_images(self, decided: DataFrame) -> DataFrame:
        kinds = [*(each.kind for each in self._plan.row), ColumnKind.STRING]
        return decided.withColumns({f"c{n}": F.lit(None).cast(delta.sql_type(kind)) for n, kind in enumerate(kinds)})

    def _merge(self, decided: DataFrame, number: int, keys: Sequence[Key] = ()) -> set[Key]:
        """Write ``number`` rows, over the state that was read; return the others' keys. ``keys``: all, if known."""
        merge, session = self._into(decided, number, self._bounds(keys), STATE), decided.sparkSession
        kept = {name: f"CASE WHEN s.keep THEN t.{name} ELSE {merge.row[name]} END" for name in self._row_columns()}
        unchanged = " AND ".join(f"t.{name} <=> s.read{name}" for name in STATE)
        clauses = merge.update(f"s.existed AND {unchanged}", kept), merge.insert({}, "NOT s.existed")
        if self._run(session, merge.statement(*clauses)) == number:
            return set()
        # Another driver was faster for some keys: their rows are not the ones that were written.
        is_written = " AND ".join(f"t.{name} <=> s.{name}" for name in STATE)
        texts = ", ".join(f"s.text_{name}" for name in self._key_names())
        others = session.sql(
            f"SELECT {texts} FROM relay_batch s LEFT JOIN {self.name} t ON {self._same_key()} WHERE NOT ({is_written})"
        ).collect()
        return {tuple(other) for other in others}

    def _merge_of(self, found: TableSummary, *, of_snapshots: bool = False) -> BatchMerge:
        """Return the MERGE of what SQL can decide: the newest changes, or the rows of snapshots."""
        number, now = found.reads if of_snapshots else found.items, time.time_ns() // 1000
        rows = found.found.newest(found.layouts, found.size(number), now, of_snapshots=of_snapshots)
        rows = self._with_fields(rows)
        texts = [F.col("key_texts")[n] for n in range(len(self._plan.keys))]
        rows = rows.select(
            *(text.alias(f"{name}{n}") for name in ("k", "text_k") for n, text in enumerate(texts)),
            *self._values(rows),
            *target.OF_CHANGE,
            *("stem", "first", "number", "changes", "first_offset", "now", "as_of"),
        )
        return self._into(self._with_key_types(rows), number, found.bounds, target.OF_CHANGE, found.size(number))

    def _into(
        self, rows: DataFrame, number: int, bounds: Sequence[KeyBounds], ours: Iterable[str], size: int = 0
    ) -> BatchMerge:
        """Return the MERGE of ``number`` rows, which become ``relay_batch``. ``ours``: our columns that it sets."""
        (rows.coalesce(1) if number <= _ROWS_OF_A_FILE else rows).createOrReplaceTempView("relay_batch")
        keys = {delta.quoted(name): f"s.k{n}" for n, name in enumerate(key_columns(self._plan.keys))}
        row = {name: f"s.c{n}" for n, name in enumerate(self._row_columns())} | {name: f"s.{name}" for name in ours}
        row |= {"_relay_updated_at": "s.now"}
        on = f"{self._same_key()} AND {self._between(bounds)}"
        return BatchMerge(self.name, on, keys | delta_values.shown_keys(self._plan.keys), len(keys), row, size)

    def _with_fields(self, found: DataFrame) -> DataFrame:
        # As a map: two names may differ in case only.
        return found.withColumn("fields", delta_values.from_json(F.col("new"), "map<string,string>"))

    def _values(self, found: DataFrame) -> list[Column]:
        """Return the columns c0, c1, ... of the rows in the images."""
        values = delta_values.row_of(self._plan.row, self._layouts, is_ansi(found))
        return [value.alias(f"c{n}") for n, value in enumerate(values.values())]

    def _row_columns(self) -> list[str]:
        """Return the columns of a row's values, as SQL names them, in the order of `row_of`."""
        return [*(delta.quoted(column.name) for column in self._plan.row), UNFIT]

    def _key_names(self) -> list[str]:
        return [f"k{n}" for n in range(len(self._plan.keys))]

    def _with_key_types(self, frame: DataFrame) -> DataFrame:
        """Turn the text of the key columns k0, k1, ... into the types of the table."""
        for n, key in enumerate(self._plan.keys):
            frame = frame.withColumn(f"k{n}", value_of(F.col(f"k{n}"), key.kind, is_ansi(frame)))
        return frame

    def _same_key(self) -> str:
        return " AND ".join(f"t.{delta.quoted(name)} = s.k{n}" for n, name in enumerate(key_columns(self._plan.keys)))

    def _between(self, bounds: Sequence[KeyBounds]) -> str:
        """Return a condition on ``t`` that all keys meet, so that Delta skips files that have none of them."""
        ranges = ["true"]
        for key, found in zip(self._plan.keys, bounds, strict=False):
            if key.kind == ColumnKind.STRING:
                # In Python as in Spark, texts are in the order of their code points.
                ends = [delta.literal(text) for text in found.texts]
            elif key.kind in (ColumnKind.INT, ColumnKind.LONG) and found.numbers is not None:
                end = "L" if key.kind == ColumnKind.LONG else ""
                ends = [f"{number}{end}" for number in rounded(found.numbers, key.kind)]
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

    @delta.faults()
    def forget_places(self, batch: DataFrame, topic: str) -> None:
        batch.sparkSession.sql(
            f"UPDATE {self.name} SET {target.NO_PLACE} WHERE _relay_topic = {delta.literal(topic)}"
        ).collect()


def rounded(numbers: tuple[int, int], kind: str) -> tuple[int, int]:
    """Return wider bounds that are mostly the same for each batch: Spark compiles a query's code again for others."""
    least, greatest = numbers
    step = max(1, (1 << (greatest - least).bit_length()) // 4)
    end = 1 << (31 if kind == ColumnKind.INT else 63)
    return max(least // step * step, min(least, -end)), min(greatest // step * step + step - 1, max(greatest, end - 1))


def not_ours(name: str, why: str) -> TableFault:
    return TableFault(
        f"{name} is not a copy that this version can continue: {why}: rebuild it with `relay replay copy CONFIG "
        "--into PLACE --swap`, or keep the copy at another `copy.url`, with a new checkpoint, and fill it with `relay "
        "snapshot`"
    )

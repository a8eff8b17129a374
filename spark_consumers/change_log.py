"""The change log: each change appended once to one table, to be read with plain SQL.

If a batch comes again, offsets distinguish known changes from new ones; otherwise only changes that are not newer than
the newest in the log are looked up.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial, reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from relay.change import REDRIVEN, Images
from relay.config import Config, LogConfig
from relay.kafka.group_offsets import topic_ids
from relay.kafka.key_ranges import is_within, key_range
from relay.kafka.topics import connect
from relay.keyrange import KeyRange
from spark_consumers.applied_notes import AppliedNotes
from spark_consumers.gaps import LostChanges
from spark_consumers.log_contents import LogContents, Range
from spark_consumers.plain_tokens import PLAIN_END
from spark_consumers.records import DecodeStatus
from spark_consumers.sinks import delta
from spark_consumers.sinks.log_table import COLUMNS, GAP_COLUMNS, LogTable
from spark_consumers.sinks.places import log_target
from spark_consumers.table_consumer import BatchPlan, TableBatch, TableConsumer

# How far the clock of a change's copy may lag behind the change's own: a reshard's target has a separate clock.
_SLACK = 300 * 1_000_000  # microseconds
_FILES = 2  # files of one append, for each table and day
_ROWS_OF_A_FILE = 5_000  # rows up to which an append uses one task


def log_consumer(config: Config, log: LogConfig, keyrange: str | None = None) -> TableConsumer:
    """Return the consumer of the log at ``log.path``. A key range's has its own folder, checkpoint and group (I1)."""
    topics = sorted({*map(config.topic, config.tables)})
    wanted = None if keyrange is None else key_range(config, topics, keyrange, asked_as="--keyrange")
    target = log_target(config, log, "" if wanted is None else str(wanted))
    ids = cache(lambda: topic_ids(connect(config), config, topics))
    return TableConsumer(
        "log" if wanted is None else f"log.{wanted}",
        config,
        ChangeLog(target.open(writes=True), ids, wanted),
        notes=AppliedNotes({"": topics}, ids, target.change_note),
        at_most=50_000,
        apply_every=log.apply_every,
        delta_at=target.location,
    )


class ChangeLog:
    """The log in ``table``. ``topics``: returns the topics' ids. ``keyrange``: the range it keeps, if not all."""

    def __init__(
        self, table: LogTable, topics: Callable[[], Mapping[str, str]], keyrange: KeyRange | None = None
    ) -> None:
        self._table = table
        self._keyrange = keyrange
        self._topics = topics
        # None until it is read from the table, and again once another writer has appended.
        self._contents: LogContents | None = None

    def note_gaps(self, session: SparkSession, gaps: Sequence[LostChanges]) -> None:
        """Write gaps, each once, to the table beside the log, which then exists."""
        self._table.create_gaps(session)
        rows = [(gap.id, gap.source, gap.reason, datetime.fromtimestamp(gap.found_at, UTC), gap.record) for gap in gaps]
        session.createDataFrame(rows, GAP_COLUMNS).dropDuplicates(["id"]).createOrReplaceTempView("relay_gaps")
        # I9: the update is of no row. It keeps the statement from being an append, which Iceberg does not check.
        self._table.merge(
            session,
            f"MERGE INTO {self._table.gaps} t USING relay_gaps s ON t.id = s.id "
            "WHEN MATCHED AND t.source <> s.source THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        )

    def plan(self, given: TableBatch) -> BatchPlan:
        if self._keyrange is not None:
            given = replace(given, records=_within_range(given.records, self._keyrange))
        batch = given.records
        contents = self._contents = self._contents or self._read_contents(batch.sparkSession)
        # When it was first committed. Few tokens have an origin, and comparing a text's end is faster than a search.
        timestamp = F.get_json_object("token", "$.origin.timestamp").cast("bigint")
        origin = F.when(~F.endswith("token", F.lit(PLAIN_END)), timestamp)
        groups = (
            batch.groupBy("status", "source", "table")
            .agg(
                F.count("*").alias("rows"),
                # Two ids with one hash only cause a look through the changes. A set takes half as long as
                # count_distinct, where Spark exchanges all rows.
                F.size(F.collect_set(F.xxhash64("event_id"))).alias("distinct"),
                F.count(F.try_element_at("attributes", F.lit(REDRIVEN))).alias("redriven"),
                F.min(F.least(F.unix_micros("committed_at"), origin * 1_000_000)).alias("first"),
                F.max(F.unix_micros("committed_at")).alias("last"),
            )
            .collect()
        )
        statuses: Counter[str] = Counter()
        for group in groups:
            statuses[group["status"]] += group["rows"]
        changes = [group for group in groups if group["status"] == DecodeStatus.CHANGE]
        return BatchPlan(statuses, partial(self._write, given, changes, contents))

    def _write(
        self, given: TableBatch, groups: Sequence[Row], contents: LogContents, gaps: Sequence[LostChanges]
    ) -> dict[str, int]:
        """Write the changes of a batch. ``groups``: one row per table, as ``plan`` selects it."""
        rows = sum(group["rows"] for group in groups)
        applied = 0
        if gaps:
            self.note_gaps(given.records.sparkSession, gaps)
        if groups:
            changes = given.records.where(F.col("status") == DecodeStatus.CHANGE)
            changes = changes.withColumn("day", delta.utc_day(F.col("committed_at")))
            changes = changes.selectExpr(*map(delta.quoted, COLUMNS))
            newest = {_name(group): group["last"] for group in groups}
            applied = self._append(changes, groups, contents, contents.after(given.begin, given.end, newest), given)
            if redriven := [group for group in groups if group["redriven"]]:
                applied += self._complete_stubs(changes, redriven)
            self._table.upkeep.run(given.records.sparkSession)
        return {"applied": applied, "ignored": rows - applied}

    def _append(
        self, changes: DataFrame, groups: Sequence[Row], contents: LogContents, after: LogContents, given: TableBatch
    ) -> int:
        """Append the changes that the log lacks, and the log's new contents; return the number of changes."""
        applied: int = sum(group["rows"] for group in groups)
        present = contents.covered(given.begin, given.end)
        suspect = [group for group in groups if group["first"] <= contents.newest.get(_name(group), -1)]
        if present or suspect or any(group["distinct"] < group["rows"] for group in groups):
            changes = self._lacking(changes, present, suspect, contents).persist()
            applied = changes.count()
        self._contents = None  # read it again if the append fails
        try:
            if applied:
                self._table.append(changes.coalesce(1 if applied <= _ROWS_OF_A_FILE else _FILES), after)
        finally:
            changes.unpersist()
        # I7: a version that was not appended may be another consumer's next one.
        self._contents = after if applied else replace(after, version=contents.version)
        return applied

    def _lacking(
        self, changes: DataFrame, present: Sequence[Range], suspect: Sequence[Row], contents: LogContents
    ) -> DataFrame:
        """Return the changes that the log lacks. ``present``: offsets that it has. ``suspect``: tables to check."""
        if present:
            changes = changes.where(~reduce(or_, map(_within, present)))
        # If both a stub and the complete change come, use the stub: it has the place among the others.
        first = F.min_by(F.struct(*map(delta.quoted, COLUMNS)), "offset")
        changes = changes.groupBy("event_id").agg(first.alias("first")).select("first.*")
        if suspect:
            # Each copy of a change is at least as new as the change was where it was first committed. The conditions on
            # table, day and time only save Spark from reading the rest of the log.
            stored = changes.sparkSession.sql(f"SELECT event_id FROM {self._table.name} WHERE {_since(suspect)}")
            changes = changes.join(stored, "event_id", "left_anti").selectExpr(*map(delta.quoted, COLUMNS))
        return changes

    def _complete_stubs(self, changes: DataFrame, groups: Sequence[Row]) -> int:
        """Replace stubs by the complete changes, which have the same times and stay in the stubs' places."""
        complete = changes.where(F.col("images") != Images.OMITTED).dropDuplicates(["event_id"])
        complete.createOrReplaceTempView("relay_batch")
        names = [delta.quoted(name) for name in COLUMNS if name not in ("topic", "partition", "offset")]
        updates = ", ".join(f"t.{name} = s.{name}" for name in names)
        return self._table.merge(
            changes.sparkSession,
            f"""MERGE INTO {self._table.name} t USING relay_batch s
            ON t.event_id = s.event_id AND {_since(groups, "t.")}
            WHEN MATCHED AND t.images = {delta.literal(Images.OMITTED)} THEN UPDATE SET {updates}""",
        )

    def _read_contents(self, session: SparkSession) -> LogContents:
        """Create the table if it is missing, and return its contents."""
        self._table.create(session)
        contents = self._table.last_append(session)
        if contents is None:
            # The version is read before the newest changes: anything appended in between is then among them.
            version = self._table.first_version(session)
            newest = session.sql(
                f"SELECT source, `table`, max(unix_micros(committed_at)) AS last FROM {self._table.name} "
                "GROUP BY source, `table`"
            ).collect()
            contents = LogContents(version, newest={_name(row): row["last"] for row in newest})
        contents.keep_only(self._topics())
        return contents


def _since(groups: Sequence[Row], prefix: str = "") -> str:
    """Return the condition of rows that may be earlier copies of the changes in ``groups``. Days are in UTC."""
    tables = ", ".join(delta.literal(name) for name in sorted({group["table"] for group in groups}))
    first = min(group["first"] for group in groups) - _SLACK
    day = (datetime(1970, 1, 1) + timedelta(microseconds=first)).date()
    where = f"{prefix}`table` IN ({tables}) AND {prefix}day >= DATE'{day}'"
    return f"{where} AND {prefix}committed_at >= timestamp_micros({first})"


def _within(found: Range) -> Column:
    topic, partition, start, stop = found
    is_partition = (F.col("topic") == topic) & (F.col("partition") == partition)
    return is_partition & (F.col("offset") >= start) & (F.col("offset") < stop)


def _within_range(records: DataFrame, keyrange: KeyRange) -> DataFrame:
    """Return the records without changes of rows outside of a range. Raises what `is_within` does."""
    found, start, end = F.col("keyspace_id"), F.lit(keyrange.start), F.lit(keyrange.end)
    is_of_row = (F.col("status") == DecodeStatus.CHANGE) & F.col("key").isNotNull()
    without = records.where(is_of_row & found.isNull()).select("token_shard", "table").distinct().collect()
    shards = [shard for shard, table in without if is_within(keyrange, None, shard, table)]
    by_id = (found >= start) & ((found < end) if keyrange.end else F.lit(True))
    return records.where(~is_of_row | F.coalesce(by_id, F.coalesce("token_shard", F.lit("")).isin(shards)))


def _name(group: Row) -> str:
    return f"{group['source']}/{group['table']}"

"""The change log: each change appended once to one Delta table, to be read with plain SQL.

The topic has each change once, so a batch is appended as it is. If a batch comes again, offsets distinguish known
changes from new ones; otherwise times do: only changes that are not newer than the newest in the log are looked up.

Users query the columns, which ``deploy/docs/reference/tables.md`` lists: add new ones at the end.
"""

import time
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
from relay.errors import Unavailable
from relay.kafka.group_offsets import topic_ids
from relay.kafka.key_ranges import is_within, key_range
from relay.kafka.topics import connect
from relay.keyrange import KeyRange
from spark_consumers.applied_notes import AppliedNotes
from spark_consumers.gaps import LostChanges
from spark_consumers.locations import spark_path
from spark_consumers.log_contents import LogContents, Range
from spark_consumers.plain_tokens import PLAIN_END
from spark_consumers.records import DecodeStatus
from spark_consumers.sinks import delta
from spark_consumers.sinks.delta_target import DeltaPlace
from spark_consumers.sinks.upkeep import Schedule, TableUpkeep
from spark_consumers.table_consumer import BatchPlan, TableBatch, TableConsumer

_COLUMNS = {
    # Columns for filters come first: Delta keeps their minima and maxima, which takes time.
    "day": "DATE",
    "source": "STRING",
    "table": "STRING",
    "committed_at": "TIMESTAMP",
    "event_id": "STRING",
    "operation": "STRING",
    "key": "STRING",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "token_timestamp": "BIGINT",
    "token_shard": "STRING",
    "token_position": "STRING",
    "token": "STRING",
    "transaction_id": "STRING",
    "transaction_order": "INT",
    "transaction_last": "BOOLEAN",
    "snapshot_id": "STRING",
    "snapshot_as_of": "BIGINT",
    "images": "STRING",
    "relayed_at": "TIMESTAMP",
    "resume_timestamp": "BIGINT",
    "keyspace_id": "BINARY",
    "attributes": "MAP<STRING, STRING>",
    "old": "STRING",
    "new": "STRING",
}
_PARTITIONED_BY = ("table", "day")
_PLACE = ("topic", "partition", "offset")
_ALL_DIFFERENT = ("event_id", "token_position", "token", "old", "new")
_LAST_WITH_BOUNDS = "token_timestamp"

# How far the clock of a change's copy may lag behind the change's own: a reshard's target has a separate clock.
_SLACK = 300 * 1_000_000  # microseconds
_COMMITS = (3, 50)  # steps for finding the last append, one after another; optimise, vacuum or delete may come after it
_FILES = 2  # files of one append, for each table and day
_ROWS_OF_A_FILE = 5_000  # rows up to which an append uses one task


def log_consumer(config: Config, log: LogConfig, keyrange: str | None = None) -> TableConsumer:
    """Return the consumer of the log at ``log.path``. A key range's has its own folder, checkpoint and group (I1)."""
    topics = sorted({*map(config.topic, config.tables)})
    wanted = None if keyrange is None else key_range(config, topics, keyrange, asked_as="--keyrange")
    name, path = ("log", log.path) if wanted is None else (f"log.{wanted}", f"{log.path.rstrip('/')}.{wanted}")
    schedule = Schedule(log.maintain_every, log.keep_versions)
    ids = cache(lambda: topic_ids(connect(config), config, topics))
    rule = ChangeLog(spark_path(path), ids, schedule, wanted)
    return TableConsumer(
        name,
        config,
        rule,
        notes=AppliedNotes({"": topics}, ids, DeltaPlace(path).change_note),
        at_most=50_000,
        apply_every=log.apply_every,
        delta_at=path,
    )


class ChangeLog:
    """The Delta table at ``path``. ``topics``: returns the topics' ids. ``keyrange``: of its changes, if not all."""

    def __init__(
        self, path: str, topics: Callable[[], Mapping[str, str]], schedule: Schedule, keyrange: KeyRange | None = None
    ) -> None:
        self._path = path
        self._keyrange = keyrange
        self._upkeep = TableUpkeep(delta.table(path), schedule)
        self._topics = topics
        # None until it is read from the table, and again once another writer has appended.
        self._contents: LogContents | None = None

    def note_gaps(self, session: SparkSession, gaps: Sequence[LostChanges]) -> None:
        """Write gaps, each once, to the table beside the log, which then exists."""
        _create(session, self._path, self._upkeep.properties(time.time()))
        table = delta.table(f"{self._path.rstrip('/')}_gaps")
        columns = "id STRING, source STRING, reason STRING, found_at TIMESTAMP, record STRING"
        session.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING DELTA")
        rows = [(gap.id, gap.source, gap.reason, datetime.fromtimestamp(gap.found_at, UTC), gap.record) for gap in gaps]
        session.createDataFrame(rows, columns).dropDuplicates(["id"]).createOrReplaceTempView("relay_gaps")
        delta.merge(session, f"MERGE INTO {table} t USING relay_gaps s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")

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
            changes = (
                given.records.where(F.col("status") == DecodeStatus.CHANGE)
                .withColumn("day", delta.utc_day(F.col("committed_at")))
                .selectExpr(*map(delta.quoted, _COLUMNS))
            )
            newest = {_name(group): group["last"] for group in groups}
            applied = self._append(changes, groups, contents, contents.after(given.begin, given.end, newest), given)
            redriven = [group for group in groups if group["redriven"]]
            if redriven:
                applied += self._complete_stubs(changes, redriven)
            self._upkeep.run(given.records.sparkSession)
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
                self._commit(changes.coalesce(1 if applied <= _ROWS_OF_A_FILE else _FILES), after)
        finally:
            changes.unpersist()
        self._contents = after
        return applied

    def _lacking(
        self, changes: DataFrame, present: Sequence[Range], suspect: Sequence[Row], contents: LogContents
    ) -> DataFrame:
        """Return the changes that the log lacks. ``present``: offsets that it has. ``suspect``: tables to check."""
        if present:
            changes = changes.where(~reduce(or_, map(_within, present)))
        # If both a stub and the complete change come, use the stub: it has the place among the others.
        first = F.min_by(F.struct(*map(delta.quoted, _COLUMNS)), "offset")
        changes = changes.groupBy("event_id").agg(first.alias("first")).select("first.*")
        if suspect:
            # Each copy of a change is at least as new as the change was where it was first committed. The conditions on
            # table, day and time only save Spark from reading the rest of the log.
            stored = changes.sparkSession.sql(f"SELECT event_id FROM {delta.table(self._path)} WHERE {_since(suspect)}")
            changes = changes.join(stored, "event_id", "left_anti").selectExpr(*map(delta.quoted, _COLUMNS))
        return changes

    def _commit(self, changes: DataFrame, after: LogContents) -> None:
        """Append in one commit, which records the new contents. Raises ``Unavailable`` if another writer was faster.

        Delta skips a transaction with an earlier version, and fails one that runs beside another of its application. A
        skipped transaction leaves no table version in the session, and each query has its own session.
        """
        session = changes.sparkSession
        session.conf.unset(_COMMITTED)
        changes.write.format("delta").mode("append").options(
            txnAppId=_APPLICATION, txnVersion=str(after.version), userMetadata=after.to_json()
        ).save(self._path)
        if session.conf.get(_COMMITTED, None) is None:
            raise Unavailable(f"another consumer is appending to the change log at {self._path}: stop it")

    def _complete_stubs(self, changes: DataFrame, groups: Sequence[Row]) -> int:
        """Replace stubs by the complete changes, which have the same times and stay in the stubs' places."""
        changes.where(F.col("images") != Images.OMITTED).dropDuplicates(["event_id"]).createOrReplaceTempView(
            "relay_batch"
        )
        updates = ", ".join(
            f"t.{name} = s.{name}" for name in map(delta.quoted, [each for each in _COLUMNS if each not in _PLACE])
        )
        return delta.merge(
            changes.sparkSession,
            f"""MERGE INTO {delta.table(self._path)} t USING relay_batch s
            ON t.event_id = s.event_id AND {_since(groups, "t.")}
            WHEN MATCHED AND t.images = {delta.literal(Images.OMITTED)} THEN UPDATE SET {updates}""",
        ).rows

    def _read_contents(self, session: SparkSession) -> LogContents:
        """Create the table if it is missing, and return its contents."""
        _create(session, self._path, self._upkeep.properties(time.time()))
        contents = _last_append(session, self._path)
        if contents is None:
            # I7: another writer to the same table appends with the same version. The version is read before the newest
            # changes: anything appended in between is then among them.
            version = _time_of_last_commit(session, self._path)
            newest = session.sql(
                f"SELECT source, `table`, max(unix_micros(committed_at)) AS last FROM {delta.table(self._path)} "
                "GROUP BY source, `table`"
            ).collect()
            contents = LogContents(version, newest={_name(row): row["last"] for row in newest})
        contents.keep_only(self._topics())
        return contents


_APPLICATION = "relay.log"
_COMMITTED = "spark.databricks.delta.lastCommitVersionInSession"


def _last_append(session: SparkSession, path: str) -> LogContents | None:
    """Return the contents that the last append recorded, or None if that is no longer known."""
    for number in _COMMITS:
        for commit in session.sql(f"DESCRIBE HISTORY {delta.table(path)} LIMIT {number}").collect():
            if commit["operation"] == "RESTORE":
                return None
            contents = LogContents.from_json(commit["userMetadata"])
            if contents is not None:
                return contents
    return None


def _time_of_last_commit(session: SparkSession, path: str) -> int:
    """Return the time in milliseconds. No earlier append has a greater version: each added one to such a time."""
    history = session.sql(f"DESCRIBE HISTORY {delta.table(path)} LIMIT 1")
    milliseconds: int = history.select(F.unix_millis("timestamp")).collect()[0][0]
    return milliseconds


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


def _create(session: SparkSession, path: str, upkeep: Mapping[str, str]) -> None:
    columns = ", ".join(f"{delta.quoted(name)} {kind}" for name, kind in _COLUMNS.items())
    written = [name for name in _COLUMNS if name not in _PARTITIONED_BY]
    properties = {
        "delta.checkpointInterval": "50",
        "delta.dataSkippingNumIndexedCols": str(written.index(_LAST_WITH_BOUNDS) + 1),
        **delta.without_dictionaries(_ALL_DIFFERENT),
        **upkeep,
    }
    session.sql(
        f"CREATE TABLE IF NOT EXISTS {delta.table(path)} ({columns}) USING DELTA "
        f"PARTITIONED BY ({', '.join(map(delta.quoted, _PARTITIONED_BY))}) "
        f"TBLPROPERTIES ({delta.assigned(properties)})"
    )

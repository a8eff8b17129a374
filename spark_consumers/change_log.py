"""The change log: each change appended once to one Delta table, to be read with plain SQL.

Users query the columns, which the README of the consumers lists: add new ones at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from relay.change import REDRIVEN, Images
from relay.config import Config, LogConfig
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.sinks import delta
from spark_consumers.table_consumer import BatchPlan, TableConsumer

_COLUMNS = {
    # The columns that queries filter on come first: Delta keeps minima and maxima of the first columns.
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

# Copies of a change have the same event id and normally the same commit time. After a reshard their commit times may
# differ by as much as the reshard's replication lagged.
_COMMIT_TIME_SLACK = 3600 * 1_000_000  # microseconds


def log_consumer(config: Config, log: LogConfig) -> TableConsumer:
    """Return the consumer that appends changes to the log at ``log.path``."""
    rule = ChangeLog(delta.spark_path(log.path))
    return TableConsumer("log", config, rule.plan, at_most=50_000, delta_at=log.path)


class ChangeLog:
    """The Delta table at ``path``, created by the first write."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_created = False

    def plan(self, batch: DataFrame, layouts: Sequence[Layout]) -> BatchPlan:
        """Plan to append the changes that the log lacks, and to complete its stubs."""
        committed = F.unix_micros("committed_at")
        groups = (
            batch.groupBy("status", "table")
            .agg(
                F.count("*").alias("rows"),
                F.count(F.try_element_at("attributes", F.lit(REDRIVEN))).alias("redriven"),
                F.min(committed).alias("first"),
                F.max(committed).alias("last"),
            )
            .collect()
        )
        statuses: Counter[str] = Counter()
        for group in groups:
            statuses[group["status"]] += group["rows"]
        changes = [group for group in groups if group["status"] == DecodeStatus.CHANGE]
        return BatchPlan(statuses, partial(self._write, batch, changes))

    def _write(self, batch: DataFrame, groups: Sequence[Row]) -> dict[str, int]:
        """Write the changes of a batch. ``groups``: one row for each table, as ``plan`` selects it."""
        applied = 0
        if groups:
            times = min(group["first"] for group in groups), max(group["last"] for group in groups)
            tables = {group["table"] for group in groups}
            changes = (
                batch.where(F.col("status") == DecodeStatus.CHANGE)
                .withColumn("day", F.to_date("committed_at"))
                .selectExpr(*map(delta.quoted, _COLUMNS))
            )
            applied = self._append(changes, tables, *times)
            if any(group["redriven"] for group in groups):
                applied += self._complete_stubs(changes, tables, *times)
        return {"applied": applied, "ignored": sum(group["rows"] for group in groups) - applied}

    def _append(self, changes: DataFrame, tables: set[str], first: int, last: int) -> int:
        """Append the changes that the log lacks. ``first``, ``last``: commit times, in microseconds."""
        if not self._is_created:
            _create(changes.sparkSession, self._path)
            self._is_created = True
        names = ", ".join(map(delta.quoted, _COLUMNS))
        values = ", ".join(f"s.{delta.quoted(name)}" for name in _COLUMNS)
        return self._merge(changes, tables, first, last, f"NOT MATCHED THEN INSERT ({names}) VALUES ({values})")

    def _complete_stubs(self, changes: DataFrame, tables: set[str], first: int, last: int) -> int:
        """Replace stubs by the complete changes. A MERGE of its own, since an append alone is much cheaper."""
        complete = changes.where(F.col("images") != Images.OMITTED)
        updates = ", ".join(f"t.{name} = s.{name}" for name in map(delta.quoted, _COLUMNS))
        stub = delta.literal(Images.OMITTED)
        return self._merge(complete, tables, first, last, f"MATCHED AND t.images = {stub} THEN UPDATE SET {updates}")

    def _merge(self, changes: DataFrame, tables: set[str], first: int, last: int, action: str) -> int:
        changes.dropDuplicates(["event_id"]).createOrReplaceTempView("relay_batch")
        since = f"timestamp_micros({first - _COMMIT_TIME_SLACK})"
        until = f"timestamp_micros({last + _COMMIT_TIME_SLACK})"
        return delta.merge(
            changes.sparkSession,
            # The conditions on table, day and time only keep Delta from reading the rest of the log.
            f"""MERGE INTO {delta.table(self._path)} t USING relay_batch s
            ON t.event_id = s.event_id AND t.`table` IN ({", ".join(map(delta.literal, sorted(tables)))})
            AND t.day BETWEEN to_date({since}) AND to_date({until}) AND t.committed_at BETWEEN {since} AND {until}
            WHEN {action}""",
        )


def _create(session: SparkSession, path: str) -> None:
    columns = ", ".join(f"{delta.quoted(name)} {kind}" for name, kind in _COLUMNS.items())
    session.sql(
        f"CREATE TABLE IF NOT EXISTS {delta.table(path)} ({columns}) USING DELTA "
        f"PARTITIONED BY ({', '.join(map(delta.quoted, _PARTITIONED_BY))}) "
        f"TBLPROPERTIES ('delta.checkpointInterval' = '50')"
    )

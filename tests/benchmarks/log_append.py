"""Appends changes to the log, against a plain append of the same decoded rows to a Delta table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_consumers.change_log import ChangeLog
from spark_consumers.sinks.delta_log import DeltaLog
from spark_consumers.sinks.log_table import LogTable
from spark_consumers.table_consumer import TableBatch
from tests.benchmarks.copy_delta import NEVER
from tests.benchmarks.decoded import TOPIC, Batches, in_batches, result, spark
from tests.benchmarks.harness import Benchmark, in_turn
from tests.spark_consumers.lake_config import lake_config

ROWS = 50_000
ROUNDS = 4


def run() -> Benchmark:
    with spark() as session, tempfile.TemporaryDirectory() as folder:
        names = {name: f"delta.`{folder}/{name}`" for name in ("plain", "again")}

        def append(rows: DataFrame, name: str) -> None:
            rows.write.format("delta").partitionBy("table", "day").mode("append").save(f"{folder}/{name}")

        return compared("log_append", session, DeltaLog(f"{folder}/ours", lake_config(NEVER, NEVER)), names, append)


def compared(
    title: str,
    session: SparkSession,
    table: LogTable,
    names: Mapping[str, str],
    append: Callable[[DataFrame, str], None],
) -> Benchmark:
    """Compare the log in ``table`` with what ``append`` does to two tables. ``names``: theirs in SQL."""
    log = ChangeLog(table, lambda: {TOPIC: "id"})
    batches = Batches(session, range(10 * ROWS), ROWS)
    figures = in_turn(
        ROUNDS,
        in_batches(
            batches,
            {
                "ours": lambda batch: log.plan(batch).write([]),
                "plain": lambda batch: append(_rows(batch), "plain"),
                "again": lambda batch: append(_rows(batch), "again"),
            },
        ),
    )
    event_ids = session.table(table.name).select("event_id").distinct()
    seen = event_ids.join(session.table(names["plain"]), "event_id").count()
    return result(
        title,
        figures,
        expected=ROWS * (ROUNDS + 1),
        seen=seen,
        note=f"batches of {ROWS} changes, decoded before; median of {ROUNDS}",
    )


def _rows(batch: TableBatch) -> DataFrame:
    rows = batch.records.drop("status", "layout", "value", "key_texts").withColumn("day", F.to_date("committed_at"))
    return rows.coalesce(2)

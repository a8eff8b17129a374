"""Appends changes to the log, against a plain append of the same decoded rows to a Delta table."""

from __future__ import annotations

import tempfile

from pyspark.sql import functions as F

from spark_consumers.change_log import ChangeLog
from spark_consumers.sinks.upkeep import Schedule
from spark_consumers.table_consumer import TableBatch
from tests.benchmarks.copy_delta import NEVER
from tests.benchmarks.decoded import TOPIC, Batches, in_batches, result, spark
from tests.benchmarks.harness import Benchmark, in_turn

ROWS = 50_000
ROUNDS = 4


def run() -> Benchmark:
    with spark() as session, tempfile.TemporaryDirectory() as folder:
        log = ChangeLog(f"{folder}/ours", lambda: {TOPIC: "id"}, Schedule(NEVER, NEVER))
        batches = Batches(session, range(10 * ROWS), ROWS)
        figures = in_turn(
            ROUNDS,
            in_batches(
                batches,
                {
                    "ours": lambda batch: log.plan(batch).write([]),
                    "plain": lambda batch: _append(batch, f"{folder}/plain"),
                    "again": lambda batch: _append(batch, f"{folder}/again"),
                },
            ),
        )
        event_ids = session.read.format("delta").load(f"{folder}/ours").select("event_id").distinct()
        seen = event_ids.join(session.read.format("delta").load(f"{folder}/plain"), "event_id").count()
    return result(
        "log_append",
        figures,
        expected=ROWS * (ROUNDS + 1),
        seen=seen,
        note=f"batches of {ROWS} changes, decoded before; median of {ROUNDS}",
    )


def _append(batch: TableBatch, path: str) -> None:
    rows = batch.records.drop("status", "layout", "value", "key_texts").withColumn("day", F.to_date("committed_at"))
    rows.coalesce(2).write.format("delta").partitionBy("table", "day").mode("append").save(path)

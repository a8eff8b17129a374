"""Keeps a copy in Delta up to date, against a plain MERGE of the same decoded rows, which keeps no tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_consumers.copy import TableCopies
from spark_consumers.sinks import delta
from spark_consumers.sinks.delta_copy import DeltaTable
from spark_consumers.table_consumer import TableBatch
from tests.benchmarks.decoded import Batches, in_batches, result, spark
from tests.benchmarks.harness import Benchmark, in_turn, median
from tests.spark_consumers.lake_config import lake_config

ITEMS = 150_000
ROUNDS = 4
NEVER = 1e9  # seconds


def copies(folder: str) -> TableCopies:
    return TableCopies(partial(DeltaTable, folder, lake_config(NEVER, NEVER)), NEVER)


@dataclass(frozen=True)
class Lake:
    """Where the copy and the tables of the plain jobs are. ``names``: theirs in SQL, by ours, plain, again, guarded.

    ``of_plain_jobs``: what follows the columns where their tables are created. ``title``: the benchmark's.
    """

    title: str
    copies: TableCopies
    names: Mapping[str, str]
    of_plain_jobs: str


def apply(copy: TableCopies, batch: TableBatch) -> None:
    plan = copy.plan(batch)
    plan.write([])
    plan.close()


DELTA = "USING DELTA TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"


def create(session: SparkSession, name: str, made: str = DELTA, more: str = "") -> None:
    """Create the table of the plain job that has this name in SQL."""
    session.sql(f"CREATE TABLE {name} (customer string, order_id string, item string{more}) {made}")


def run() -> Benchmark:
    with spark() as session, tempfile.TemporaryDirectory() as folder:
        places = {"ours": "ours/orders/orders", "plain": "plain", "again": "again", "guarded": "guarded"}
        names = {name: delta.table(f"{folder}/{place}") for name, place in places.items()}
        return compared(session, Lake("copy_delta", copies(f"{folder}/ours"), names, DELTA))


def compared(session: SparkSession, lake: Lake) -> Benchmark:
    """Return what a batch costs in the copy, and in plain jobs."""
    names = lake.names
    for name in ("plain", "again", "guarded"):
        create(session, names[name], lake.of_plain_jobs, _STATE if name == "guarded" else "")
    batches = Batches(session, range(ITEMS))
    figures = in_turn(
        ROUNDS,
        in_batches(
            batches,
            {
                "ours": lambda batch: apply(lake.copies, batch),
                "plain": lambda batch: merge(batch, names["plain"]),
                "again": lambda batch: merge(batch, names["again"]),
                "guarded": lambda batch: _guarded(batch, names["guarded"]),
            },
        ),
    )
    key = ["customer", "order_id", "item"]
    seen = session.table(names["ours"]).join(session.table(names["plain"]), key).count()
    return result(
        lake.title,
        figures,
        expected=len(batches.written),
        seen=seen,
        note=f"batches of 50,000 changes, of random items out of {ITEMS}, decoded before; median of {ROUNDS}; "
        f"the plain job with a guard: {median(figures['guarded']):.0f}",
    )


def merge(batch: TableBatch, name: str) -> None:
    key = F.col("key_texts")
    batch.records.select(
        key[0].alias("customer"), key[1].alias("order_id"), F.col("new").alias("item")
    ).createOrReplaceTempView("plain_batch")
    batch.records.sparkSession.sql(
        f"MERGE INTO {name} t USING plain_batch s ON t.customer = s.customer AND t.order_id = s.order_id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()


_STATE = ", token string, event_id string, topic string, part int, place bigint, deleted boolean, updated_at timestamp"


def _guarded(batch: TableBatch, name: str) -> None:
    """Merge what a plain job needs to tell an older change from a newer one, and to delete."""
    key = F.col("key_texts")
    read = ("token", "event_id", "topic", F.col("partition").alias("part"), F.col("offset").alias("place"))
    state = (F.lit(False).alias("deleted"), F.current_timestamp().alias("updated_at"))
    batch.records.select(
        key[0].alias("customer"), key[1].alias("order_id"), F.col("new").alias("item"), *read, *state
    ).createOrReplaceTempView("guarded_batch")
    number = "substr({0}.token, instr({0}.token, ','))"
    batch.records.sparkSession.sql(
        f"MERGE INTO {name} t USING guarded_batch s "
        "ON t.customer = s.customer AND t.order_id = s.order_id "
        f"WHEN MATCHED AND {number.format('t')} < {number.format('s')} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()

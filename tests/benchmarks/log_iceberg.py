"""Appends changes to the log in Iceberg, against a plain append of the same decoded rows, which is not guarded."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_consumers.sinks.iceberg_log import IcebergLog
from tests.benchmarks.copy_delta import NEVER
from tests.benchmarks.decoded import spark
from tests.benchmarks.harness import Benchmark
from tests.benchmarks.log_append import compared
from tests.spark_consumers.iceberg_catalog import settings
from tests.spark_consumers.lake_config import lake_config


def run() -> Benchmark:
    with tempfile.TemporaryDirectory() as folder, spark(settings(Path(folder))) as session:
        names = {name: f"lake.plain.{name}" for name in ("plain", "again")}
        session.sql("CREATE NAMESPACE lake.plain")
        made: set[str] = set()

        def append(rows: DataFrame, name: str) -> None:
            writer = rows.writeTo(names[name])
            if name in made:
                writer.append()
                return
            made.add(name)
            writer.using("iceberg").partitionedBy(F.col("table"), F.col("day")).create()

        table = IcebergLog("lake", "`lake`.`ours`", "log", "ours", lake_config(NEVER, NEVER))
        return compared("log_iceberg", session, table, names, append)

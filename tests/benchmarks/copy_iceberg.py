"""Keeps a copy in Iceberg up to date, against a plain MERGE of the same decoded rows, which keeps no tokens."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from spark_consumers.copy import TableCopies
from spark_consumers.sinks.iceberg_copy import IcebergTable
from spark_consumers.sinks.iceberg_target import IcebergPlace
from tests.benchmarks.copy_delta import NEVER, Lake, compared
from tests.benchmarks.decoded import spark
from tests.benchmarks.harness import Benchmark
from tests.spark_consumers.iceberg_catalog import settings
from tests.spark_consumers.lake_config import lake_config

PLAIN = "USING ICEBERG TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')"


def run() -> Benchmark:
    with tempfile.TemporaryDirectory() as folder, spark(settings(Path(folder))) as session:
        place = IcebergPlace("lake")
        names = {name: f"lake.plain.{name}" for name in ("plain", "again", "guarded")}
        session.sql("CREATE NAMESPACE lake.plain")
        copies = TableCopies(partial(IcebergTable, place, lake_config(NEVER, NEVER)), NEVER)
        names["ours"] = place.shown("orders", "orders")
        return compared(session, Lake("copy_iceberg", copies, names, PLAIN))

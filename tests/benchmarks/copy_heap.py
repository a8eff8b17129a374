"""Measures what the driver of a copy keeps of each batch, of a table of a hundred columns.

The heap is read after a full collection. The yardstick is the same driver after its first batches: a ratio near one
means that the heap does not grow with the number of batches.
"""

from __future__ import annotations

import gc
import tempfile
import time

from pyspark.sql import SparkSession

from spark_consumers.sinks import delta
from spark_consumers.table_consumer import TableBatch
from tests.benchmarks.copy_delta import apply, copies
from tests.benchmarks.decoded import spark
from tests.benchmarks.harness import Benchmark
from tests.spark_consumers.batches import change, in_spark, layout

BATCHES = 200
FIRST = 50  # until then Spark fills what it keeps of the newest queries, jobs and compiled classes
ROWS = 50
COLUMNS = {f"column_{number}": "string" for number in range(100)}
LAYOUT = layout({"id": "string"}, {"id": "string", **COLUMNS})


def run() -> Benchmark:
    with spark() as session, tempfile.TemporaryDirectory() as folder:
        copy = copies(folder)
        heaps = {}
        for number in range(BATCHES):
            batch = _batch(session, number)
            apply(copy, batch)
            batch.records.unpersist()
            if number + 1 in (FIRST, (FIRST + BATCHES) // 2, BATCHES):
                heaps[number + 1] = _heap(session)
        rows = session.sql(f"SELECT count(*) FROM {delta.table(f'{folder}/shop/orders')}").collect()[0][0]
    early, middle, late = heaps.values()
    return Benchmark(
        name="copy_heap",
        figure=late,
        yardstick=early,
        unit="MB of the driver's heap in use after a full collection",
        ratio=late / early,
        expected=BATCHES * ROWS,
        seen=rows,
        aa=middle / early,
        note=f"{BATCHES} batches of {ROWS} rows of {len(COLUMNS)} columns, against {FIRST}; halfway {middle:.1f} MB",
    )


def _batch(session: SparkSession, number: int) -> TableBatch:
    changes = [
        change(place, [f"{place}"], {"id": f"{place}", **{column: f"{column} of {place}" for column in COLUMNS}})
        for place in range(number * ROWS, (number + 1) * ROWS)
    ]
    return TableBatch(in_spark(session, changes), [LAYOUT], {}, {})


def _heap(session: SparkSession) -> float:
    gc.collect()  # Python's handles keep objects of Java
    jvm = session.sparkContext._jvm
    assert jvm is not None
    for _ in range(3):
        jvm.java.lang.System.gc()
        time.sleep(1.0)  # Spark's cleaner frees what the collection has found
    runtime = jvm.java.lang.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / (1 << 20)

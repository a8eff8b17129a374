"""Decodes a batch to the columns of a change, against Spark's bare ``from_avro`` on values without their headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import from_avro

from relay.avro.framing import SINGLE_OBJECT_HEADER, fingerprint, single_object_header
from relay.avro.schema import change_schema
from spark_consumers.decode import Decoder
from tests.benchmarks.changes import TABLE, finished
from tests.benchmarks.decoded import SCHEMA, TOPIC, changes_of, cpu_seconds, frame, result, spark, writer_of
from tests.benchmarks.harness import Benchmark, in_turn

ROWS = 50_000
ROUNDS = 4
SCHEMAS = (1, 10, 200)


def run() -> list[Benchmark]:
    with spark() as session:
        return [_run(session, number) for number in SCHEMAS]


def _run(session: SparkSession, number: int) -> Benchmark:
    tables = [TABLE] + [replace(TABLE, table=f"orders_{each}") for each in range(1, number)]
    schemas = {single_object_header(fingerprint(schema)): schema for schema in map(change_schema, tables)}
    records: list[tuple[object, ...]] = []
    changes = changes_of(range(ROWS), 0)
    for at, table in enumerate(tables):
        own = [replace(one, table=table.table) for one in changes[at::number]]
        records += [(TOPIC, at % 2, len(records), bytearray(value)) for value, *_ in finished(writer_of(table), own)]
    framed = frame(session, records).persist()
    stripped = framed.selectExpr(f"substring(value, {SINGLE_OBJECT_HEADER + 1}) AS value").persist()
    decoded = Decoder(schemas, registry=False, gaps="bench.gaps").changes(framed)
    bare = stripped.select(from_avro("value", json.dumps(SCHEMA)).alias("d"))
    seen = decoded.where("status = 'change'").count()
    stripped.count()
    figures = in_turn(ROUNDS, {"ours": _decoded(decoded), "plain": _decoded(bare), "again": _decoded(bare)})
    framed.unpersist()
    stripped.unpersist()
    return result(
        f"decode_{number}",
        figures,
        expected=ROWS,
        seen=seen,
        note=f"batches of {ROWS} records with {number} schemas; the yardstick has one; median of {ROUNDS}",
    )


def _decoded(changes: DataFrame) -> Callable[[], float]:
    """Return a function that makes every column of every row, and returns rows per CPU second."""
    write = changes.write.format("noop").mode("overwrite")
    return lambda: ROWS / cpu_seconds(write.save)

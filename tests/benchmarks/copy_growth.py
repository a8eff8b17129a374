"""What a change costs in a copy of a million rows in Delta, against one of a hundred thousand.

And what it costs in both sizes by a plain MERGE without tokens, to tell how much of the growth is Delta's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import SparkSession

from spark_consumers.copy import TableCopies
from spark_consumers.sinks import delta
from spark_consumers.sinks.target import STATE
from spark_consumers.table_consumer import TableBatch
from tests.benchmarks.copy_delta import apply, copies, create, merge
from tests.benchmarks.decoded import Batches, in_batches, spark
from tests.benchmarks.harness import Benchmark, in_turn, median

SMALL = 100_000
LARGE = 1_000_000
ROWS = 10_000  # of a batch
ROUNDS = 4


def run() -> list[Benchmark]:
    return [
        _run("copy_growth", {name: range(rows) for name, rows in _TABLES.items()}, "random items"),
        _run(
            "copy_growth_recent",
            {name: range(rows - 2 * ROWS, rows) for name, rows in _TABLES.items()},
            "items among the last 2 % to 20 %",
        ),
        _run(
            "copy_growth_new",
            {name: range(rows // 50, rows + rows // 50) for name, rows in _TABLES.items()},
            "random items, of which 2 % are new",
        ),
    ]


_TABLES = {"small": SMALL, "again": SMALL, "large": LARGE}


def _run(name: str, items: Mapping[str, range], which: str) -> Benchmark:
    with spark() as session, tempfile.TemporaryDirectory() as folder:
        tables = {table: copies(f"{folder}/{table}") for table in _TABLES}
        batches = {table: Batches(session, items[table], ROWS) for table in _TABLES}
        for table, rows in _TABLES.items():
            first = batches[table].get(0)
            _apply(tables[table])(first)
            _fill(session, delta.table(f"{folder}/{table}/orders/orders/_relay_rows"), rows)
            batches[table].written.clear()
        contenders: dict[str, Callable[[], float]] = {}
        for table, rows in _TABLES.items():
            plain = delta.table(f"{folder}/plain_{table}")
            create(session, plain)
            _fill_plain(session, plain, rows)
            contenders |= in_batches(
                batches[table], {table: _apply(tables[table]), f"plain {table}": partial(merge, name=plain)}
            )
        rates = {table: median(found) for table, found in in_turn(ROUNDS, contenders).items()}
        seen = session.read.format("delta").load(f"{folder}/large/orders/orders").count()
    return Benchmark(
        name=name,
        figure=1e6 / rates["large"],
        yardstick=1e6 / rates["small"],
        unit="CPU us a change",
        ratio=rates["small"] / rates["large"],
        expected=LARGE + sum(item >= LARGE for item in batches["large"].written),
        seen=seen,
        aa=rates["again"] / rates["small"],
        note=(
            f"{LARGE} against {SMALL} rows; batches of {ROWS} {which}; median of {ROUNDS}; by a plain MERGE "
            f"{1e6 / rates['plain large']:.0f} and {1e6 / rates['plain small']:.0f} us"
        ),
    )


def _apply(copy: TableCopies) -> Callable[[TableBatch], object]:
    return lambda batch: apply(copy, batch)


def _fill(session: SparkSession, table: str, rows: int) -> None:
    """Replace the contents by ``rows`` rows, in files of 100,000, which are in the order of the keys."""
    state = "null, false, concat('e', id), false, 0L, 'bench.orders', 0, id - 1000000000"
    columns = f"(customer, order_id, item, {', '.join(STATE)}, _relay_updated_at)"
    _overwrite(session, table, rows, columns, f", {state}, current_timestamp()")


def _fill_plain(session: SparkSession, table: str, rows: int) -> None:
    _overwrite(session, table, rows, "(customer, order_id, item)", "")


def _overwrite(session: SparkSession, table: str, rows: int, columns: str, more: str) -> None:
    session.range(0, rows, 1, max(1, rows // 100_000)).createOrReplaceTempView("numbers")
    session.sql(
        f"INSERT OVERWRITE {table} {columns} "
        f"SELECT concat('customer-', lpad(id % 5000, 5, '0')), CAST(id AS STRING), repeat('x', 400){more} FROM numbers"
    )

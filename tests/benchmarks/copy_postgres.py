"""Keeps a copy in PostgreSQL up to date, against a plain COPY of the same decoded rows and an upsert, with no token."""

from __future__ import annotations

from functools import partial

from pyspark.sql import functions as F

from relay.services.postgres import PostgresServer
from spark_consumers.copy import TableCopies
from spark_consumers.sinks.postgres import PostgresDatabase, execute
from spark_consumers.sinks.postgres_table import PostgresTable
from spark_consumers.table_consumer import TableBatch
from tests.benchmarks.copy_delta import NEVER
from tests.benchmarks.decoded import Batches, in_batches, result, spark
from tests.benchmarks.harness import Benchmark, in_turn

ITEMS = 150_000
ROUNDS = 4


def run() -> Benchmark:
    with PostgresServer() as server, spark() as session:
        database = PostgresDatabase(server.url)
        ours = TableCopies(partial(PostgresTable, database), NEVER)
        for name in ("plain", "again"):
            key = "PRIMARY KEY (customer, order_id)"
            server.execute(f"CREATE TABLE {name} (customer text, order_id numeric, item json, {key})")
        batches = Batches(session, range(ITEMS))
        figures = in_turn(
            ROUNDS,
            in_batches(
                batches,
                {
                    "ours": lambda batch: ours.plan(batch).write([]),
                    "plain": lambda batch: _upsert(batch, database, "plain"),
                    "again": lambda batch: _upsert(batch, database, "again"),
                },
            ),
        )
        ((seen,),) = server.execute(
            "SELECT count(*) FROM orders.orders o JOIN plain p USING (customer, order_id)"
            " WHERE o.item::text = p.item::text AND NOT _relay_deleted"
        )
        database.close()
    return result(
        "copy_postgres",
        figures,
        expected=len(batches.written),
        seen=seen,
        note=f"batches of 50,000 changes, of random items out of {ITEMS}, decoded before; median of {ROUNDS}; CPU "
        "of the server included",
    )


def _upsert(batch: TableBatch, database: PostgresDatabase, table: str) -> None:
    rows = batch.records.select(F.col("key_texts")[0], F.col("key_texts")[1], "new").toLocalIterator()
    with database.transaction() as connection:
        execute(connection, f"CREATE TEMPORARY TABLE staged (LIKE {table}) ON COMMIT DROP")
        with connection.cursor() as cursor, cursor.copy("COPY staged FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        execute(
            connection,
            f"INSERT INTO {table} SELECT * FROM staged ON CONFLICT (customer, order_id) "
            "DO UPDATE SET item = excluded.item",
        )

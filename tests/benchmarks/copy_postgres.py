"""Keeps a copy in PostgreSQL up to date, against a plain COPY of the same decoded rows and an upsert, with no token.

The note has what the plain job costs with a guard: it also writes each row's token and place, and compares tokens as
texts, which is right only for numbers of one length.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from pyspark.sql import Row
from pyspark.sql import functions as F

from relay.services.postgres import PostgresServer
from spark_consumers.copy import TableCopies
from spark_consumers.sinks.postgres import Connection, PostgresDatabase, execute
from spark_consumers.sinks.postgres_copy import PostgresTable
from spark_consumers.table_consumer import TableBatch
from tests.benchmarks.copy_delta import NEVER
from tests.benchmarks.decoded import Batches, in_batches, result, spark
from tests.benchmarks.harness import Benchmark, in_turn, median

ITEMS = 150_000
ROUNDS = 4


def run() -> Benchmark:
    with PostgresServer() as server, spark() as session:
        database = PostgresDatabase(server.url)
        ours = TableCopies(partial(PostgresTable, database), NEVER)
        for name in ("plain", "again"):
            create(server, name)
        batches = Batches(session, range(ITEMS))
        server.execute(
            f"CREATE TABLE guarded (customer text, order_id numeric, item json, {', '.join(_STATE)}, {_KEY})"
        )
        figures = in_turn(
            ROUNDS,
            in_batches(
                batches,
                {
                    "ours": lambda batch: ours.plan(batch).write([]),
                    "plain": lambda batch: upsert(batch, database, "plain"),
                    "guarded": lambda batch: _guarded(batch, database),
                    "again": lambda batch: upsert(batch, database, "again"),
                },
            ),
        )
        ((seen,),) = server.execute(
            "SELECT count(*) FROM orders.orders o JOIN plain p USING (customer, order_id)"
            " WHERE o.item::text = p.item::text"
        )
        database.close()
    return result(
        "copy_postgres",
        figures,
        expected=len(batches.written),
        seen=seen,
        note=f"batches of 50,000 changes, of random items out of {ITEMS}, decoded before; median of {ROUNDS}; CPU "
        f"of the server included; the plain job with a guard: {median(figures['guarded']):.0f}",
    )


_KEY = "PRIMARY KEY (customer, order_id)"


def create(server: PostgresServer, name: str) -> None:
    """Create the table of the plain job."""
    server.execute(f"CREATE TABLE {name} (customer text, order_id numeric, item json, {_KEY})")


def upsert(batch: TableBatch, database: PostgresDatabase, table: str) -> None:
    rows = batch.records.select(F.col("key_texts")[0], F.col("key_texts")[1], "new").toLocalIterator()
    with database.transaction() as connection:
        _stage(connection, table, rows)
        execute(
            connection,
            f"INSERT INTO {table} SELECT * FROM staged ON CONFLICT (customer, order_id) "
            "DO UPDATE SET item = excluded.item",
        )


def _stage(connection: Connection, table: str, rows: Iterable[Row], *without: str) -> None:
    """Copy rows into a temporary table that has the columns of ``table``, but for some."""
    execute(connection, f"CREATE TEMPORARY TABLE staged (LIKE {table}) ON COMMIT DROP")
    for name in without:
        execute(connection, f"ALTER TABLE staged DROP COLUMN {name}")
    with connection.cursor() as cursor, cursor.copy("COPY staged FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


_STATE = (
    "token text",
    "event_id text NOT NULL",
    "topic text",
    "partition integer",
    "place bigint",
    "deleted boolean NOT NULL",
    "updated_at timestamp with time zone NOT NULL",
)


def _guarded(batch: TableBatch, database: PostgresDatabase) -> None:
    read = ("new", "token", "event_id", "topic", "partition", "offset")
    rows = batch.records.select(F.col("key_texts")[0], F.col("key_texts")[1], *read).toLocalIterator()
    names = ["item", *(column.split()[0] for column in _STATE)]
    number = "substr({0}.token, strpos({0}.token, ','))"
    with database.transaction() as connection:
        _stage(connection, "guarded", rows, "deleted", "updated_at")
        execute(
            connection,
            "INSERT INTO guarded AS t SELECT *, false, now() FROM staged ON CONFLICT (customer, order_id) DO UPDATE"
            f" SET ({', '.join(names)}) = ROW ({', '.join(f'excluded.{name}' for name in names)})"
            f" WHERE {number.format('t')} < {number.format('excluded')}",
        )

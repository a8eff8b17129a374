"""Copies the rows of an initial snapshot to Delta and to PostgreSQL, each against a plain job that keeps no tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql import SparkSession

from relay.change import Change, Images, Operation, Snapshot
from relay.services.postgres import PostgresServer
from spark_consumers.copy import TableCopies
from spark_consumers.sinks import delta
from spark_consumers.sinks.postgres import PostgresDatabase
from spark_consumers.sinks.postgres_copy import PostgresTable
from tests.benchmarks import copy_delta, copy_postgres
from tests.benchmarks.copy_delta import NEVER, apply, copies
from tests.benchmarks.decoded import Batches, changes_of, in_batches, result, spark
from tests.benchmarks.harness import Benchmark, in_turn

ROWS = 50_000 * 15  # in all batches
ROUNDS = 4


def run() -> list[Benchmark]:
    with spark() as session:
        return [_in_delta(session), _in_postgres(session)]


def _in_delta(session: SparkSession) -> Benchmark:
    with tempfile.TemporaryDirectory() as folder:
        ours = copies(f"{folder}/ours")
        plain, again = (delta.table(f"{folder}/{name}") for name in ("plain", "again"))
        for name in (plain, again):
            copy_delta.create(session, name)
        batches = Snapshotted(session, range(ROWS))
        contenders = {
            "ours": lambda batch: apply(ours, batch),
            "plain": lambda batch: copy_delta.merge(batch, plain),
            "again": lambda batch: copy_delta.merge(batch, again),
        }
        figures = in_turn(ROUNDS, in_batches(batches, contenders))
        seen = session.read.format("delta").load(f"{folder}/ours/orders/orders").count()
    return _result("copy_snapshot_delta", figures, seen)


def _in_postgres(session: SparkSession) -> Benchmark:
    with PostgresServer() as server:
        database = PostgresDatabase(server.url)
        ours = TableCopies(partial(PostgresTable, database), NEVER)
        for name in ("plain", "again"):
            copy_postgres.create(server, name)
        contenders = {
            "ours": lambda batch: apply(ours, batch),
            "plain": lambda batch: copy_postgres.upsert(batch, database, "plain"),
            "again": lambda batch: copy_postgres.upsert(batch, database, "again"),
        }
        figures = in_turn(ROUNDS, in_batches(Snapshotted(session, range(ROWS)), contenders))
        ((seen,),) = server.execute("SELECT count(*) FROM orders.orders")
        database.close()
    return _result("copy_snapshot_postgres", figures, seen)


def _result(name: str, figures: Mapping[str, Sequence[float]], seen: int) -> Benchmark:
    rows = 50_000 * (ROUNDS + 1)
    note = f"batches of 50,000 rows that are not there yet, decoded before; median of {ROUNDS}"
    return result(name, figures, expected=rows, seen=seen, note=note)


class Snapshotted(Batches):
    """Batches of the rows that a snapshot has read, each once."""

    def sample(self) -> Sequence[int]:
        first = self._number * self.rows
        return self._items[first : first + self.rows]

    def changes(self, items: Sequence[int], first: int) -> list[Change]:
        found = changes_of(items, first)
        for one in found:
            one.operation, one.old, one.token, one.images = Operation.READ, None, None, Images.NEW
            one.snapshot = Snapshot("s", 1_600_000_000)
        return found

"""The targets of a copy, as the scenarios use them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import VariantVal

from spark_consumers.fold import VerdictCounts
from spark_consumers.kept_rows import KeptRow
from spark_consumers.records import Layout
from spark_consumers.sinks.delta_copy import DeltaTable
from spark_consumers.sinks.iceberg_copy import IcebergTable
from spark_consumers.sinks.iceberg_target import IcebergPlace
from spark_consumers.sinks.kept_in_spark import KeptInLake
from spark_consumers.sinks.postgres import PostgresDatabase, quoted
from spark_consumers.sinks.postgres_copy import PostgresTable
from spark_consumers.sinks.postgres_target import KeptInPostgres
from spark_consumers.sinks.target import Write
from tests.spark_consumers import delta_rows
from tests.spark_consumers.batches import Batch, Published, in_spark, play
from tests.spark_consumers.lake_config import lake_config
from tests.spark_consumers.scenarios import comparable


class InPostgres:
    """``playing``: the session that applies the batches; without one, the rule alone does."""

    widens = True

    def __init__(self, url: str, items: str = "json", playing: SparkSession | None = None) -> None:
        self.database, self.items, self.playing = PostgresDatabase(url), items, playing
        self.table = PostgresTable(self.database, "shop", "orders", items=items)

    def play(self, layouts: Any, *changes: Published, partitions: int = 1) -> VerdictCounts:
        return play(self.table, layouts, *changes, session=self.playing, partitions=partitions)

    def write(self, write: Write) -> None:
        batch: Any = Batch([])
        self.table.write(batch, [write])

    def rows(self, *columns: str, deleted: bool = False) -> list[tuple[Any, ...]]:
        is_ours = deleted or any(name.startswith("_relay_") for name in columns)
        table = f"shop._relay_rows_orders WHERE {deleted} OR NOT _relay_deleted" if is_ours else "shop.orders"
        statement = f"SELECT {', '.join(map(quoted, columns))} FROM {table}"
        with self.database.transaction() as connection:
            found = connection.execute(f"{statement} ORDER BY 1".encode()).fetchall()
        return [tuple(map(comparable, row)) for row in found]

    def kept(self, layout: Layout, wanted: Sequence[str | None], keys: Sequence[Sequence[str]] = ()) -> list[KeptRow]:
        kept = KeptInPostgres(self.database, layout, wanted, items=self.items)
        return list(kept.of(keys)) if keys else list(kept.all())


class InDelta:
    """``playing``: the session that applies the batches."""

    widens = True

    def __init__(
        self, session: SparkSession, folder: str, playing: SparkSession | None = None, items: str = "json"
    ) -> None:
        self.session, self.path, self.stored = session, f"{folder}/shop/orders", f"{folder}/shop/orders/_relay_rows"
        self.playing = playing or session
        self.folder, self.items = folder, items
        self.table = DeltaTable(folder, lake_config(86400.0, 604800.0), "shop", "orders", items=items)

    def play(self, layouts: Any, *changes: Published, partitions: int = 1) -> VerdictCounts:
        return play(self.table, layouts, *changes, session=self.playing, partitions=partitions)

    def write(self, write: Write) -> None:
        batch = in_spark(self.session, [])
        self.table.write(batch, [write])
        self.table.maintain(batch)

    def rows(self, *columns: str, deleted: bool = False) -> list[tuple[Any, ...]]:
        is_ours = deleted or any(name.startswith("_relay_") for name in columns)
        path, where = (self.stored, f"{deleted} OR NOT _relay_deleted") if is_ours else (self.path, "true")
        if delta_rows.is_exact(path, columns):
            return delta_rows.rows(path, columns, where=where)
        found = self.session.read.format("delta").load(path).where(where)
        return _rows(found, columns)

    def kept(self, layout: Layout, wanted: Sequence[str | None], keys: Sequence[Sequence[str]] = ()) -> list[KeptRow]:
        kept = KeptInLake(self.session, lambda *_: self.table, layout, wanted)
        return list(kept.of(keys)) if keys else list(kept.all())


class InIceberg:
    """``name``: of what no other test has. ``playing``: the session that applies the batches."""

    widens = False

    def __init__(
        self, session: SparkSession, name: str, playing: SparkSession | None = None, catalog: str = "lake"
    ) -> None:
        self.session, self.playing = session, playing or session
        self.place = IcebergPlace(catalog, re.sub(r"\W", "_", name))
        self.stored, self.shown = self.place.rows("shop", "orders"), self.place.shown("shop", "orders")
        self.table = IcebergTable(self.place, lake_config(86400.0, 604800.0), "shop", "orders")

    def play(self, layouts: Any, *changes: Published, partitions: int = 1) -> VerdictCounts:
        return play(self.table, layouts, *changes, session=self.playing, partitions=partitions)

    def write(self, write: Write) -> None:
        self.table.write(in_spark(self.session, []), [write])

    def rows(self, *columns: str, deleted: bool = False) -> list[tuple[Any, ...]]:
        is_ours = deleted or any(name.startswith("_relay_") for name in columns)
        name, where = (self.stored, f"{deleted} OR NOT _relay_deleted") if is_ours else (self.shown, "true")
        return _rows(self.session.table(name).where(where), columns)

    def kept(self, layout: Layout, wanted: Sequence[str | None], keys: Sequence[Sequence[str]] = ()) -> list[KeptRow]:
        kept = KeptInLake(self.session, lambda *_: self.table, layout, wanted)
        return list(kept.of(keys)) if keys else list(kept.all())


def in_lake(kind: str, session: SparkSession, place: str, **more: Any) -> InDelta | InIceberg:
    """Return a table of one kind. ``place``: a folder, which gives a namespace its name."""
    return InDelta(session, place, **more) if kind == "delta" else InIceberg(session, place, **more)


def _rows(found: DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    kinds = dict(found.dtypes)
    # As text, since Python has no time of the year 1 in a zone west of Greenwich.
    named = [f"CAST(`{name}` AS STRING)" if kinds[name] == "timestamp" else f"`{name}`" for name in columns]
    rows = found.selectExpr(*named).orderBy(F.expr(named[0])).collect()
    times = [kinds[name] == "timestamp" for name in columns]
    return [tuple(map(_value, row, times)) for row in rows]


def _value(value: Any, is_time: bool) -> Any:
    if isinstance(value, VariantVal):
        value = value.toPython()
    return datetime.fromisoformat(f"{value}+00:00") if is_time and value is not None else comparable(value)

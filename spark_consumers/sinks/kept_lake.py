"""The rows of a table of the copy that Spark reads, as text."""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType

from spark_consumers.kept_rows import KeptRow, KeptRows
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, delta
from spark_consumers.sinks.delta_values import key_columns, key_of, stored_kinds, text_of
from spark_consumers.sinks.lake_table import LakeTable

_LONG_END = 1 << 63


class KeptInLake(KeptRows):
    """The rows of the table of ``layout``; none if there is no table. ``open_table``: opens it by source and table."""

    def __init__(
        self,
        session: SparkSession,
        open_table: Callable[[str, str], LakeTable],
        layout: Layout,
        wanted: Sequence[str | None],
    ) -> None:
        table = open_table(layout.source, layout.table)
        schema = table.schema(session)
        self.where = table.where
        self._session = session
        self._name = table.name if schema is not None else None
        if schema is None:
            return
        types = {field.name: field.dataType for field in schema}
        key = key_of(table.properties(session.range(0)))
        stored = stored_kinds(schema, key)
        found = columns.plan(table.name, stored, key, {0: layout}, table.naming)
        places = columns.held_in(found, stored)
        self._key = [(column, types[column]) for column in key_columns(found.keys)]
        parts = dict(zip(key_columns(found.keys), (key.kind for key in found.keys), strict=True))
        self._wanted = [columns.ITEM if name is None else name for name in wanted]

        def text(name: str) -> Column:
            return text_of(F.col(delta.quoted(name)), stored[name])

        self._selected = [
            *(text_of(F.col(delta.quoted(column)), kind) for column, kind in parts.items()),
            *(F.coalesce(*map(text, places[one])) if places[one] else F.lit(None).cast("string") for one in wanted),
            F.col("_relay_deleted"),
            F.col("_relay_incomplete"),
            F.col("_relay_event_id"),
            F.col(columns.UNFIT),
        ]

    def all(self) -> Iterator[KeptRow]:
        return self._read(self._rows())

    def some(self, count: int) -> Iterator[KeptRow]:
        rows = self._rows()
        return self._read(None if rows is None else rows.orderBy(F.rand()).limit(count))

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        rows = self._rows()
        if rows is None or not keys:
            return iter(())
        names = [f"_relay_wanted_{n}" for n in range(len(self._key))]
        wanted = F.broadcast(delta.local_frame(self._session, keys, dict.fromkeys(names, "string")))
        conditions = []
        for n, (name, kind) in enumerate(self._key):
            column, part = F.col(delta.quoted(name)), F.col(names[n])
            # A number that the column cannot have, since it is to be widened, is null.
            conditions.append(column == (F.unbase64(part) if isinstance(kind, BinaryType) else part.try_cast(kind)))
            # So that Spark skips files that have none of the keys.
            if isinstance(kind, StringType):
                conditions.append(column.between(min(key[n] for key in keys), max(key[n] for key in keys)))
            elif isinstance(kind, (IntegerType, LongType)):
                numbers = [min(max(int(Decimal(key[n])), -_LONG_END), _LONG_END - 1) for key in keys]
                conditions.append(column.between(min(numbers), max(numbers)))
        return self._read(rows.join(wanted, reduce(and_, conditions), "left_semi"))

    def _rows(self) -> DataFrame | None:
        """Return the table as it is now, without tombstones."""
        if self._name is None:
            return None
        return self._session.table(self._name).where("NOT _relay_deleted OR _relay_incomplete")

    def _read(self, rows: DataFrame | None) -> Iterator[KeptRow]:
        if rows is None:
            return
        at = len(self._key)
        for row in rows.select(*self._selected).toLocalIterator():
            yield KeptRow.read(self._wanted, tuple(row[:at]), row[at:])

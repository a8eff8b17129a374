"""The rows of a table of the copy in Delta, read as text."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType

from spark_consumers.kept_rows import KeptRow, KeptRows
from spark_consumers.locations import table_folder
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, delta
from spark_consumers.sinks.delta_values import OURS, VARIANT, key_of, naming, text_of

_LONG_END = 1 << 63


class KeptInDelta(KeptRows):
    """The rows of the table of ``layout`` below ``path``; none if there is no table. ``items``: how it keeps JSON."""

    def __init__(
        self, session: SparkSession, path: str, layout: Layout, wanted: Sequence[str | None], *, items: str = "json"
    ) -> None:
        self.where = table_folder(path, layout.source, layout.table)
        self._session = session
        name = delta.table(self.where)
        schema = delta.schema_of(session, name)
        self._name = name if schema is not None else None
        if schema is None:
            return
        types = {field.name: field.dataType for field in schema}
        stored = {each: delta.kind_of(kind) for each, kind in types.items() if each not in OURS}
        key = key_of(delta.properties_of(session, name))
        found = columns.plan(name, stored, key, {0: layout}, naming("string" if items == "json" else VARIANT))
        places = columns.held_in(found, stored)
        self._key = [(key.name, types[key.name]) for key in found.keys]

        def text(name: str) -> Column:
            return text_of(F.col(delta.quoted(name)), stored[name])

        self._selected = [
            *(text(each) for each, _ in self._key),
            *(F.coalesce(*map(text, places[one])) if places[one] else F.lit(None).cast("string") for one in wanted),
            F.col("_relay_deleted"),
            F.col("_relay_incomplete"),
            F.col("_relay_event_id"),
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
            # So that Delta skips files that have none of the keys.
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
            key, (*values, deleted, incomplete, event_id) = tuple(row[:at]), row[at:]
            yield KeptRow(key, None if deleted else tuple(values), incomplete, event_id)

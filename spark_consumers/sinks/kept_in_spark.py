"""The rows of the copy and the log that Spark reads, as text: what Spark raises is that they cannot be read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial, reduce
from operator import and_

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType

from relay.errors import Unavailable
from spark_consumers.causes import cause
from spark_consumers.kept_rows import KeptRow, KeptRows, OpenKeptRows
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, delta
from spark_consumers.sinks.delta_values import key_columns, key_of, stored_kinds, text_of
from spark_consumers.sinks.lake_table import LakeTable

_LONG_END = 1 << 63


class KeptInSpark(KeptRows):
    """The rows that ``open_rows`` opens."""

    def __init__(self, open_rows: OpenKeptRows, layout: Layout, wanted: Sequence[str | None]) -> None:
        with _unavailable():
            self._rows = open_rows(layout, wanted)
        self.where, self.from_start = self._rows.where, self._rows.from_start

    def all(self) -> Iterator[KeptRow]:
        return _read(self._rows.all)

    def some(self, count: int) -> Iterator[KeptRow]:
        return _read(partial(self._rows.some, count))

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        return _read(partial(self._rows.of, keys))

    def duplicates(self) -> tuple[int, list[tuple[str, str]]]:
        with _unavailable():
            return self._rows.duplicates()

    def counted(self, event_ids: Sequence[str], since: float) -> Mapping[str, int] | None:
        with _unavailable():
            return self._rows.counted(event_ids, since)


def _read(open_rows: Callable[[], Iterator[KeptRow]]) -> Iterator[KeptRow]:
    with _unavailable():
        yield from open_rows()


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except Py4JNetworkError:  # I10: the JVM has ended, and no later read of this process can succeed
        raise
    except (PySparkException, Py4JError) as error:  # I12
        raise Unavailable(cause(error)) from error


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
        key = key_of(table.properties(session.range(0)))
        stored = stored_kinds(schema, key)
        found = columns.plan(table.name, stored, key, {0: layout}, table.naming)
        places = columns.held_in(found, stored)
        self._key = [(column, schema[column].dataType) for column in key_columns(found.keys)]
        self._wanted = [columns.ITEM if name is None else name for name in wanted]

        def text(name: str, kind: str) -> Column:
            return text_of(F.col(delta.quoted(name)), kind)

        self._selected = [text(name, key.kind) for (name, _), key in zip(self._key, found.keys, strict=True)]
        for one in wanted:
            held = [text(name, stored[name]) for name in places[one]]
            self._selected.append(F.coalesce(*held) if held else F.lit(None).cast("string"))
        self._selected += map(F.col, ("_relay_deleted", "_relay_incomplete", "_relay_event_id", columns.UNFIT))

    def all(self) -> Iterator[KeptRow]:
        return self._read(lambda rows: rows)

    def some(self, count: int) -> Iterator[KeptRow]:
        return self._read(lambda rows: rows.orderBy(F.rand()).limit(count))

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        if self._name is None or not keys:
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
        return self._read(lambda rows: rows.join(wanted, reduce(and_, conditions), "left_semi"))

    def _read(self, chosen: Callable[[DataFrame], DataFrame]) -> Iterator[KeptRow]:
        if self._name is None:
            return
        # The table as it is now, without tombstones.
        rows = chosen(self._session.table(self._name).where("NOT _relay_deleted OR _relay_incomplete"))
        at = len(self._key)
        for row in rows.select(*self._selected).toLocalIterator():
            yield KeptRow.read(self._wanted, tuple(row[:at]), row[at:])

"""The rows of the copy and the log that Spark reads, as text: what Spark raises is that they cannot be read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial, reduce
from operator import and_
from typing import Any

import orjson
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType

from relay.config import Config
from relay.errors import Unavailable
from spark_consumers.causes import cause
from spark_consumers.kept_rows import KeptRow, KeptRows, OpenKeptRows
from spark_consumers.log_sql import log_views
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, delta
from spark_consumers.sinks.delta_values import key_columns, key_of, stored_kinds, text_of
from spark_consumers.sinks.lake_table import LakeTable
from spark_consumers.sinks.places import log_target

_LONG_END = 1 << 63
_EXAMPLES = 20
_ITEM = "to_json(from_json(key, 'map<string,string>'))"
# In the order of `relay_as_of`.
_LAST = (
    "struct(CASE WHEN operation = 'READ' THEN snapshot_as_of - 1 ELSE token_timestamp END, operation = 'READ', topic, "
    "partition, offset)"
)


class KeptInSpark(KeptRows):
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


class LoggedRows(KeptRows):
    """A table's rows by the views of the log; ``session``: for these alone. Raises ``Unavailable`` without a log."""

    def __init__(self, session: SparkSession, config: Config, layout: Layout, wanted: Sequence[str | None]) -> None:
        assert config.log is not None
        log_views(session, config)
        self.where = config.log.path
        self._session = session
        self._log = log_target(config, config.log).open().name
        self._layout = layout
        self._wanted = wanted
        self._of_table = f"source = {delta.literal(layout.source)} AND `table` = {delta.literal(layout.table)}"
        marks = f"SELECT 1 FROM {self._log} WHERE {self._of_table} AND attributes['snapshot'] = 'end'"
        self.from_start = bool(session.sql(f"{marks} LIMIT 1").collect())

    def all(self) -> Iterator[KeptRow]:
        self._look_into_all()
        return self._read()

    def some(self, count: int) -> Iterator[KeptRow]:
        self._look_into_all()
        return self._read(f"ORDER BY rand() LIMIT {count}")

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        names = [field.name for field in self._layout.key]
        texts = ((orjson.dumps(dict(zip(names, key, strict=True))).decode(),) for key in keys)
        wanted = delta.local_frame(self._session, texts, {"key": "string"}).selectExpr(f"{_ITEM} AS item")
        wanted.createOrReplaceTempView("relay_wanted")
        # Read once, and not at each place where `relay_as_of` uses the log.
        found = self._session.sql(self._rows(f"(key IS NULL OR {_ITEM} IN (SELECT item FROM relay_wanted))")).persist()
        try:
            found.createOrReplaceTempView("relay_log")
            yield from self._read()
        finally:
            found.unpersist()

    def duplicates(self) -> tuple[int, list[tuple[str, str]]]:
        found = self._session.sql(
            f"SELECT event_id, any_value(key) AS key, count(*) OVER () AS number FROM {self._log} "
            f"WHERE {self._of_table} AND operation <> 'READ' "  # which the log has as often as it was read
            f"GROUP BY event_id HAVING count(*) > 1 ORDER BY event_id LIMIT {_EXAMPLES}"
        ).collect()
        return (found[0]["number"] if found else 0), [(row["event_id"], row["key"] or "null") for row in found]

    def counted(self, event_ids: Sequence[str], since: float) -> Mapping[str, int]:
        names = delta.local_frame(self._session, ((each,) for each in event_ids), {"event_id": "string"})
        names.createOrReplaceTempView("relay_events")
        day = datetime.fromtimestamp(since, UTC).date()
        found = self._session.sql(
            f"SELECT event_id, CASE WHEN any_value(operation) = 'READ' THEN 1 ELSE count(*) END AS number "
            f"FROM {self._log} WHERE {self._of_table} AND day >= DATE'{day}' "
            "AND event_id IN (SELECT event_id FROM relay_events) GROUP BY event_id"
        ).collect()
        return {row["event_id"]: row["number"] for row in found}

    def _rows(self, where: str) -> str:
        return f"SELECT * FROM {self._log} WHERE {self._of_table} AND {where}"

    def _look_into_all(self) -> None:
        self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW relay_log AS {self._rows('true')}")

    def _read(self, rest: str = "") -> Iterator[KeptRow]:
        """Read the rows that the view ``relay_log`` has."""
        # Items that are only known to have changed. Those that were rows before come again below.
        stubs = (
            f"SELECT any_value(key) AS key, CAST(NULL AS STRING) AS new, true AS incomplete, max(event_id) AS event_id "
            f"FROM relay_log WHERE key IS NOT NULL GROUP BY {_ITEM} "
            f"HAVING max_by(new IS NULL AND operation <> 'DELETE', {_LAST}) {rest}"
        )
        table = delta.literal(self._layout.table)
        rows = (
            f"SELECT key, new, incomplete, event_id FROM relay_as_of({table}, TIMESTAMP '9999-01-01 00:00:00') {rest}"
        )
        for statement in (stubs, rows):
            for key, new, incomplete, event_id in self._session.sql(statement).toLocalIterator():
                parts = orjson.loads(key)
                named = tuple(parts[field.name] for field in self._layout.key)
                yield KeptRow(named, None if new is None else self._values(new), incomplete, event_id)

    def _values(self, new: str) -> tuple[Any, ...]:
        if self._layout.row is None:
            return (new,)
        image = orjson.loads(new)
        return tuple(image.get(name) for name in self._wanted)

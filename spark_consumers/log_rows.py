"""The rows of a table according to the change log, by the functions of ``log_sql``."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from pyspark.sql import SparkSession

from relay.config import Config
from spark_consumers.kept_rows import KeptRow, KeptRows
from spark_consumers.log_sql import log_views
from spark_consumers.records import Layout
from spark_consumers.sinks import delta
from spark_consumers.sinks.places import log_target

_EXAMPLES = 20
_ITEM = "to_json(from_json(key, 'map<string,string>'))"
# In the order of `relay_as_of`.
_LAST = (
    "struct(CASE WHEN operation = 'READ' THEN snapshot_as_of - 1 ELSE token_timestamp END, operation = 'READ', topic, "
    "partition, offset)"
)


class LoggedRows(KeptRows):
    """A table's rows in the log. ``session``: for its views alone. Raises ``Unavailable`` if there is no log."""

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

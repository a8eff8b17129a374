"""The upkeep of a table in a lake: small files are merged, and files that no kept version needs are deleted.

Delta itself only deletes its log. Iceberg lists each version of a table: they expire.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from relay.config.sinks import TablesConfig
from spark_consumers.sinks import delta
from spark_consumers.sinks.delta import literal, quoted

MAINTAINED_AT = "relay.maintained_at"


class TableUpkeep:
    """The upkeep of one table, in Delta, which must exist. ``table``: its SQL name. ``config``: says how often."""

    def __init__(self, table: str, config: TablesConfig, *, clock: Callable[[], float] = time.time) -> None:
        self._table = table
        self._every, self._kept = config.maintain_every, config.keep_versions
        self._clock = clock
        # None until it is read from the table.
        self._due_at: float | None = None

    def run(self, session: SparkSession, between: Callable[[SparkSession], None] = lambda session: None) -> bool:
        """Do the upkeep if it is time to; return whether it was. ``between``: done before files are deleted."""
        now = self._clock()
        if self._due_at is None:
            found = session.sql(f"SHOW TBLPROPERTIES {self._table}").collect()
            done_at = {row["key"]: row["value"] for row in found}.get(MAINTAINED_AT)
            self._due_at = self._remember(session, now) if done_at is None else float(done_at) + self._every
        if now < self._due_at:
            return False
        # First, since VACUUM goes by the table's properties.
        self._due_at = self._remember(session, now)
        self._tidy(session, between)
        return True

    def _tidy(self, session: SparkSession, between: Callable[[SparkSession], None]) -> None:
        session.sql(f"OPTIMIZE {self._table}")
        between(session)
        session.sql(f"VACUUM {self._table}")

    def properties(self, now: float) -> dict[str, str]:
        """Return what the table records about its upkeep: the time of the last one, and how long versions are kept."""
        kept = f"interval {int(self._kept)} seconds"
        return {MAINTAINED_AT: str(now), "delta.deletedFileRetentionDuration": kept, "delta.logRetentionDuration": kept}

    def _remember(self, session: SparkSession, now: float) -> float:
        """Store the time of an upkeep; return when the next one is due."""
        session.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ({delta.assigned(self.properties(now))})")
        return now + self._every


_BATCHES = 50  # after these, their files are merged: each adds one with rows, and one that says which rows are gone
# A merge leaves a table's large files as they are.
_OF_BATCHES = {"target-file-size-bytes": 128 << 20, "min-file-size-bytes": 64 << 20, "delete-file-threshold": 30}
_WITHOUT_REST = {"remove-dangling-deletes": "true"}  # else what says which rows of a file are gone outlives the file


class IcebergUpkeep(TableUpkeep):
    """The upkeep of ``table`` in ``catalog``. Expired versions are looked for at least once in ``kept``."""

    def __init__(
        self, catalog: str, table: str, config: TablesConfig, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(table, config, clock=clock)
        self._every = min(self._every, self._kept)
        self._catalog = catalog
        self._batches = 0

    def run(self, session: SparkSession, between: Callable[[SparkSession], None] = lambda session: None) -> bool:
        self._batches += 1
        is_done = super().run(session, between)
        if not is_done and self._batches >= _BATCHES:
            self._merge(session, _OF_BATCHES)
        if is_done or self._batches >= _BATCHES:
            self._batches = 0
        return is_done

    def properties(self, now: float) -> dict[str, str]:
        return {MAINTAINED_AT: str(now), "history.expire.max-snapshot-age-ms": str(int(self._kept * 1000))}

    def _tidy(self, session: SparkSession, between: Callable[[SparkSession], None]) -> None:
        self._merge(session, {})
        until = datetime.fromtimestamp(self._clock() - self._kept, UTC)
        self._call(session, "expire_snapshots", f"older_than => TIMESTAMP '{until:%Y-%m-%d %H:%M:%S.%f}+00:00'")

    def _merge(self, session: SparkSession, options: Mapping[str, int]) -> None:
        listed = ", ".join(f"'{name}', '{value}'" for name, value in {**options, **_WITHOUT_REST}.items())
        self._call(session, "rewrite_data_files", f"options => map({listed})")
        self._call(session, "rewrite_position_delete_files")

    def _call(self, session: SparkSession, procedure: str, *arguments: str) -> None:
        listed = ", ".join([f"table => {literal(self._table)}", *arguments])
        session.sql(f"CALL {quoted(self._catalog)}.system.{procedure}({listed})").collect()

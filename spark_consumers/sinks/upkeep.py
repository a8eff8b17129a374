"""The upkeep of a Delta table: small files are merged, and files that no kept version needs are deleted.

Delta itself only deletes its log. The time of the last upkeep is a property of the table.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_consumers.sinks import delta

MAINTAINED_AT = "relay.maintained_at"


@dataclass(frozen=True, slots=True)
class Schedule:
    """``every``: between two upkeeps. ``kept``: how long the files of an earlier version stay. Both in seconds."""

    every: float
    kept: float


class TableUpkeep:
    """The upkeep of one Delta table, which has to exist. ``table``: its SQL name."""

    def __init__(self, table: str, schedule: Schedule, *, clock: Callable[[], float] = time.time) -> None:
        self._table = table
        self._schedule = schedule
        self._clock = clock
        # None until it is read from the table.
        self._due_at: float | None = None

    def run(self, session: SparkSession) -> bool:
        """Do the upkeep if it is time to; return whether it was."""
        now = self._clock()
        if self._due_at is None:
            found = session.sql(f"SHOW TBLPROPERTIES {self._table}").collect()
            done_at = {row["key"]: row["value"] for row in found}.get(MAINTAINED_AT)
            self._due_at = self._remember(session, now) if done_at is None else float(done_at) + self._schedule.every
        if now < self._due_at:
            return False
        # First, since VACUUM goes by the table's properties.
        self._due_at = self._remember(session, now)
        session.sql(f"OPTIMIZE {self._table}")
        session.sql(f"VACUUM {self._table}")
        return True

    def properties(self, now: float) -> dict[str, str]:
        """Return what the table says of its upkeep: the time of the last one, and how long versions are kept."""
        kept = f"interval {int(self._schedule.kept)} seconds"
        return {MAINTAINED_AT: str(now), "delta.deletedFileRetentionDuration": kept, "delta.logRetentionDuration": kept}

    def _remember(self, session: SparkSession, now: float) -> float:
        """Store the time of an upkeep; return when the next one is due."""
        session.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ({delta.assigned(self.properties(now))})")
        return now + self._schedule.every

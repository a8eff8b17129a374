"""Which tombstones of a copied table may go, and when: what the table itself remembers of its snapshots.

Both facts are properties of the Delta table, so that they outlive the consumer: the snapshots that run, by partition
of Kafka, and when tombstones were last collected. Their names may be changed only with a reader of the old ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from spark_consumers.sinks import delta

SNAPSHOTS = "relay.snapshots"
COLLECTED_AT = "relay.collected_at"

_LONGEST_INTERVAL = 86_400.0  # seconds
_PARTS = 10  # of the retention: so much longer than asked for a tombstone may stay


class Tombstones:
    """The tombstones of one table, which has to exist. ``retention``: seconds."""

    def __init__(
        self, session: SparkSession, table: str, retention: float, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._table = table
        self._retention = retention
        self._interval = min(_LONGEST_INTERVAL, retention / _PARTS)
        self._clock = clock
        properties = {row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {table}").collect()}
        self._snapshots: dict[str, str] = json.loads(properties.get(SNAPSHOTS, "{}"))
        self._collected_at = float(properties.get(COLLECTED_AT, 0))

    def mark(self, session: SparkSession, partition: int, snapshot: str, kind: str) -> None:
        """Remember the begin or the end of a snapshot in one partition of Kafka."""
        before = dict(self._snapshots)
        if kind == "begin":
            self._snapshots[str(partition)] = snapshot
        elif self._snapshots.get(str(partition)) == snapshot:
            del self._snapshots[str(partition)]
        if self._snapshots != before:
            self._set(session, SNAPSHOTS, json.dumps(self._snapshots))

    def collect(self, session: SparkSession) -> int:
        """Delete, once in a while, the tombstones older than the retention; return how many.

        Never while a snapshot runs: a READ from before the deletion would bring the row back (I7). Nor those that a
        stub left, which are incomplete and no deletions.
        """
        now = self._clock()
        if self._snapshots or now < self._collected_at + self._interval:
            return 0
        until = f"timestamp_micros({int((now - self._retention) * 1_000_000)})"
        row = session.sql(
            f"DELETE FROM {self._table} WHERE _relay_deleted AND NOT _relay_incomplete AND _relay_updated_at < {until}"
        ).collect()[0]
        self._set(session, COLLECTED_AT, str(now))
        self._collected_at = now
        return int(row["num_affected_rows"])

    def _set(self, session: SparkSession, name: str, value: str) -> None:
        session.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ({delta.literal(name)} = {delta.literal(value)})")

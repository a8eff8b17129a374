"""The tombstones of a copied table: when they are collected, and the snapshots that delay it.

The snapshots seen and the time of the last collection are properties of the Delta table, so they outlive the consumer.
Whoever renames a property has to keep reading the old name.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from spark_consumers.seen_snapshots import SeenSnapshots
from spark_consumers.sinks import delta

SNAPSHOTS = "relay.snapshots"
COLLECTED_AT = "relay.collected_at"

_LONGEST_INTERVAL = 86_400.0  # seconds
_COLLECTIONS_PER_RETENTION = 10


class Tombstones:
    """The tombstones of one table, which has to exist. ``retention``: seconds.

    The caller updates ``snapshots``, and ``remember`` writes it to the table.
    """

    def __init__(
        self, session: SparkSession, table: str, retention: float, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._table = table
        self._retention = retention
        self._interval = min(_LONGEST_INTERVAL, retention / _COLLECTIONS_PER_RETENTION)
        self._clock = clock
        properties = {row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {table}").collect()}
        self._stored_snapshots = properties.get(SNAPSHOTS, SeenSnapshots().to_json())
        self.snapshots = SeenSnapshots.from_json(self._stored_snapshots)
        self._collected_at = float(properties.get(COLLECTED_AT, 0))

    def remember(self, session: SparkSession) -> None:
        """Write ``snapshots`` to the table if they have changed."""
        text = self.snapshots.to_json()
        if text != self._stored_snapshots:
            self._set_property(session, SNAPSHOTS, text)
            self._stored_snapshots = text

    def collect(self, session: SparkSession) -> int:
        """Delete the tombstones older than the retention, if it is time to; return the number deleted.

        Nothing is collected while a snapshot runs: a READ from before the deletion would bring the row back (I7). Rows
        that only came as stubs stay: they are incomplete, not deleted.
        """
        now = self._clock()
        if self.snapshots.running or now < self._collected_at + self._interval:
            return 0
        until = f"timestamp_micros({int((now - self._retention) * 1_000_000)})"
        row = session.sql(
            f"DELETE FROM {self._table} WHERE _relay_deleted AND NOT _relay_incomplete AND _relay_updated_at < {until}"
        ).collect()[0]
        self._set_property(session, COLLECTED_AT, str(now))
        self._collected_at = now
        return int(row["num_affected_rows"])

    def _set_property(self, session: SparkSession, name: str, value: str) -> None:
        session.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ({delta.literal(name)} = {delta.literal(value)})")

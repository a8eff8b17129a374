"""What a copied table remembers beside its rows, and which of its tombstones may go.

Both facts are properties of the Delta table, so that they outlive the consumer: the snapshots it has met, and when
tombstones were last collected. Their names may be changed only with a reader of the old ones.
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
_PARTS = 10  # of the retention: so much longer than asked for a tombstone may stay


class Tombstones:
    """The tombstones of one table, which has to exist. ``retention``: seconds.

    ``snapshots``: to be changed, and written down with ``remember``.
    """

    def __init__(
        self, session: SparkSession, table: str, retention: float, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._table = table
        self._retention = retention
        self._interval = min(_LONGEST_INTERVAL, retention / _PARTS)
        self._clock = clock
        properties = {row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {table}").collect()}
        self._written = properties.get(SNAPSHOTS, SeenSnapshots().to_json())
        self.snapshots = SeenSnapshots.from_json(self._written)
        self._collected_at = float(properties.get(COLLECTED_AT, 0))

    def remember(self, session: SparkSession) -> None:
        """Write down ``snapshots``, if they are not what is written down."""
        text = self.snapshots.to_json()
        if text != self._written:
            self._set(session, SNAPSHOTS, text)
            self._written = text

    def collect(self, session: SparkSession) -> int:
        """Delete, once in a while, the tombstones older than the retention; return how many.

        Never while a snapshot runs: a READ from before the deletion would bring the row back (I7). Nor those that a
        stub left, which are incomplete and no deletions.
        """
        now = self._clock()
        if self.snapshots.running or now < self._collected_at + self._interval:
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

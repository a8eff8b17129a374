"""The tombstones of a copied table: when they are collected, and the snapshots that delay it.

The snapshots seen and the time of the last collection are properties of the table, so they outlive the consumer.
Whoever renames a property has to keep reading the old name.
"""

import time
from collections.abc import Callable

from pyspark.sql import DataFrame

from spark_consumers.seen_snapshots import SeenSnapshots
from spark_consumers.sinks.target import TargetTable

SNAPSHOTS = "relay.snapshots"
COLLECTED_AT = "relay.collected_at"

_LONGEST_INTERVAL = 86_400.0  # seconds
_COLLECTIONS_PER_RETENTION = 10


class Tombstones:
    """The tombstones of one table. ``retention``: seconds.

    The caller loads ``snapshots``, updates them, and stores them with ``remember``. Other drivers may do so, too.
    """

    def __init__(self, table: TargetTable, retention: float, *, clock: Callable[[], float] = time.time) -> None:
        self._table = table
        self._retention = retention
        self._interval = min(_LONGEST_INTERVAL, retention / _COLLECTIONS_PER_RETENTION)
        self._clock = clock
        self._collected_at = 0.0
        # None means that there is none.
        self._stored_snapshots: str | None = None
        self.snapshots = SeenSnapshots()

    def load(self, batch: DataFrame) -> None:
        """Read what is stored."""
        properties = self._table.properties(batch)
        self._stored_snapshots = properties.get(SNAPSHOTS)
        self.snapshots = SeenSnapshots.from_json(self._stored_snapshots or SeenSnapshots().to_json())
        self._collected_at = float(properties.get(COLLECTED_AT, 0))

    def remember(self, batch: DataFrame) -> bool:
        """Write ``snapshots`` to the table if they have changed. Return False if another driver was faster."""
        before, text = self._stored_snapshots, self.snapshots.to_json()
        if text == (before or SeenSnapshots().to_json()):
            return True
        if not self._table.replace_property(batch, SNAPSHOTS, before, text):
            return False
        self._stored_snapshots = text
        return True

    def forget_snapshots(self, batch: DataFrame) -> None:
        """Forget the snapshots: their topic was replaced, and what runs there never ends."""
        is_stored = False
        while not is_stored:
            self.load(batch)
            self.snapshots = SeenSnapshots()
            is_stored = self.remember(batch)

    def collect(self, batch: DataFrame) -> int:
        """Delete the tombstones older than the retention, if it is time to; return the number deleted.

        Nothing is collected while a snapshot runs: a READ from before the deletion would bring the row back (I7).
        """
        now = self._clock()
        if now < self._collected_at + self._interval:
            return 0
        self.load(batch)
        if self.snapshots.running or now < self._collected_at + self._interval:
            return 0
        deleted = self._table.delete_tombstones(batch, now - self._retention)
        self._table.set_property(batch, COLLECTED_AT, str(now))
        self._collected_at = now
        return deleted

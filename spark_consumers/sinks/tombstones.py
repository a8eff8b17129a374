"""The tombstones of a copied table: when they are collected, and the snapshots that delay it.

Both are properties of the table, so they outlive the consumer.
"""

import json
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Self

from pyspark.sql import DataFrame

from spark_consumers.sinks.target import TargetTable, change_property


@dataclass
class SeenSnapshots:
    """The snapshots that a copy of one table has seen begin. The end of any other would delete rows that it has found.

    A page of an abandoned snapshot may come after the end of its successor, and must not bring rows back. By partition,
    ``running``: their ids, ``ended``: the ``as_of`` of the last one, ``begun``: the offset of the newest begin, and
    ``moved``: the offset of the last mark after which keys were spread over more partitions. ``topic``: whose
    partitions these are; None as long as there was no mark.
    """

    running: dict[str, str] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    topic: str | None = None
    begun: dict[str, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str | None) -> Self:
        return cls(**json.loads(text or "{}"))

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def _of(self, topic: str) -> None:
        if self.topic not in (topic, None):
            # The topic was replaced, and a snapshot running in its partitions never ends.
            self.running, self.ended, self.begun, self.moved = {}, {}, {}, {}
        self.topic = topic

    def move(self, topic: str, partition: int, offset: int) -> None:
        self._of(topic)
        self.moved[str(partition)] = max(offset, self.moved.get(str(partition), -1))

    def begin(self, topic: str, partition: int, snapshot: str, offset: int) -> None:
        self._of(topic)
        # I7: the newest may begin again. One before it comes from a driver that is behind, and its end is ignored.
        if offset >= self.begun.get(str(partition), 0):
            self.running[str(partition)] = snapshot
            self.begun[str(partition)] = offset

    def has_begun(self, partition: int, snapshot: str) -> bool:
        return self.running.get(str(partition)) == snapshot

    def is_last(self, partition: int, as_of: int, partitions: Collection[str]) -> bool:
        """Whether all other ``partitions`` of the topic have ended this snapshot, or a later one. ``as_of``: its start.

        One that lags behind has not even begun it.
        """
        others = (self.ended.get(other, 0) for other in partitions if other != str(partition))
        return all(ended >= as_of for ended in others)  # I9

    def end(self, partition: int, as_of: int) -> None:
        """Record that the running snapshot has ended and was swept. ``as_of``: when the snapshot began, in seconds."""
        del self.running[str(partition)]
        self.ended[str(partition)] = max(as_of, self.ended.get(str(partition), 0))

    def accepts(self, partition: int, as_of: int) -> bool:
        """Whether a READ may be applied: not if a snapshot that began later has ended."""
        return as_of >= self.ended.get(str(partition), 0)


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
        self._collected_at: str | None = None
        self._stored_snapshots: str | None = None
        self.snapshots = SeenSnapshots()

    def load(self, batch: DataFrame) -> None:
        properties = self._table.properties(batch)
        self._stored_snapshots = properties.get(SNAPSHOTS)
        self.snapshots = SeenSnapshots.from_json(self._stored_snapshots)
        self._collected_at = properties.get(COLLECTED_AT)

    def remember(self, batch: DataFrame) -> bool:
        """Write ``snapshots`` to the table if they have changed. Return False if another driver was faster."""
        before, text = self._stored_snapshots, self.snapshots.to_json()
        if self.snapshots == SeenSnapshots.from_json(before):
            return True
        is_stored = self._table.replace_property(batch, SNAPSHOTS, before, text)
        if is_stored:
            self._stored_snapshots = text
        return is_stored

    def forget_snapshots(self, batch: DataFrame) -> None:
        """Forget the snapshots: their topic was replaced, and what runs there never ends."""
        nothing = SeenSnapshots().to_json()
        change_property(self._table, batch, SNAPSHOTS, lambda text: nothing, nothing)
        self.load(batch)

    def collect(self, batch: DataFrame) -> int:
        """Delete the tombstones older than the retention, if it is time to; return the number deleted.

        Nothing is collected while a snapshot runs: a READ from before the deletion would bring the row back (I7).
        """
        now = self._clock()
        if now < self._due_at:
            return 0
        self.load(batch)
        if self.snapshots.running or now < self._due_at:
            return 0
        deleted = self._table.delete_tombstones(batch, now - self._retention)
        # Another driver may have been as fast.
        self._table.replace_property(batch, COLLECTED_AT, self._collected_at, str(now))
        self._collected_at = str(now)
        return deleted

    @property
    def _due_at(self) -> float:
        return float(self._collected_at or 0) + self._interval

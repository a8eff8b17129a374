"""What a copy remembers of the snapshots it has met, in each partition of Kafka: a plain rule, no Spark.

The end of a snapshot deletes what it did not find, so it counts only for a copy that has seen the begin. And a page of
a snapshot that was given up may come after the end of the one that took its place: what that one did not find, it
must not bring back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass
class SeenSnapshots:
    """``running``: the id of the snapshot that has begun, by partition. ``ended``: ``as_of`` of the last that ended."""

    running: dict[str, str] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> SeenSnapshots:
        raw = json.loads(text)
        return cls(raw["running"], raw["ended"])

    def to_json(self) -> str:
        return json.dumps({"running": self.running, "ended": self.ended}, sort_keys=True)

    def begin(self, partition: int, snapshot: str) -> None:
        self.running[str(partition)] = snapshot

    def has_begun(self, partition: int, snapshot: str) -> bool:
        return self.running.get(str(partition)) == snapshot

    def end(self, partition: int, as_of: int) -> None:
        """Take note that the snapshot that had begun has ended, and was swept. ``as_of``: its begin's, in seconds."""
        del self.running[str(partition)]
        self.ended[str(partition)] = max(as_of, self.ended.get(str(partition), 0))

    def wants(self, partition: int, as_of: int) -> bool:
        """Whether a READ may still be good for something: not if a snapshot that began after it has ended."""
        return as_of >= self.ended.get(str(partition), 0)

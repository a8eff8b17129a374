"""The snapshots that a copy has seen, by Kafka partition. A plain rule, without Spark.

The end of a snapshot deletes the rows it did not find, so it only counts for a copy that has seen the beginning. A page
of an abandoned snapshot may arrive after the end of the snapshot that replaced it, and must not bring back what that
one deleted.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass
class SeenSnapshots:
    """``running``: the id of the snapshot that has begun, by partition. ``ended``: the last one's ``as_of``.

    ``topic``: whose partitions these are; None as long as no snapshot has begun. ``begun``: the offset of the newest
    begin.
    """

    running: dict[str, str] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    topic: str | None = None
    begun: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> SeenSnapshots:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def begin(self, topic: str, partition: int, snapshot: str, offset: int) -> None:
        """Record the beginning of a snapshot, which is at ``offset``."""
        if self.topic not in (topic, None):
            # The topic was replaced, and what runs in its partitions never ends.
            self.running.clear()
            self.ended.clear()
            self.begun.clear()
        self.topic = topic
        # I7: the newest may begin again. One before it comes from a driver that is behind, and ends for nobody.
        if offset >= self.begun.get(str(partition), 0):
            self.running[str(partition)] = snapshot
            self.begun[str(partition)] = offset

    def has_begun(self, partition: int, snapshot: str) -> bool:
        return self.running.get(str(partition)) == snapshot

    def is_last(self, partition: int) -> bool:
        """Whether the snapshot that runs in this partition no longer runs in any other."""
        return list(self.running.values()).count(self.running[str(partition)]) == 1

    def end(self, partition: int, as_of: int) -> None:
        """Record that the running snapshot has ended and was swept. ``as_of``: when it began, in seconds."""
        del self.running[str(partition)]
        self.ended[str(partition)] = max(as_of, self.ended.get(str(partition), 0))

    def accepts(self, partition: int, as_of: int) -> bool:
        """Whether a READ may be applied: not if a snapshot that began later has ended."""
        return as_of >= self.ended.get(str(partition), 0)

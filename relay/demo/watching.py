"""Watches the demo from outside: the topic as any program that receives changes, the consumers by their batch lines."""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import orjson

from relay.change import MARK, Operation
from relay.config import Config
from relay.demo.workload import Repeating
from relay.kafka.changes import ReceivedChange, changes


class TopicWatch(Repeating):
    """Reads the topic of a table from its beginning, and records when each change arrived (epoch seconds).

    ``changes``: the changes of the stream. ``reads``: the rows of snapshots. ``ended``: the end marks of snapshots.
    """

    def __init__(self, config: Config, table: str) -> None:
        super().__init__("topic-watch")
        # Others may ask for the lengths meanwhile.
        self.changes: list[ReceivedChange] = []
        self.reads: list[ReceivedChange] = []
        self.ended = 0
        self.ends: dict[int, int] = {}  # by partition, the offset after its last record
        self.arrived: dict[str, float] = {}  # by event id
        self._received = changes(config, [table])

    def close(self) -> None:
        """Stop, and wait for the end. May be called again."""
        self.stopping.set()
        self.join()

    def run(self) -> None:
        with closing(self._received):
            super().run()

    def turn(self) -> None:
        change = self._received.poll(0.1)
        if change is None:
            return
        self.arrived.setdefault(change.event_id, time.time())
        if change.key is None:
            self.ended += change.attributes.get(MARK) == "end"
        else:
            (self.reads if change.operation is Operation.READ else self.changes).append(change)
        self.ends[change.partition] = change.offset + 1  # last, so that whoever sees it also sees the change


class BatchLog:
    """The batch lines of ``consumer``, or of all: the offsets up to which it applied the topic, and when."""

    def __init__(self, path: Path, topic: str, consumer: str | None = None) -> None:
        self.path = path
        self.topic = topic
        self.consumer = consumer
        self.rows = 0
        self.times: list[tuple[float, int]] = []  # for each batch, when it was applied, and its rows
        self._read = 0
        # By partition: end offsets and when they were reached, both increasing.
        self._reached: dict[int, list[tuple[int, float]]] = defaultdict(list)

    def refresh(self) -> Self:
        if not self.path.exists():
            return self
        with self.path.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._read += len(complete)
        for line in complete.splitlines():
            if line.startswith(b"{") and b'"batch"' in line:
                self._take(orjson.loads(line))
        return self

    def applied_at(self, change: ReceivedChange) -> float | None:
        reached = self._reached[change.partition]
        at = bisect_right(reached, change.offset, key=itemgetter(0))
        return reached[at][1] if at < len(reached) else None

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        return all(end <= max(self._reached[partition], default=(0,))[0] for partition, end in ends.items())

    def _take(self, line: Mapping[str, Any]) -> None:
        if line.get("event") != "batch" or self.consumer not in (None, line["consumer"]):
            return
        self.rows += line["rows"]
        self.times.append((line["applied_at"], line["rows"]))
        for partition, end in line["end_offsets"].get(self.topic, {}).items():
            reached = self._reached[int(partition)]
            if not reached or end > reached[-1][0]:
                reached.append((end, line["applied_at"]))

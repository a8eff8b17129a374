"""Reads a topic as it streams by, and compares it with what was written: I1, I2, I3."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, TopicPartition

from relay.avro.decode import decode
from relay.avro.registry import open_schemas
from relay.config import Config
from relay.errors import RelayError
from tests.soak.part import Item, Part

_DIGEST = 16  # hex digits of an event id: eight bytes
_SHOWN = 5
_PATIENCE = 30.0  # seconds without a record


def digest(event_id: str) -> int:
    """Return eight bytes of an event id as a number."""
    return int(event_id[:_DIGEST], 16)


def changes_on(config: Config, topic: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield partition, offset and value of each change that is committed now, those of a partition in their order."""
    settings = {"group.id": f"{topic}.soak", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({**config.kafka.client(), **settings, "enable.partition.eof": True})
    with closing(consumer), closing(open_schemas(config)) as schemas:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        left = set(partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        arrived = time.monotonic()
        while left:
            messages = consumer.consume(1000, timeout=0.2)  # it waits for all of them
            if messages:
                arrived = time.monotonic()
            elif time.monotonic() > arrived + _PATIENCE:
                raise RelayError(
                    f"topic {topic}: no record for {_PATIENCE:g} s, though partitions {sorted(left)} have more"
                )
            for message in messages:
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    yield partition, message.offset() or 0, decode(schemas, message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(partition)
                else:
                    raise RelayError(f"topic {topic}: {error.str()}")


class AppliedTimes:
    """When a consumer applied what is on its topics, by the batch lines in its log. Only complete batches count."""

    def __init__(self, log: Path) -> None:
        self._ends: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._times: dict[tuple[str, int], list[float]] = defaultdict(list)
        for line in log.read_bytes().splitlines(keepends=True):
            # A kill may cut a line off.
            if line.startswith(b"{") and line.endswith(b"}\n") and b'"batch"' in line:
                self._take(orjson.loads(line))

    def _take(self, line: Mapping[str, Any]) -> None:
        if line.get("event") != "batch":
            return
        for topic, ends in line["end_offsets"].items():
            for partition, end in ends.items():
                key = topic, int(partition)
                # What is applied again after a kill was applied before.
                if end > (self._ends[key] or [0])[-1]:
                    self._ends[key].append(end)
                    self._times[key].append(line["applied_at"])

    def of(self, topic: str, partition: int, offset: int) -> float | None:
        """Return when a record was applied, in seconds since the epoch, None if it was not."""
        ends = self._ends[topic, partition]
        at = bisect_right(ends, offset)
        return self._times[topic, partition][at] if at < len(ends) else None


@dataclass
class Told:
    """What the topic says about one item. ``applied``, ``committed``: of its changes, in seconds since the epoch."""

    at: int = 0  # index of the change that has to come next
    missing: set[int] = field(default_factory=set)  # indexes that were passed over
    partition: int = -1
    position: str = ""
    applied: array[float] = field(default_factory=lambda: array("d"))
    committed: array[float] = field(default_factory=lambda: array("d"))


class TopicCheck:
    """Compares a topic with a part's history, change by change. ``times``: of the cache's consumer."""

    def __init__(self, part: Part, history: Mapping[Item, Sequence[int]], times: AppliedTimes | None) -> None:
        self.part = part
        self.history = history
        self.items: dict[Item, Told] = defaultdict(Told)
        self.events: set[int] = set()
        self.published = 0
        self.doubled = 0
        self.disordered = 0
        self.problems: list[str] = []
        self._times = times

    @property
    def written(self) -> int:
        return sum(map(len, self.history.values()))

    @property
    def lost(self) -> int:
        return sum(
            len(history) - self.items[item].at + len(self.items[item].missing) for item, history in self.history.items()
        )

    def read(self, config: Config) -> None:
        """Read the topic to its end, and compare."""
        topic = config.topic(self.part.table)
        for partition, offset, change in changes_on(config, topic):
            self.take(topic, partition, offset, change)
        self.end()

    def end(self) -> None:
        """Compare what the topic lacks, after all its changes."""
        for item, history in self.history.items():
            told = self.items[item]
            lacks = sorted(told.missing)[:_SHOWN] or [told.at]
            if told.missing or told.at < len(history):
                self._say(f"{item}: of {len(history)} changes the topic lacks those from number {lacks} on")

    def take(self, topic: str, partition: int, offset: int, change: Mapping[str, Any]) -> None:
        """Compare the next change of a partition."""
        self.published += 1
        item, number = self.part.told(change)
        where = f"{item}: change {number} at {partition}/{offset}"
        told, history = self.items[item], self.history.get(item, ())
        if told.partition not in (-1, partition):
            self._say(f"{where}: earlier ones are in partition {told.partition}")
        told.partition = partition
        event = digest(change["event_id"])
        if event in self.events:
            self.doubled += 1
            self._say(f"{where} is there twice")
            return
        self.events.add(event)
        told.position = change["token"]["position"]
        if self._times is not None:
            self._note_times(told, self._times.of(topic, partition, offset), change["committed_at"].timestamp())
        if told.at < len(history) and history[told.at] == number:
            told.at += 1
            return
        self.disordered += 1
        self._say(f"{where} came where {list(history[told.at : told.at + _SHOWN])} were next")
        if (late := next((at for at in told.missing if history[at] == number), None)) is not None:
            told.missing.discard(late)
        elif (found := next((at for at in range(told.at, len(history)) if history[at] == number), None)) is not None:
            told.missing.update(range(told.at, found))
            told.at = found + 1

    @staticmethod
    def _note_times(told: Told, applied: float | None, committed: float) -> None:
        # A change is not applied before those that precede it.
        last = told.applied[-1] if told.applied else 0.0
        told.applied.append(float("inf") if applied is None else max(applied, last))
        told.committed.append(max(committed, told.committed[-1] if told.committed else 0.0))

    def _say(self, problem: str) -> None:
        if len(self.problems) < 50:
            self.problems.append(problem)

    def final(self) -> dict[Item, int]:
        """Return the version of each row that is there at the end."""
        rows = ((item, self.part.row(history[-1])) for item, history in self.history.items() if history)
        return {item: version for item, version in rows if version is not None}

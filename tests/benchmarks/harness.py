"""Runs contenders in turn, checks counts against the ground truth, and prints one line of JSON for each benchmark.

On a shared machine a figure means little by itself. So each benchmark alternates with its yardstick in the same run,
and runs the yardstick against itself (A/A), which shows the noise.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaException, TopicPartition


@dataclass(frozen=True)
class Benchmark:
    """A result. ``figure``, ``yardstick``: in ``unit``. ``expected``, ``seen``: counts that must be equal."""

    name: str
    figure: float
    yardstick: float
    unit: str
    ratio: float
    expected: int
    seen: int
    aa: float
    note: str

    def fields(self) -> dict[str, Any]:
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()}

    def line(self) -> str:
        fields = self.fields()
        return f"BENCH {fields.pop('name')} {orjson.dumps(fields).decode()}"


def in_turn(rounds: int, contenders: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run every contender once unmeasured, then ``rounds`` times in turn."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            figure = run()
            if number:
                figures[name].append(figure)
    return figures


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def pin(pid: int, core: int) -> None:
    """Pin ``pid`` and all its threads to one core, so figures are for one core."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


def count_committed(client: Mapping[str, Any], topic: str) -> int:
    """Count the records of ``topic`` that a read_committed reader sees."""
    settings = {"group.id": f"{topic}.count", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**client, **settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    seen, ended = 0, 0
    while ended < len(partitions):
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is None:
                seen += 1
            elif error.name() == "_PARTITION_EOF":
                ended += 1
            else:
                raise KafkaException(error)
    consumer.close()
    return seen

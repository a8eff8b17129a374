"""Batches of changes on a Spark in this process, as the consumers of tables get them, without Kafka."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from relay.avro.framing import fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.change import Change
from relay.config.spark import SparkConfig
from relay.kafka.group_offsets import Offsets
from relay.kafka.topic_writer import TopicWriter
from relay.table import TableSchema
from spark_consumers.decode import Decoder
from spark_consumers.session import close_session, open_session
from spark_consumers.table_consumer import TableBatch
from tests.benchmarks.changes import TABLE, change, finished
from tests.benchmarks.harness import Benchmark, median
from tests.benchmarks.invalidate import tree_seconds

TOPIC = "bench.orders"
PARTITIONS = 2
ROWS = 50_000  # of a batch
SCHEMA = change_schema(TABLE)
HEADER = single_object_header(fingerprint(SCHEMA))
CPU = "rows per CPU second"


class _Registered:
    """A registry that knows every schema."""

    def register(self, topic: str, schema: Any) -> bytes:
        return single_object_header(fingerprint(schema))


def writer_of(table: TableSchema) -> TopicWriter:
    return TopicWriter(table, TOPIC, PARTITIONS, "hash", _Registered())


@contextmanager
def spark(conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    session = open_session("bench", delta=True, spark=SparkConfig(conf=dict(conf or {})), memory="4g")
    try:
        yield session
    finally:
        close_session(session)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that ``work`` takes in this process and in all that it has started."""
    begun = tree_seconds(os.getpid())
    work()
    return tree_seconds(os.getpid()) - begun


def changes_of(items: Sequence[int], first: int) -> list[Change]:
    """Return the next change of each of ``items``; ``first``: the number of the first change."""
    found = []
    for number, item in enumerate(items, first):
        one = change(number)
        one.key = {"customer": f"customer-{item % 5000:05}", "order_id": str(item)}
        one.committed_at += number * 1000  # or the log would look for each change among the earlier ones
        found.append(one)
    return found


class Batches:
    """The batches of ``rows`` changes each, of random items out of ``items``, by number; the last one is kept."""

    def __init__(self, session: SparkSession, items: Sequence[int], rows: int = ROWS) -> None:
        self._session = session
        self._items = items
        self.rows = rows
        self._chance = random.Random(1)
        self._writer = writer_of(TABLE)
        self._decoder = Decoder({HEADER: SCHEMA}, registry=False, gaps="bench.gaps")
        self._ends: Offsets = {TOPIC: {str(partition): 0 for partition in range(PARTITIONS)}}
        self._number = -1
        self.written: set[int] = set()
        self.batch: TableBatch

    def get(self, number: int) -> TableBatch:
        while self._number < number:
            self._next()
        return self.batch

    def sample(self) -> Sequence[int]:
        """Return the items of the next batch."""
        return self._chance.sample(self._items, self.rows)

    def changes(self, items: Sequence[int], first: int) -> list[Change]:
        """Return the next change of each of ``items``, as ``changes_of`` does."""
        return changes_of(items, first)

    def _next(self) -> None:
        if self._number >= 0:
            self.batch.records.unpersist()
        self._number += 1
        items = self.sample()
        self.written.update(items)
        begin = {TOPIC: dict(self._ends[TOPIC])}
        records = []
        for value, _, partition, _ in finished(self._writer, self.changes(items, self._number * self.rows)):
            records.append((TOPIC, partition, self._ends[TOPIC][str(partition)], bytearray(value)))
            self._ends[TOPIC][str(partition)] += 1
        decoded = self._decoder.changes(frame(self._session, records)).persist()
        decoded.count()
        self.batch = TableBatch(decoded, self._decoder.layouts, begin, {TOPIC: dict(self._ends[TOPIC])})


def frame(session: SparkSession, records: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Return records as Kafka's source has them: topic, partition, offset, value."""
    return session.createDataFrame(records, "topic string, partition int, offset long, value binary").coalesce(2)


def result(name: str, figures: Mapping[str, Sequence[float]], *, expected: int, seen: int, note: str) -> Benchmark:
    """Return the result of contenders ``ours``, ``plain``, the yardstick, and ``again``, which is the yardstick too."""
    rate = {contender: median(found) for contender, found in figures.items()}
    return Benchmark(
        name=name,
        figure=rate["ours"],
        yardstick=rate["plain"],
        unit=CPU,
        ratio=rate["ours"] / rate["plain"],
        expected=expected,
        seen=seen,
        aa=rate["again"] / rate["plain"],
        note=note,
    )


def in_batches(
    batches: Batches, contenders: Mapping[str, Callable[[TableBatch], object]]
) -> dict[str, Callable[[], float]]:
    """Return for each contender a function that applies the next batch, and returns rows per CPU second."""

    def contender(apply: Callable[[TableBatch], object]) -> Callable[[], float]:
        numbers = iter(range(1 << 30))

        def run() -> float:
            batch = batches.get(next(numbers))
            return batches.rows / cpu_seconds(lambda: apply(batch))

        return run

    return {name: contender(apply) for name, apply in contenders.items()}

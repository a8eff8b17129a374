"""The cache consumer on Spark: turns batches of changes into invalidations.

The values are decoded in Python, since Spark takes longer to plan the decoding of a small batch than Python to do it.
On one machine the driver does it; on a cluster Spark's Python workers take the large batches, all partitions at once.
They also take a batch whose values would not fit into the driver.
``relay.cache.keys`` decides which keys a change invalidates, ``relay.cache.entry`` what that makes of an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row

from relay.cache.continuity import Continuity
from relay.cache.keys import CacheRules
from relay.config import CacheConfig, Config
from relay.errors import RelayError
from relay.kafka.group_offsets import Offsets, count_between
from spark_consumers.cache_batches import BatchOutcome, apply_chunk, chunks, conclude, invalidator, topics
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder
from spark_consumers.lag import LagAlarm
from spark_consumers.running import no_garbage_collection
from spark_consumers.session import is_cluster
from spark_consumers.value_reader import ValueReader

# Batches of so many records are worth a task for each partition and, on a cluster, the detour through Spark's workers.
_LARGE_BATCH = 10_000
_DRIVER_BYTES = 160 << 20  # of the values of a batch in the driver


@dataclass(frozen=True)
class KnownSchemas:
    """Schemas by header, as far as they are known."""

    by_header: Mapping[bytes, Mapping[str, Any]]

    def lookup(self, header: bytes) -> Mapping[str, Any] | None:
        return self.by_header.get(header)


@dataclass(frozen=True)
class InvalidationPlan:
    """What applying a batch needs, on the driver or on Spark's workers."""

    cache: CacheConfig
    rules: CacheRules
    schemas: KnownSchemas
    registry: bool
    gaps: str
    given_up: tuple[bytes, ...]
    published_since: str = ""

    def reader(self) -> ValueReader:
        return ValueReader(self.schemas, self.rules, registry=self.registry, gaps=self.gaps)


class _LargeValueError(Exception):
    """A value is too large to come to the driver."""


class CacheConsumer:
    """Invalidates the changed entries of one cache namespace."""

    name = "cache"
    at_most = 50_000
    interval = None
    delta = False
    location = None
    # They apply the large batches there.
    executor_modules = ("spark_consumers.invalidate", "relay.cache.urls")

    def __init__(self, config: Config, cache: CacheConfig) -> None:
        self._cache = cache
        self._rules = CacheRules(cache, config.sources)
        self.topics = topics(config, cache)
        self.continuity = Continuity(invalidator(cache), config.name, self._rules.keys)
        self._alarm = LagAlarm(self.name, cache.tombstone_ttl)
        # Set by the main thread before each query starts; read by the query's batch thread.
        self._plan: InvalidationPlan
        self._reader: ValueReader

    def lock(self) -> None:
        """Return None: several drivers may invalidate one cache."""

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        schemas = KnownSchemas(decoder.schemas)
        self._plan = InvalidationPlan(
            self._cache, self._rules, schemas, decoder.registry, decoder.gaps, tuple(decoder.given_up)
        )
        self._reader = self._plan.reader()
        return records

    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Invalidate the cache keys of a batch; return counts. Raises ``Unavailable``, ``UnknownSchemas``."""
        plan = replace(self._plan, published_since=self.continuity.published_since)
        expected = count_between(begin, end)
        is_for_workers = expected >= _LARGE_BATCH and is_cluster(batch.sparkSession.sparkContext.master)
        outcome = None if is_for_workers else _apply_here(plan, self._reader, batch, expected)
        if outcome is None:
            outcome = BatchOutcome()
            work: Callable[[Iterable[Row]], list[BatchOutcome]] = partial(_apply_on_worker, plan)
            for part in batch.rdd.mapPartitions(work).collect():
                outcome.add(part)
        if outcome.failure is not None:
            raise outcome.failure
        return conclude(outcome, self._cache, self._rules, dead_letters, self._alarm)


def _apply_here(plan: InvalidationPlan, reader: ValueReader, batch: DataFrame, expected: int) -> BatchOutcome | None:
    """Apply a batch of at most ``expected`` records; return None if it has values that are too large for the driver.

    What it has applied then is applied again, which is harmless.
    """
    is_large = f"octet_length(value) > {_DRIVER_BYTES // max(1, expected)}"
    small = batch.selectExpr("topic", "partition", "offset", f"if({is_large}, null, value)", is_large)
    # One task for a small batch: each further one takes longer than its records. A large one is applied one partition
    # at a time, while the next is read.
    is_small = expected < _LARGE_BATCH
    rows = small.coalesce(1).collect() if is_small else small.toLocalIterator(prefetchPartitions=True)
    try:
        return _apply(plan, reader, map(_small, rows))
    except _LargeValueError:
        return None


def _small(row: Row) -> tuple[Any, ...]:
    *record, is_large = row
    if is_large:  # I11
        raise _LargeValueError
    return tuple(record)


def _apply_on_worker(plan: InvalidationPlan, rows: Iterable[Row]) -> list[BatchOutcome]:
    """Apply the records of one partition. Returns a failure, since Spark only passes on an exception's text."""
    try:
        return [_apply(plan, plan.reader(), rows)]
    except RelayError as failure:
        return [BatchOutcome(failure=failure)]


def _apply(plan: InvalidationPlan, reader: ValueReader, rows: Iterable[tuple[Any, ...]]) -> BatchOutcome:
    """Invalidate the cache keys of some records, each with topic, partition, offset and value."""
    outcome = BatchOutcome()
    # Spark returns binary as bytearrays.
    records = ((*where, value if value is None else bytes(value)) for *where, value in rows)
    with no_garbage_collection():
        for chunk in chunks(records):
            changes, others = reader.read(chunk, plan.given_up)
            outcome.add(apply_chunk(plan.cache, plan.rules, changes, others, len(chunk), plan.published_since))
    return outcome

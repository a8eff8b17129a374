"""The cache consumer: turns batches of changes into invalidations in Redis.

Each record becomes one small JSON document. On one machine the driver applies the documents itself; a large batch one
partition at a time, while the next is decoded. On a cluster, the workers apply a large batch, all partitions at once.
``relay.cache.keys`` decides which keys a change invalidates, ``relay.cache.entry`` what that makes of an entry.
"""

from __future__ import annotations

import gc
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

import orjson
from pyspark.sql import DataFrame, Row

from relay.cache import InvalidationCounts, Invalidator, RedisStore
from relay.cache.continuity import Continuity
from relay.cache.keys import CacheRules, ReducedChange, gap_bump, invalidations
from relay.config import CacheConfig, Config
from relay.errors import RelayError
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord, refuse_unknown_schemas
from spark_consumers.decode import Decoder
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.reduced_changes import ChangeReader, document_reader
from spark_consumers.session import is_cluster

# Batches of so many records are worth one action for each partition, or the detour through Spark's Python workers.
_LARGE_BATCH = 10_000
_CHUNK = 8192  # records applied to Redis at once (I11)


@dataclass(frozen=True)
class InvalidationPlan:
    """What applying a batch needs, on the driver or on Spark's workers."""

    cache: CacheConfig
    rules: CacheRules
    layouts: Sequence[Layout]


@dataclass
class BatchOutcome:
    """The result of applying some records.

    ``bumps``: reasons to invalidate the namespace. ``non_changes``: without Kafka's tombstones.
    """

    rows: int = 0
    counts: InvalidationCounts = field(default_factory=InvalidationCounts)
    bumps: list[str] = field(default_factory=list)
    non_changes: list[NonChangeRecord] = field(default_factory=list)
    failure: RelayError | None = None

    def add(self, more: BatchOutcome) -> None:
        self.rows += more.rows
        self.bumps += more.bumps
        self.non_changes += more.non_changes
        self.failure = self.failure or more.failure
        self.counts.applied += more.counts.applied
        self.counts.discarded += more.counts.discarded
        self.counts.unknown += more.counts.unknown
        self.counts.retried += more.counts.retried


class CacheConsumer:
    """Invalidates the changed entries of one cache namespace."""

    name = "cache"
    at_most = 50_000
    interval = None
    delta = False

    def __init__(self, config: Config, cache: CacheConfig) -> None:
        self._cache = cache
        self._rules = CacheRules(cache, config.sources)
        # The stream includes the gaps topic, so its checkpoint covers gaps too and a restart misses none (I9).
        self.topics = [*map(config.topic, cache.keys), config.internal("gaps")]
        self.continuity = Continuity(_invalidator(cache), config.name, self._rules.keys)
        # Set by the main thread before each query starts; read by the query's batch thread.
        self._plan = InvalidationPlan(cache, self._rules, ())

    def lock(self) -> None:
        """Return None: several drivers may invalidate one cache."""

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        self._plan = InvalidationPlan(self._cache, self._rules, decoder.layouts)
        image_columns: dict[str, Sequence[str]] = {}
        for layout in decoder.layouts:
            wanted = self._rules.columns(layout.table) - {field.name for field in layout.key}
            # Layouts of one table may have different keys, for example after its source was renamed.
            image_columns[layout.table] = sorted(wanted.union(image_columns.get(layout.table, ())))
        return decoder.reduced_changes(records, image_columns)

    def apply(self, batch: DataFrame, dead_letters: DeadLetterTopic, expected: int) -> dict[str, int]:
        """Invalidate the cache keys of a batch; return counts. Raises ``Unavailable``, ``UnknownSchemas``."""
        outcome = BatchOutcome()
        if expected < _LARGE_BATCH:
            outcome.add(_apply(self._plan, batch.collect()))
        elif not is_cluster(batch.sparkSession):
            outcome.add(_apply(self._plan, batch.toLocalIterator(prefetchPartitions=True)))
        else:
            work: Callable[[Iterable[Row]], list[BatchOutcome]] = partial(_apply_on_worker, self._plan)
            for part in batch.rdd.mapPartitions(work).collect():
                outcome.add(part)
        if outcome.failure is not None:
            raise outcome.failure
        refuse_unknown_schemas(outcome.non_changes)
        undecodable = dead_letters.send(outcome.non_changes)
        if undecodable:
            outcome.bumps.append(f"{undecodable} records could not be decoded and are in the dead letters")
        gaps = [record.value for record in outcome.non_changes if record.status is DecodeStatus.GAP]
        outcome.bumps += filter(None, (gap_bump(gap, self._rules.sources) for gap in gaps))
        if outcome.bumps:
            more = f", and {len(outcome.bumps) - 1} more" if len(outcome.bumps) > 1 else ""
            _invalidator(self._cache).bump(f"{outcome.bumps[0]}{more}")
        return {
            "rows": outcome.rows,
            "applied": outcome.counts.applied,
            "discarded": outcome.counts.discarded,
            "unknown": outcome.counts.unknown,
            "retried": outcome.counts.retried,
            "bumps": len(outcome.bumps),
            "dead_letters": undecodable,
        }


def _invalidator(cache: CacheConfig) -> Invalidator:
    return _shared_invalidator(cache.url, cache.namespace, cache.tombstone_ttl)


@cache
def _shared_invalidator(url: str, namespace: str, tombstone_ttl: float) -> Invalidator:
    """Return this process's invalidator of a cache. Spark's workers outlive a batch and use it again.

    Consumers in one process share it too, which its store and its rules allow.
    """
    return Invalidator(RedisStore(url), namespace, tombstone_ttl=tombstone_ttl)


def _apply_on_worker(plan: InvalidationPlan, rows: Iterable[Row]) -> list[BatchOutcome]:
    """Apply the records of one partition. Returns a failure, since Spark only passes on an exception's text."""
    try:
        return [_apply(plan, rows)]
    except RelayError as failure:
        return [BatchOutcome(failure=failure)]


def _apply(plan: InvalidationPlan, rows: Iterable[Row]) -> BatchOutcome:
    """Invalidate the cache keys of some records. Each row is one document of ``Decoder.reduced_changes``."""
    with _no_garbage_collection():
        return _apply_in_chunks(plan, rows)


def _apply_in_chunks(plan: InvalidationPlan, rows: Iterable[Row]) -> BatchOutcome:
    readers = [document_reader(layout, plan.rules) for layout in plan.layouts]
    invalidator = _invalidator(plan.cache)
    outcome = BatchOutcome()
    documents = (orjson.loads(row[0]) for row in rows)
    while chunk := list(islice(documents, _CHUNK)):
        found = invalidations(_changes(chunk, readers), plan.rules)
        counts = invalidator.apply(found.pairs)
        non_changes = [_non_change(document["x"]) for document in chunk if "x" in document]
        non_changes = [record for record in non_changes if record.status != DecodeStatus.TOMBSTONE]
        outcome.add(BatchOutcome(len(chunk), counts, list(found.bumps), non_changes))
    return outcome


def _changes(documents: Iterable[Mapping[str, Any]], readers: Sequence[ChangeReader]) -> Iterator[ReducedChange]:
    for document in documents:
        change = document.get("c")
        if change is not None:
            yield readers[change["i"]](change)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn Python's cyclic garbage collector off: the documents have no cycles, and it takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _non_change(fields: Mapping[str, Any]) -> NonChangeRecord:
    return NonChangeRecord(
        DecodeStatus(fields["status"]),
        fields["topic"],
        fields["partition"],
        fields["offset"],
        b64decode(fields.get("value", "")),
    )

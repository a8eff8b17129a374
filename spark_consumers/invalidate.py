"""The cache consumer on Spark: turns batches of changes into invalidations.

Each record becomes one small JSON document. On one machine the driver applies the documents itself; a large batch one
partition at a time, while the next is decoded. On a cluster, the workers apply a large batch, all partitions at once.
``relay.cache.keys`` decides which keys a change invalidates, ``relay.cache.entry`` what that makes of an entry.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import orjson
from pyspark.sql import DataFrame, Row

from relay.cache.continuity import Continuity
from relay.cache.keys import CacheRules, ReducedChange
from relay.config import CacheConfig, Config
from relay.errors import RelayError
from relay.kafka.group_offsets import Offsets, count_between
from spark_consumers.cache_batches import CHUNK, BatchOutcome, apply_chunk, conclude, invalidator, topics
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.decode import Decoder
from spark_consumers.lag import LagAlarm
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.reduced_changes import ChangeReader, document_reader
from spark_consumers.running import no_garbage_collection
from spark_consumers.session import is_cluster

# Batches of so many records are worth one action for each partition, or the detour through Spark's Python workers.
_LARGE_BATCH = 10_000


@dataclass(frozen=True)
class InvalidationPlan:
    """What applying a batch needs, on the driver or on Spark's workers."""

    cache: CacheConfig
    rules: CacheRules
    layouts: Sequence[Layout]
    published_since: str = ""


class CacheConsumer:
    """Invalidates the changed entries of one cache namespace."""

    name = "cache"
    at_most = 50_000
    interval = None
    delta = False

    def __init__(self, config: Config, cache: CacheConfig) -> None:
        self._cache = cache
        self._rules = CacheRules(cache, config.sources)
        self.topics = topics(config, cache)
        self.continuity = Continuity(invalidator(cache), config.name, self._rules.keys)
        self._alarm = LagAlarm(self.name, cache.tombstone_ttl)
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

    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Invalidate the cache keys of a batch; return counts. Raises ``Unavailable``, ``UnknownSchemas``."""
        outcome = BatchOutcome()
        plan = replace(self._plan, published_since=self.continuity.published_since)
        if count_between(begin, end) < _LARGE_BATCH:
            outcome.add(_apply(plan, batch.collect()))
        elif not is_cluster(batch.sparkSession):
            outcome.add(_apply(plan, batch.toLocalIterator(prefetchPartitions=True)))
        else:
            work: Callable[[Iterable[Row]], list[BatchOutcome]] = partial(_apply_on_worker, plan)
            for part in batch.rdd.mapPartitions(work).collect():
                outcome.add(part)
        if outcome.failure is not None:
            raise outcome.failure
        return conclude(outcome, self._cache, self._rules, dead_letters, self._alarm)


def _apply_on_worker(plan: InvalidationPlan, rows: Iterable[Row]) -> list[BatchOutcome]:
    """Apply the records of one partition. Returns a failure, since Spark only passes on an exception's text."""
    try:
        return [_apply(plan, rows)]
    except RelayError as failure:
        return [BatchOutcome(failure=failure)]


def _apply(plan: InvalidationPlan, rows: Iterable[Row]) -> BatchOutcome:
    """Invalidate the cache keys of some records. Each row is one document of ``Decoder.reduced_changes``."""
    with no_garbage_collection():
        return _apply_in_chunks(plan, rows)


def _apply_in_chunks(plan: InvalidationPlan, rows: Iterable[Row]) -> BatchOutcome:
    readers = [document_reader(layout, plan.rules) for layout in plan.layouts]
    outcome = BatchOutcome()
    documents = (orjson.loads(row[0]) for row in rows)
    while chunk := list(islice(documents, CHUNK)):
        non_changes = [_non_change(document["x"]) for document in chunk if "x" in document]
        changes = _changes(chunk, readers)
        outcome.add(apply_chunk(plan.cache, plan.rules, changes, non_changes, len(chunk), plan.published_since))
    return outcome


def _changes(documents: Iterable[Mapping[str, Any]], readers: Sequence[ChangeReader]) -> Iterator[ReducedChange]:
    for document in documents:
        change = document.get("c")
        if change is not None:
            yield readers[change["i"]](change)


def _non_change(fields: Mapping[str, Any]) -> NonChangeRecord:
    return NonChangeRecord(
        DecodeStatus(fields["status"]),
        fields["topic"],
        fields["partition"],
        fields["offset"],
        b64decode(fields.get("value", "")),
    )

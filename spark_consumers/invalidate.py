"""The cache consumer on Spark: turns batches of changes into invalidations.

The values are decoded in Python, since Spark takes longer to plan the decoding of a small batch than Python to do it.
On one machine the driver does it; on a cluster Spark's Python workers take the large batches, all partitions at once.
They also take a batch whose values would not fit into the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from relay.cache.continuity import Continuity
from relay.config import CacheConfig, Config
from relay.config.topic_names import topics_of_cache
from relay.errors import RelayError
from relay.kafka.group_offsets import Offsets, count_between
from spark_consumers.applied import Start
from spark_consumers.cache_batches import BatchOutcome, CacheWork, LagAlarm, chunks
from spark_consumers.consumer import Consumer
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder
from spark_consumers.packed_records import LargeValueError, PackedRecords
from spark_consumers.running import no_garbage_collection
from spark_consumers.value_reader import KafkaRecord, ValueReader

# Batches of so many records are worth a task for each partition and, on a cluster, the detour through Spark's workers.
_LARGE_BATCH = 10_000
_DRIVER_BYTES = 160 << 20  # of the values of a batch in the driver


class CacheConsumer(Consumer):
    """Invalidates the changed entries of one cache namespace. Several drivers may do so."""

    name = "cache"
    at_most = 50_000
    continuity: Continuity
    # They apply the large batches there.
    executor_modules = ("spark_consumers.invalidate",)

    def __init__(self, config: Config, cache: CacheConfig) -> None:
        self._work = CacheWork.of(config, cache)
        self.topics = topics_of_cache(config, cache)
        self.cache = cache.place
        self.continuity = Continuity(self._work.invalidator, config.name, self._work.rules.keys)
        self._alarm = LagAlarm(cache.tombstone_ttl)
        # Set by the main thread before each query starts; read by the query's batch thread.
        self._decoder: Decoder
        self._reader: ValueReader

    def begin(self, session: SparkSession, start: Start) -> None:
        self.continuity.begin(start.ids, start.first, start.ends)

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        self._decoder = decoder
        self._reader = self._work.reader(decoder)
        return records

    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Invalidate the cache keys of a batch; return counts. Raises ``Unavailable``, ``UnknownSchemas``."""
        return self.apply_records(PackedRecords(batch), count_between(begin, end), dead_letters)

    def apply_records(self, records: PackedRecords, expected: int, dead_letters: DeadLetterTopic) -> dict[str, int]:
        """Do what `apply` does. ``expected``: the records at most."""
        outcome = None
        if expected < _LARGE_BATCH or not records.is_on_cluster:
            outcome = self._apply_here(records, expected)
        if outcome is None:
            outcome = BatchOutcome()
            since = self.continuity.published_since
            for part in records.on_workers(partial(_apply_on_worker, self._work, self._decoder, since)):
                outcome.add(part)
        if outcome.failure is not None:
            raise outcome.failure
        return self._work.conclude(outcome, dead_letters, self._alarm)

    def _apply_here(self, records: PackedRecords, expected: int) -> BatchOutcome | None:
        """Apply a batch of at most ``expected`` records; return None if the driver has no room for its values.

        What it has applied then is applied again, which is harmless.
        """
        most = _DRIVER_BYTES // max(1, expected)
        try:
            found = records.together(most) if expected < _LARGE_BATCH else records.by_partition(most)
            return _apply(self._work, self._reader, self._decoder.given_up, self.continuity.published_since, found)
        except LargeValueError:
            return None


def _apply_on_worker(
    work: CacheWork, decoder: Decoder, since: str, records: Iterable[KafkaRecord]
) -> list[BatchOutcome]:
    """Apply the records of one partition. Returns a failure, since Spark only passes on an exception's text."""
    try:
        return [_apply(work, work.reader(decoder), decoder.given_up, since, records)]
    except RelayError as failure:
        return [BatchOutcome(failure=failure)]


def _apply(
    work: CacheWork, reader: ValueReader, given_up: Collection[bytes], since: str, records: Iterable[KafkaRecord]
) -> BatchOutcome:
    """Invalidate the cache keys of some records."""
    outcome = BatchOutcome()
    with no_garbage_collection():
        for chunk in chunks(records):
            changes, others = reader.read(chunk, given_up)
            outcome.add(work.apply(changes, others, len(chunk), since))
    return outcome

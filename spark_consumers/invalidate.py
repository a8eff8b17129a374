"""The cache consumer on Spark: turns batches of changes into invalidations.

The values are decoded in Python, which takes less time than Spark takes to plan it for a small batch. The driver does
it; on a cluster, and if the values would not fit into the driver, Spark's Python workers do it, all partitions at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from struct import unpack_from
from typing import TypeVar

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession

from relay.cache.continuity import Continuity
from relay.config import CacheConfig, Config
from relay.config.topic_names import topics_of_cache
from relay.errors import RelayError
from relay.kafka.group_offsets import Offsets, count_between
from spark_consumers.applied_notes import Start
from spark_consumers.cache_batches import BatchOutcome, CacheWork, LagAlarm, chunks
from spark_consumers.consumer import Consumer
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder
from spark_consumers.java_classes import new_instance
from spark_consumers.running import no_garbage_collection
from spark_consumers.session import is_cluster
from spark_consumers.spark_internals import bytes_of, rows_of
from spark_consumers.value_reader import KafkaRecord, ValueReader

# Batches of so many records are worth a task for each partition and, on a cluster, the detour through Spark's workers.
_LARGE_BATCH = 10_000
_DRIVER_BYTES = 160 << 20  # bytes of a batch's values in the driver

_NULL = -1
_ANY = (1 << 63) - 1  # bytes of a value

_T = TypeVar("_T")


class CacheConsumer(Consumer):
    """Invalidates the changed entries of one cache namespace. Several drivers may do so."""

    name = "cache"
    at_most = 50_000
    continuity: Continuity
    # Python's modules for Spark's workers, which apply the large batches.
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
        self.continuity.begin(start.ids, start.first, start.ends, start.refusal)

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
        """Do the work of `apply`. ``expected``: the most records."""
        is_for_driver = expected < _LARGE_BATCH or not records.is_on_cluster
        outcome = self._apply_here(records, expected) if is_for_driver else None
        if outcome is None:
            outcome = BatchOutcome()
            since = self.continuity.published_since
            for part in records.on_workers(partial(_apply_on_worker, self._work, self._decoder, since)):
                outcome.add(part)
        if outcome.failure is not None:
            raise outcome.failure
        return self._work.conclude(outcome, dead_letters, self._alarm)

    def _apply_here(self, records: PackedRecords, expected: int) -> BatchOutcome | None:
        """Apply a batch of ``expected`` records at most; return None, perhaps half-way, if its values do not fit.

        Records that were applied by then are applied again, which is harmless.
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
    """Apply the records of one partition. Returns a failure, because Spark only passes on an exception's text."""
    try:
        return [_apply(work, work.reader(decoder), decoder.given_up, since, records)]
    except RelayError as failure:
        return [BatchOutcome(failure=failure)]


def _apply(
    work: CacheWork, reader: ValueReader, given_up: Collection[bytes], since: str, records: Iterable[KafkaRecord]
) -> BatchOutcome:
    outcome = BatchOutcome()
    with no_garbage_collection():
        for chunk in chunks(records):
            changes, others = reader.read(chunk, given_up)
            outcome.add(work.apply(changes, others, len(chunk), since))
    return outcome


class LargeValueError(Exception):
    """A value is larger than the requested limit."""


class PackedRecords:
    """The records of a batch, a frame with the columns topic, partition, offset and value.

    They come from the JVM many at once, as one string of bytes, which RecordPacker.java describes. Passed on as rows,
    each record took as long as reading and decoding it together.
    """

    def __init__(self, batch: DataFrame) -> None:
        self._batch = batch

    @property
    def is_on_cluster(self) -> bool:
        return is_cluster(self._batch.sparkSession.sparkContext.master)

    def together(self, most: int) -> Iterator[KafkaRecord]:
        """Return all records by one task: fastest for a few. Raises `LargeValueError` for more than ``most`` bytes."""
        return unpacked(self._packs(most, together=True).collect())

    def by_partition(self, most: int) -> Iterator[KafkaRecord]:
        """Return all records as `together` does, one partition at a time, while the next is read."""
        return unpacked(self._packs(most, together=False).toLocalIterator(prefetchPartitions=True))

    def on_workers(self, work: Callable[[Iterable[KafkaRecord]], Iterable[_T]]) -> list[_T]:
        """Return the results of ``work`` for the records of each partition, on Spark's Python workers."""
        return self._packs(_ANY, together=False).mapPartitions(lambda packs: work(unpacked(packs))).collect()

    def _packs(self, most: int, *, together: bool) -> RDD[bytes]:
        context = self._batch.sparkSession.sparkContext
        packs = new_instance(context, "RecordPacker").packs(rows_of(self._batch), most, together)
        return bytes_of(context, packs)


def unpacked(packs: Iterable[bytes]) -> Iterator[KafkaRecord]:
    """Yield the records in packs. Raises `LargeValueError` in place of one whose value was left out."""
    for pack in packs:
        at = 4 + int.from_bytes(pack[:4])
        topic = pack[4:at].decode()
        partition, count = unpack_from(">ii", pack, at)
        offsets = unpack_from(f">{count}q", pack, at + 8)
        lengths = unpack_from(f">{count}i", pack, at + 8 + 8 * count)
        at += 8 + 12 * count
        for offset, length in zip(offsets, lengths, strict=True):
            if length >= 0:
                yield topic, partition, offset, pack[at : at + length]
                at += length
            elif length == _NULL:
                yield topic, partition, offset, None
            else:
                raise LargeValueError  # I11

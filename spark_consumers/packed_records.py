"""Hands Kafka records from the JVM to Python, many of them as one string of bytes.

Handed over as rows, each took as long as to read it from Kafka and to decode it together. RecordPacker.java says what
such a pack is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import unpack_from
from typing import TypeVar

from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame

from spark_consumers.java_classes import new_instance
from spark_consumers.session import is_cluster
from spark_consumers.value_reader import KafkaRecord

_T = TypeVar("_T")

_NULL = -1
_ANY = (1 << 63) - 1  # bytes of a value


class LargeValueError(Exception):
    """A value is larger than was asked for."""


class PackedRecords:
    """The records of a batch, a frame with the columns topic, partition, offset and value."""

    def __init__(self, batch: DataFrame) -> None:
        self._batch = batch

    @property
    def is_on_cluster(self) -> bool:
        return is_cluster(self._batch.sparkSession.sparkContext.master)

    def together(self, most: int) -> Iterator[KafkaRecord]:
        """Return all, from one task: each further one takes longer than the records of a small batch.

        Raises `LargeValueError` at the first value of more than ``most`` bytes, which does not come to the driver.
        """
        return unpacked(self._packs(most, together=True).collect())

    def by_partition(self, most: int) -> Iterator[KafkaRecord]:
        """Return all as `together` does, one partition at a time, while the next is read."""
        return unpacked(self._packs(most, together=False).toLocalIterator(prefetchPartitions=True))

    def on_workers(self, work: Callable[[Iterable[KafkaRecord]], Iterable[_T]]) -> list[_T]:
        """Return what ``work`` makes of the records of each partition, on Spark's Python workers."""
        return self._packs(_ANY, together=False).mapPartitions(lambda packs: work(unpacked(packs))).collect()

    def _packs(self, most: int, *, together: bool) -> RDD[bytes]:
        context = self._batch.sparkSession.sparkContext
        packer = new_instance(context, "RecordPacker")
        return RDD(packer.packs(self._batch._jdf, most, together), context, NoOpSerializer())


def unpacked(packs: Iterable[bytes]) -> Iterator[KafkaRecord]:
    """Yield the records in packs. Raises `LargeValueError` instead of one whose value was left out."""
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

"""Cuts a batch whose values are too large into parts: Spark bounds a batch from Kafka in records alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from relay.config import Config
from relay.kafka.group_offsets import EARLIEST, Offsets, count_between
from relay.kafka.topics import LARGEST_MESSAGE
from spark_consumers import kafka_source

SizedRecord = tuple[str, int, int, int]
"""Topic, partition, offset, and the bytes of the value."""

OffsetRange = tuple[Offsets, Offsets]
"""Where some records begin and end."""


def cut_batch(
    session: SparkSession, config: Config, name: str, begin: Offsets, end: Offsets, at_most: int
) -> list[OffsetRange]:
    """Return the parts of a batch, as ``cut`` does; none if all of it is one part.

    Reads the values, unless the batch has so few that they fit whatever their size. ``name``: the consumer's.
    """
    if count_between(begin, end) * LARGEST_MESSAGE <= at_most:
        return []
    # A partition that was not there is read from its beginning.
    first = {t: {p: begin.get(t, {}).get(p, EARLIEST) for p in ps} for t, ps in end.items()}
    records = kafka_source.read_between(session, config, name, first, end)
    sizes = records.select("topic", "partition", "offset", F.coalesce(F.octet_length("value"), F.lit(0)).alias("size"))
    ((total,),) = sizes.agg(F.sum("size")).collect()
    if (total or 0) <= at_most:
        return []
    return cut(map(tuple, sizes.collect()), first, end, at_most)


def cut(records: Iterable[SizedRecord], begin: Offsets, end: Offsets, at_most: int) -> list[OffsetRange]:
    """Return consecutive parts of the ``records`` between two offsets, of at most so many bytes, or of one record.

    Each part takes about the same share of each partition, so that they are still read side by side.
    """
    ordered = sorted(_with_shares(records))
    firsts = {(topic, str(partition)): offset for _, topic, partition, offset, _ in reversed(ordered)}
    start: Offsets = {
        topic: {p: begin[topic][p] if begin[topic][p] >= 0 else firsts.get((topic, p), stop) for p, stop in ps.items()}
        for topic, ps in end.items()
    }
    parts: list[OffsetRange] = []
    reached, taken = start, 0
    for _, topic, partition, offset, size in ordered:
        if reached is not start and taken + size > at_most:  # I11
            parts.append((start, reached))
            start, taken = reached, 0
        reached = {**reached, topic: {**reached[topic], str(partition): offset + 1}}
        taken += size
    return [*parts, (start, end)]


def _with_shares(records: Iterable[SizedRecord]) -> Iterator[tuple[float, str, int, int, int]]:
    """Yield each record behind the share of its partition's bytes that are before it."""
    by_partition: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic, partition, offset, size in records:
        by_partition.setdefault((topic, partition), []).append((offset, size))
    for (topic, partition), found in by_partition.items():
        total, before = sum(size for _, size in found) or 1, 0
        for offset, size in sorted(found):
            yield before / total, topic, partition, offset, size
            before += size

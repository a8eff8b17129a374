"""The records of a batch on Spark that are not changes: schemas to wait for, gaps, and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay.avro.framing import SINGLE_OBJECT_HEADER
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.records import DecodeStatus

_PLACE = ("status", "topic", "partition", "offset")
_PART = 32 << 20  # bytes of values that are on the driver at once
_EXPECTED = (DecodeStatus.CHANGE, DecodeStatus.TOMBSTONE)


def heads(batch: DataFrame, statuses: Iterable[str]) -> list[tuple[NonChangeRecord, int]]:
    """Return the records that are not changes, with their sizes: gaps in full, and the header of others.

    ``batch``: with the columns of `Decoder.changes`. ``statuses``: all that its records have.
    """
    if set(statuses) <= set(_EXPECTED):
        return []
    value = F.col("value")
    head = F.when(F.col("status") == DecodeStatus.GAP, value).otherwise(F.substring(value, 1, SINGLE_OBJECT_HEADER))
    rows = batch.where(~F.col("status").isin(*_EXPECTED)).select(*_PLACE, head, F.octet_length(value))
    return [(NonChangeRecord(DecodeStatus(r[0]), r[1], r[2], r[3], bytes(r[4])), r[5]) for r in rows.collect()]


def send(batch: DataFrame, found: Iterable[tuple[NonChangeRecord, int]], dead_letters: DeadLetterTopic) -> int:
    """Send the undecodable records among ``heads``; return their number. Raises ``Unavailable``."""
    undecodable = [(record, size) for record, size in found if record.is_undecodable]
    return sum(dead_letters.send(_complete(batch, part)) for part in in_parts(undecodable, _PART))


def _complete(batch: DataFrame, heads: Sequence[NonChangeRecord]) -> list[NonChangeRecord]:
    """Return some records with their values in full."""
    places = [(head.topic, head.partition, head.offset) for head in heads]
    wanted = F.broadcast(batch.sparkSession.createDataFrame(places, "topic STRING, `partition` INT, `offset` BIGINT"))
    rows = batch.join(wanted, ["topic", "partition", "offset"]).select(*_PLACE, "value").collect()
    return [NonChangeRecord(DecodeStatus(r[0]), r[1], r[2], r[3], bytes(r[4])) for r in rows]


def in_parts(sized: Iterable[tuple[NonChangeRecord, int]], at_most: int) -> Iterator[list[NonChangeRecord]]:
    """Split records into parts of ``at_most`` bytes, or of one record."""
    part: list[NonChangeRecord] = []
    total = 0
    for record, size in sized:
        if part and total + size > at_most:  # I11
            yield part
            part, total = [], 0
        part.append(record)
        total += size
    if part:
        yield part

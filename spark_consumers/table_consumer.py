"""The consumer that writes changes to tables: what the change log and the copy have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay.avro.framing import SINGLE_OBJECT_HEADER
from relay.config import Config
from relay.kafka.group_offsets import Offsets
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.decode import Decoder
from spark_consumers.gaps import LostChanges, lost_changes
from spark_consumers.locks import Lock
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.sinks import delta

_PLACE = ("status", "topic", "partition", "offset")
_PART = 32 << 20  # bytes of values that are on the driver at once
_EXPECTED = (DecodeStatus.CHANGE, DecodeStatus.TOMBSTONE)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do with a batch.

    ``statuses``: the number of records by ``DecodeStatus``. ``write``: writes the changes, and the gaps that it is
    given, and returns its counts.
    """

    statuses: Mapping[str, int]
    write: Callable[[Sequence[LostChanges]], dict[str, int]]


@dataclass(frozen=True, slots=True)
class TableBatch:
    """The decoded records of a batch, and the offsets between which they are."""

    records: DataFrame
    layouts: Sequence[Layout]
    begin: Offsets
    end: Offsets


Rule = Callable[[TableBatch], BatchPlan]
"""Decides what a batch writes. Takes one Spark action to plan; a batch may come again."""


class TableConsumer:
    """Applies batches of changes to tables, by ``rule``. ``at_most``: records a batch.

    ``delta_at``: the location of the tables if they are in Delta.
    """

    interval = "2 seconds"
    continuity = None

    def __init__(self, name: str, config: Config, rule: Rule, *, at_most: int, delta_at: str | None = None) -> None:
        self.name = name
        self.at_most = at_most
        # The stream includes the gaps topic, so its checkpoint covers gaps too and a restart misses none (I9).
        self.topics = [*dict.fromkeys(map(config.topic, config.tables)), config.internal("gaps")]
        self.delta = delta_at is not None
        self._location = delta_at
        self._rule = rule
        # Set by the main thread before each query starts; read by the query's batch thread.
        self._layouts: Sequence[Layout] = ()

    def lock(self) -> Lock | None:
        return None if self._location is None else delta.lock(self._location)

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        self._layouts = decoder.layouts
        return decoder.changes(records)

    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Write what a batch changes; return counts.

        Raises ``UnknownSchemas`` before anything is written, ``Unavailable``, and what Spark raises.
        """
        batch = batch.persist()
        try:
            plan = self._rule(TableBatch(batch, self._layouts, begin, end))
            found = _heads(batch) if plan.statuses.keys() - set(_EXPECTED) else []
            non_changes = [record for record, _ in found]
            dead_letters.refuse_unknown_schemas(non_changes)
            gaps = lost_changes(non_changes)
            counts = plan.write(gaps)
            # Each dead letter is a change that the tables lack, and so is what a gap stands for.
            undecodable = [(record, size) for record, size in found if record.is_undecodable]
            sent = sum(dead_letters.send(_complete(batch, part)) for part in in_parts(undecodable, _PART))
            holes = {"gaps": len(gaps), "dead_letters": sent}
            return {"rows": sum(plan.statuses.values()), **counts, **holes}
        finally:
            batch.unpersist()


def collect_non_changes(batch: DataFrame) -> list[NonChangeRecord]:
    """Return the records of a batch of `Decoder.changes` that are neither changes nor tombstones."""
    rows = batch.where(~F.col("status").isin(*_EXPECTED)).select("status", "topic", "partition", "offset", "value")
    return [NonChangeRecord(DecodeStatus(r[0]), r[1], r[2], r[3], bytes(r[4])) for r in rows.collect()]


def _heads(batch: DataFrame) -> list[tuple[NonChangeRecord, int]]:
    """Return the records that are no changes, and their sizes: gaps in full, of others the header."""
    value = F.col("value")
    head = F.when(F.col("status") == DecodeStatus.GAP, value).otherwise(F.substring(value, 1, SINGLE_OBJECT_HEADER))
    rows = batch.where(~F.col("status").isin(*_EXPECTED)).select(*_PLACE, head, F.octet_length(value))
    return [(NonChangeRecord(DecodeStatus(r[0]), r[1], r[2], r[3], bytes(r[4])), r[5]) for r in rows.collect()]


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

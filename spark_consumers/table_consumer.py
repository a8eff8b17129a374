"""The common base of the change log, the copy and your own consumers: schemas to wait for, gaps, and dead letters."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from relay.avro.framing import SINGLE_OBJECT_HEADER
from relay.config import Config
from relay.kafka.committed import times_at
from relay.kafka.group_offsets import EARLIEST, Offsets, count_between
from relay.kafka.topics import LARGEST_MESSAGE
from spark_consumers import kafka_source
from spark_consumers.applied_notes import NOT_KNOWN, AppliedNotes, Start
from spark_consumers.consumer import Consumer
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.decode import Decoder
from spark_consumers.fold import Place
from spark_consumers.gaps import LostChanges, lost_changes
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.running import log_event

SizedRecord = tuple[str, int, int, int]  # topic, partition, offset, and the bytes of the value
OffsetRange = tuple[Offsets, Offsets]  # begin and end


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do with a batch. ``statuses``: the number of records by ``DecodeStatus``.

    ``write``: writes the changes and the given gaps, and returns its counts. ``close``: frees what the plan keeps.
    """

    statuses: Mapping[str, int]
    write: Callable[[Sequence[LostChanges]], dict[str, int]]
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class TableBatch:
    """The decoded records between two offsets. ``refuse``: makes the change at a place a dead letter, with a reason."""

    records: DataFrame
    layouts: Sequence[Layout]
    begin: Offsets
    end: Offsets
    number: int = 0
    refuse: Callable[[Place, str], None] = lambda place, why: None


class TableRule(Protocol):
    """The effect of batches on the tables of a consumer."""

    def plan(self, given: TableBatch) -> BatchPlan:
        """Decide what a batch writes. Takes one Spark action; a batch may come again."""

    def note_gaps(self, session: SparkSession, gaps: Sequence[LostChanges]) -> None:
        """Write gaps beside the tables. Not called for tables without notes."""
        return


_LOOK_EVERY = 2.0  # seconds between two looks whether enough records wait
_HEAD = ("status", "topic", "partition", "offset")
_SENT_AT_ONCE = 32 << 20  # bytes of dead letters in the driver at once
_EXPECTED = (DecodeStatus.CHANGE, DecodeStatus.TOMBSTONE)


class TableConsumer(Consumer):
    """Applies batches of changes to tables by ``rule``. ``notes``: the notes of the tables.

    ``at_most``: records per batch. ``apply_every``: seconds that a record may wait for a full batch. ``delta_at``: the
    location of the tables if they are in Delta. ``bytes_at_most``: bytes of values that the rule gets at once; None for
    any.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        rule: TableRule,
        *,
        at_most: int,
        notes: AppliedNotes = NOT_KNOWN,
        apply_every: float = _LOOK_EVERY,
        delta_at: str | None = None,
        bytes_at_most: int | None = 128 << 20,
    ) -> None:
        self.name = name
        self.at_most = at_most
        self.interval = f"{round(min(apply_every, _LOOK_EVERY) * 1000)} milliseconds"
        self.apply_every = apply_every if apply_every > _LOOK_EVERY else None
        # The stream includes the gaps topic, so its checkpoint covers gaps too and a restart misses none (I9).
        self.topics = [*dict.fromkeys(map(config.topic, config.tables)), config.internal("gaps")]
        self.delta = delta_at is not None
        self.location = delta_at
        self._config = config
        self._rule = rule
        self.notes = notes
        self._bytes_at_most = bytes_at_most
        # Set by the main thread before each query starts; read by the query's batch thread.
        self._decoder: Decoder | None = None

    def begin(self, session: SparkSession, start: Start) -> None:
        applied = None
        if self.notes is not NOT_KNOWN:
            gone = start.resume.keys() - {*self.topics}  # I1: topics of tables that have left the config
            left = {topic: start.resume[topic] for topic in gone}
            applied = {**start.first, **left, **self.notes.applied(session)}
        lacking = start.lacking(self.name, applied)
        if lacking:
            times = times_at(self._config, {(hole.topic, hole.partition): hole.end for hole in lacking})
            gaps = [
                LostChanges.between(hole, source.name, table, times.get((hole.topic, hole.partition), time.time()))
                for hole in lacking
                for table, source in self._config.tables.items()
                if self._config.topic(table) == hole.topic
            ]
            self._rule.note_gaps(session, gaps)
            self.notes.advance(session, start.first)  # I9: after all tables have them
            for gap in gaps:
                log_event("gap", self.name, source=gap.source, table=gap.table, reason=gap.reason)

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        self._decoder = decoder
        return decoder.changes(records)

    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Write a batch, in parts if its values are large. Raises ``UnknownSchemas`` before a part is written."""
        decoder, session = self._decoder, batch.sparkSession
        assert decoder is not None
        most = self._bytes_at_most
        parts = [] if most is None else cut_batch(session, self._config, self.name, begin, end, most)
        counts: Counter[str] = Counter()
        for first, last in parts or [(begin, end)]:
            if parts:  # read it again, because Spark would go through the whole batch for each part
                batch = decoder.changes(kafka_source.read_between(session, self._config, self.name, first, last))
            part = TableBatch(batch, decoder.layouts, first, last, number)
            counts.update(self._apply(part, dead_letters))
        self.notes.advance(session, end)  # I1: before Spark's checkpoint says so
        return {**counts, "parts": len(parts)} if parts else dict(counts)

    def set_aside(self) -> Mapping[str, tuple[float, str]]:
        return {
            table: (gap.open_since, f"{gap.reason}; {way} run `relay snapshot CONFIG {source} {table}`")
            for (source, table), gap in self.notes.incomplete().items()
            if table in self._config.tables
            for way in [
                "it takes changes again, but lacks earlier ones:" if gap.taken_back else "remove the cause, then"
            ]
        }

    def _apply(self, part: TableBatch, dead_letters: DeadLetterTopic) -> dict[str, int]:
        refused: list[int] = []

        def refuse(place: Place, why: str) -> None:
            begin, end = ({place.topic: {str(place.partition): offset}} for offset in (place.offset, place.offset + 1))
            found = kafka_source.read_between(part.records.sparkSession, self._config, self.name, begin, end).collect()
            letters = [NonChangeRecord(DecodeStatus.REFUSED, r[0], r[1], r[2], bytes(r[3]), why) for r in found]
            refused.append(dead_letters.send(letters))

        part = replace(part, refuse=refuse)
        part.records.persist()
        try:
            with closing(self._rule.plan(part)) as plan:
                heads = _heads(part.records, plan.statuses)
                records = [record for record, _ in heads]
                dead_letters.refuse_unknown_schemas(records)
                gaps = lost_changes(records)
                counts = plan.write(gaps)
                # Each dead letter is a change that the tables lack, and each gap stands for such changes.
                letters = in_parts(((head, size) for head, size in heads if head.is_undecodable), _SENT_AT_ONCE)
                sent = sum(dead_letters.send(_complete(part.records, some)) for some in letters) + sum(refused)
                holes = {"gaps": len(gaps), "dead_letters": sent}
            return {"rows": sum(plan.statuses.values()), **counts, **holes}
        finally:
            part.records.unpersist()


def _heads(batch: DataFrame, statuses: Iterable[str]) -> list[tuple[NonChangeRecord, int]]:
    """Return all but changes and tombstones, with their sizes: gaps in full, of others only the headers."""
    if set(statuses) <= set(_EXPECTED):
        return []
    value = F.col("value")
    head = F.when(F.col("status") == DecodeStatus.GAP, value).otherwise(F.substring(value, 1, SINGLE_OBJECT_HEADER))
    rows = batch.where(~F.col("status").isin(*_EXPECTED)).select(*_HEAD, head, F.octet_length(value))
    return [(NonChangeRecord(DecodeStatus(r[0]), r[1], r[2], r[3], bytes(r[4])), r[5]) for r in rows.collect()]


def _complete(batch: DataFrame, heads: Sequence[NonChangeRecord]) -> list[NonChangeRecord]:
    places = [(head.topic, head.partition, head.offset) for head in heads]
    wanted = F.broadcast(batch.sparkSession.createDataFrame(places, "topic STRING, `partition` INT, `offset` BIGINT"))
    rows = batch.join(wanted, ["topic", "partition", "offset"]).select(*_HEAD, "value").collect()
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


def cut_batch(
    session: SparkSession, config: Config, name: str, begin: Offsets, end: Offsets, at_most: int
) -> list[OffsetRange]:
    """Return the parts of a batch, as ``cut`` does, or an empty list if it needs no cutting.

    Spark limits a batch only by its number of records. Reads the sizes of the values, unless there are so few records
    that they fit whatever their size. ``name``: the consumer's.
    """
    if count_between(begin, end) * LARGEST_MESSAGE <= at_most:
        return []
    # A partition that was not there is read from its beginning.
    first = {t: {p: begin.get(t, {}).get(p, EARLIEST) for p in ps} for t, ps in end.items()}
    records = kafka_source.read_between(session, config, name, first, end)
    sizes = records.select("topic", "partition", "offset", F.coalesce(F.octet_length("value"), F.lit(0)).alias("size"))
    ((total,),) = sizes.agg(F.sum("size")).collect()
    return cut(map(tuple, sizes.collect()), first, end, at_most) if (total or 0) > at_most else []


def cut(records: Iterable[SizedRecord], begin: Offsets, end: Offsets, at_most: int) -> list[OffsetRange]:
    """Return consecutive parts of the ``records`` between two offsets, each of at most ``at_most`` bytes or one record.

    Each part takes about the same share of each partition, so that they are still read in parallel.
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
    """Yield each record with the share of its partition's bytes that precede it."""
    by_partition: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for topic, partition, offset, size in records:
        by_partition[topic, partition].append((offset, size))
    for (topic, partition), found in by_partition.items():
        total, before = sum(size for _, size in found) or 1, 0
        for offset, size in sorted(found):
            yield before / total, topic, partition, offset, size
            before += size

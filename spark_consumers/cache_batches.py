"""What a batch of changes does to a cache, on any engine.

``relay.cache.keys`` decides which keys a change invalidates, ``relay.cache.entry`` what that makes of an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache

from relay.avro.decode import WriterSchemas
from relay.cache import InvalidationCounts, Invalidator, open_store
from relay.cache.keys import CacheRules, ReducedChange, gap_bump, invalidations
from relay.cache.statements import statement_bump
from relay.config import CacheConfig, Config
from relay.errors import RelayError
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.lag import LagAlarm
from spark_consumers.records import DecodeStatus
from spark_consumers.value_reader import KafkaRecord, ValueReader

CHUNK = 8192  # records applied at once (I11)
CHUNK_BYTES = 16 << 20  # of their values, after which a chunk ends


@dataclass
class BatchOutcome:
    """The result of applying some records.

    ``bumps``: reasons to invalidate the namespace. ``non_changes``: without Kafka's tombstones and
    statements. ``oldest``: the first commit among the changes, in epoch seconds, or None if there is none, or no change
    has a time.
    """

    rows: int = 0
    counts: InvalidationCounts = field(default_factory=InvalidationCounts)
    bumps: list[str] = field(default_factory=list)
    non_changes: list[NonChangeRecord] = field(default_factory=list)
    failure: RelayError | None = None
    oldest: int | None = None

    def add(self, more: BatchOutcome) -> None:
        self.rows += more.rows
        self.bumps += more.bumps
        self.non_changes += more.non_changes
        self.failure = self.failure or more.failure
        self.oldest = min((time for time in (self.oldest, more.oldest) if time is not None), default=None)
        for name, count in asdict(more.counts).items():
            setattr(self.counts, name, getattr(self.counts, name) + count)


def chunks(records: Iterable[KafkaRecord]) -> Iterator[list[KafkaRecord]]:
    """Yield the records in lists that are to be applied at once, and take no more of them than that."""
    chunk: list[KafkaRecord] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record[3] or b"")
        if len(chunk) == CHUNK or size > CHUNK_BYTES:  # I11
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@dataclass(frozen=True)
class CacheWork:
    """What the records of its topics do to a cache, on the driver or on Spark's workers.

    ``others``: the topics that invalidate it with records that are not changes, and what these are. ``registry``:
    whether values may have the framing of a schema registry.
    """

    cache: CacheConfig
    rules: CacheRules
    others: Mapping[str, DecodeStatus]
    registry: bool

    @classmethod
    def of(cls, config: Config, cache: CacheConfig) -> CacheWork:
        others, ddl = {config.internal("gaps"): DecodeStatus.GAP}, config.internal("ddl")
        # A checkpoint may have statements that are to be read, of a source that has left the config. But without
        # sources of SQL a table may be called so.
        if "ddl" in config.own_topics or ddl not in map(config.topic, cache.keys):
            others[ddl] = DecodeStatus.STATEMENT
        return cls(cache, CacheRules(cache, config.sources), others, config.schema_registry is not None)

    @property
    def invalidator(self) -> Invalidator:
        return _shared_invalidator(self.cache.url, self.cache.namespace, self.cache.tombstone_ttl)

    def reader(self, schemas: WriterSchemas) -> ValueReader:
        return ValueReader(schemas, self.rules, registry=self.registry, others=self.others)

    def apply(
        self,
        changes: Iterable[ReducedChange],
        non_changes: Sequence[NonChangeRecord],
        rows: int,
        published_since: str,
    ) -> BatchOutcome:
        """Invalidate the cache keys of ``rows`` records. Raises ``Unavailable``.

        ``published_since``: see ``Continuity``.
        """
        found = invalidations(changes, self.rules)
        counts = self.invalidator.apply(found.pairs, published_since=published_since)
        others = []
        for record in non_changes:
            if record.status is DecodeStatus.STATEMENT:
                if (reason := statement_bump(record.value, self.rules.tables)) is not None:  # I6
                    found.bumps[reason] = None
            elif record.status is not DecodeStatus.TOMBSTONE:
                others.append(record)
        times = (token.timestamp for _, token in found.pairs if token is not None and token.timestamp)
        return BatchOutcome(rows, counts, list(found.bumps), others, oldest=min(times, default=None))

    def conclude(self, outcome: BatchOutcome, dead_letters: DeadLetterTopic, alarm: LagAlarm) -> dict[str, int]:
        """Do what the records of a batch ask for that are not changes; return the batch's counts, and its lag.

        Raises ``Unavailable``, ``UnknownSchemas``.
        """
        dead_letters.refuse_unknown_schemas(outcome.non_changes)
        undecodable = sum(record.is_undecodable for record in outcome.non_changes)
        if undecodable:
            outcome.bumps.append(f"{undecodable} records could not be decoded and are in the dead letters")
        gaps = [record.value for record in outcome.non_changes if record.status is DecodeStatus.GAP]
        outcome.bumps += filter(None, (gap_bump(gap, self.rules.sources) for gap in gaps))
        if outcome.bumps:
            more = f", and {len(outcome.bumps) - 1} more" if len(outcome.bumps) > 1 else ""
            self.invalidator.bump(f"{outcome.bumps[0]}{more}")
        dead_letters.send(outcome.non_changes)  # last, so that no topic that cannot be written keeps back the bump
        return {
            "rows": outcome.rows,
            **asdict(outcome.counts),
            "bumps": len(outcome.bumps),
            "dead_letters": undecodable,
            **alarm.lag(outcome.oldest),
        }


@cache
def _shared_invalidator(url: str, namespace: str, tombstone_ttl: float) -> Invalidator:
    """Return this process's invalidator of a cache. Spark's workers outlive a batch and use it again.

    Consumers in one process share it too, which its store and its rules allow.
    """
    return Invalidator(open_store(url), namespace, tombstone_ttl=tombstone_ttl)

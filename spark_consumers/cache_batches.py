"""The effect of a batch of changes on a cache, for any engine, by the rules of ``relay.cache.keys`` and ``entry``."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Self

import orjson

from relay.avro.decode import WriterSchemas
from relay.cache import InvalidationCounts, Invalidator, open_store
from relay.cache.keys import CacheRules, ReducedChange, gap_bump, invalidations
from relay.config import CacheConfig, Config
from relay.config.topic_names import require_own_envelope
from relay.errors import RelayError, Unavailable
from relay.mysql_dialect.alter_effects import leaves_rows
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.records import DecodeStatus
from spark_consumers.running import log_event
from spark_consumers.value_reader import KafkaRecord, ValueReader

CHUNK = 8192  # records applied at once (I11)
CHUNK_BYTES = 16 << 20  # bytes of their values, after which a chunk ends
_CALM = 60.0  # seconds without a late batch that end the alarm: batches of one source may be late while others are not

# Kinds of statements that leave rows unchanged. A table created in place of another counts as emptied, too.
_LEAVES_ROWS = ("CREATE", "INDEX")


@dataclass
class BatchOutcome:
    """The result of applying some records.

    ``bumps``: reasons to invalidate the namespace. ``non_changes``: records that are not changes, except Kafka's
    tombstones and statements. ``oldest``: the first known commit among the changes, in epoch seconds, or None.
    """

    rows: int = 0
    counts: InvalidationCounts = field(default_factory=InvalidationCounts)
    bumps: list[str] = field(default_factory=list)
    non_changes: list[NonChangeRecord] = field(default_factory=list)
    failure: RelayError | None = None
    oldest: int | None = None

    def add(self, more: Self) -> None:
        self.rows += more.rows
        self.bumps += more.bumps
        self.non_changes += more.non_changes
        self.failure = self.failure or more.failure
        self.oldest = min((time for time in (self.oldest, more.oldest) if time is not None), default=None)
        for name, count in asdict(more.counts).items():
            setattr(self.counts, name, getattr(self.counts, name) + count)


def chunks(records: Iterable[KafkaRecord]) -> Iterator[list[KafkaRecord]]:
    """Yield the records in lists to be applied at once, taking no more records than that."""
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


@dataclass(eq=False)
class LagAlarm:
    """Warns once when changes begin to be applied later than half of ``tombstone_ttl`` (seconds) after their commit,
    and logs when they no longer are. Used by one thread at a time.

    No stale value is stored meanwhile, but what is in the cache is served until its invalidation comes ("Times" in
    ``relay/cache/README.md``).
    """

    tombstone_ttl: float
    log: Callable[..., None] = log_event
    clock: Callable[[], float] = time.time
    late_at: float | None = None
    """The last late batch since the warning, or None if there was none."""

    def lag(self, oldest: int | None) -> dict[str, Any]:
        """Return the lag in the line of a batch. ``oldest``: its first commit in epoch seconds, if known."""
        if oldest is None:
            return {}
        now = self.clock()
        lag = max(0, round(now - oldest))
        if lag > self.tombstone_ttl / 2:
            is_first, self.late_at = self.late_at is None, now
            if is_first:
                said = (
                    f"changes are applied {lag} s after their commit, which is more than half of cache.tombstone_ttl "
                    f"({self.tombstone_ttl:g} s): until then the cache serves what they replaced. `relay status` "
                    "shows whether the relay is behind; if not, this consumer or the cache is too slow. Where such a "
                    "lag is expected, set tombstone_ttl to more than twice as much"
                )
                self.log("behind", "cache", lag=lag, tombstone_ttl=self.tombstone_ttl, error=said)
        elif self.late_at is not None and not 0 <= now - self.late_at < _CALM:  # the clock may have been set back
            self.late_at = None
            self.log("no longer behind", "cache", lag=lag, tombstone_ttl=self.tombstone_ttl)
        return {"lag": lag}


@dataclass(frozen=True)
class CacheWork:
    """Applies records of the topics to a cache, on the driver or on Spark's workers.

    ``others``: the topics whose records are not changes but also invalidate the cache, and the kind of each.
    ``registry``: whether values may have the framing of a schema registry.
    """

    cache: CacheConfig
    rules: CacheRules
    others: Mapping[str, DecodeStatus]
    registry: bool

    @classmethod
    def of(cls, config: Config, cache: CacheConfig) -> Self:
        require_own_envelope(config, map(config.topic, cache.keys))  # I6: no record there would invalidate anything
        others, ddl = {config.internal("gaps"): DecodeStatus.GAP}, config.internal("ddl")
        # A checkpoint may still have statements to read, of a source that has left the config. But without SQL sources,
        # a table may have this name.
        if "ddl" in config.own_topics or ddl not in map(config.topic, cache.keys):
            others[ddl] = DecodeStatus.STATEMENT
        return cls(cache, CacheRules(cache, config.sources), others, config.schema_registry is not None)

    @property
    def invalidator(self) -> Invalidator:
        return _shared_invalidator(self.cache.url, self.cache.namespace, self.cache.tombstone_ttl)

    def reader(self, schemas: WriterSchemas) -> ValueReader:
        return ValueReader(schemas, self.rules, registry=self.registry, others=self.others)

    def apply(
        self, changes: Iterable[ReducedChange], non_changes: Sequence[NonChangeRecord], rows: int, published_since: str
    ) -> BatchOutcome:
        """Invalidate the keys of ``rows`` records. ``published_since``: see ``Continuity``. Raises ``Unavailable``."""
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
        """Act on records that are not changes; return counts and lag. Raises ``Unavailable``, ``UnknownSchemas``."""
        dead_letters.refuse_unknown_schemas(outcome.non_changes)
        undecodable = sum(record.is_undecodable for record in outcome.non_changes)
        if undecodable:
            outcome.bumps.append(f"{undecodable} records could not be decoded")
        gaps = [record.value for record in outcome.non_changes if record.status is DecodeStatus.GAP]
        outcome.bumps += filter(None, (gap_bump(gap, self.rules.sources) for gap in gaps))
        if outcome.bumps:
            more = f", and {len(outcome.bumps) - 1} more" if len(outcome.bumps) > 1 else ""
            self.invalidator.bump(f"{outcome.bumps[0]}{more}")
        lost = 0
        try:
            dead_letters.send(outcome.non_changes)
        except Unavailable as error:  # I12: the bump has made up for them, and later changes must not wait
            lost = undecodable
            log_event("dead letters lost", "cache", records=lost, error=str(error))
        return {
            "rows": outcome.rows,
            **asdict(outcome.counts),
            "bumps": len(outcome.bumps),
            "dead_letters": undecodable - lost,
            **({"lost_dead_letters": lost} if lost else {}),
            **alarm.lag(outcome.oldest),
        }


def statement_bump(record: bytes, tables: Collection[str]) -> str | None:
    """Return why a record of ``<name>.ddl`` invalidates the namespace; None if it leaves the rows of ``tables`` alone.

    A statement may change rows without logging them: ALTER TABLE converts rows, RENAME brings rows under another name.
    """
    try:
        fields = orjson.loads(record)
        kind, text = fields["kind"], fields["statement"] or ""
        about = {name for table in fields["tables"] for name in (table["table"], table["renamed_to"])}
    except (ValueError, TypeError, KeyError):
        return "the record of a statement cannot be read"  # I6: it may be about any table
    concerned = sorted(about.intersection(tables))
    if not concerned or kind in _LEAVES_ROWS or (kind == "ALTER" and leaves_rows(text)):
        return None
    return f"the rows of {', '.join(concerned)} may have been changed by a statement ({kind})"


@cache
def _shared_invalidator(url: str, namespace: str, tombstone_ttl: float) -> Invalidator:
    """Return this process's invalidator of a cache. Spark's workers outlive a batch, and consumers may share it."""
    return Invalidator(open_store(url), namespace, tombstone_ttl=tombstone_ttl)

"""The cache consumer: the batches of changes become invalidations in Redis.

Of each record comes one small JSON text. On one machine the driver applies them, with no process in between; of many
it applies those of one partition while the next is decoded. On a cluster, many are applied where they were decoded,
all partitions at once. What a change touches is decided in ``cache_keys``, what becomes of an entry in
``relay.cache``.
"""

from __future__ import annotations

import gc
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

import orjson
from pyspark.sql import DataFrame, Row

from relay.cache import InvalidationCounts, Invalidator, RedisStore
from relay.change import Operation
from relay.config import CacheConfig, Config
from relay.errors import RelayError
from relay.table import REST
from relay.token import EventToken, OriginToken
from spark_consumers.cache_keys import Templates, Touched, attributes, invalidations, sql_value
from spark_consumers.dead_letters import RejectedRecord, UndecodableRecords, refuse_unknown_schemas
from spark_consumers.decode import BROKEN, Decoder, DecodeStatus, Field, Layout
from spark_consumers.session import is_cluster

ImageReader = Callable[[str], Mapping[str, Any] | None]
_OPERATIONS = {operation.value: operation for operation in Operation}
# Records from which on one action for each partition, or the detour over Spark's Python workers, pays.
_MANY = 10_000
_AT_ONCE = 8192  # records on their way into Redis (I11)


@dataclass(frozen=True)
class InvalidationPlan:
    """What applying needs to know; sent to Spark's workers."""

    cache: CacheConfig
    layouts: Sequence[Layout]


@dataclass
class BatchOutcome:
    """What became of some records. ``others``: those that are no changes, tombstones left out."""

    rows: int = 0
    counts: InvalidationCounts = field(default_factory=InvalidationCounts)
    bumps: list[str] = field(default_factory=list)
    others: list[RejectedRecord] = field(default_factory=list)
    failure: RelayError | None = None

    def add(self, more: BatchOutcome) -> None:
        self.rows += more.rows
        self.bumps += more.bumps
        self.others += more.others
        self.failure = self.failure or more.failure
        self.counts.applied += more.counts.applied
        self.counts.discarded += more.counts.discarded
        self.counts.unknown += more.counts.unknown
        self.counts.retried += more.counts.retried


class CacheConsumer:
    """Keeps one cache namespace honest."""

    name = "cache"
    at_most = 50_000
    interval = None
    delta = False

    def __init__(self, config: Config, cache: CacheConfig) -> None:
        self._cache = cache
        self._templates = Templates(cache)
        self._sources = {source.name for source in config.sources}
        # The gaps are part of the stream, so that its checkpoint covers them: none is missed in a restart (I9).
        self.topics = [*map(config.topic, cache.keys), config.internal("gaps")]
        self._plan = InvalidationPlan(cache, ())
        self.many = _MANY

    def lock(self) -> None:
        """Any number may invalidate one cache."""

    def close(self) -> None:
        """The connection is shared with whoever invalidates this cache next in this process."""

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        self._plan = InvalidationPlan(self._cache, decoder.layouts)
        beyond: dict[str, Sequence[str]] = {}
        for layout in decoder.layouts:
            wanted = self._templates.columns(layout.table) - {field.name for field in layout.key}
            # Layouts of one table may have different keys, as after its source was given another name.
            beyond[layout.table] = sorted(wanted.union(beyond.get(layout.table, ())))
        return decoder.touched(records, beyond)

    def apply(self, frame: DataFrame, letters: UndecodableRecords, expected: int) -> dict[str, int]:
        """Invalidate what a batch touches; return counts. Raises ``Unavailable``, ``UnknownSchemas``."""
        outcome = BatchOutcome()
        if expected < self.many:
            outcome.add(_apply(self._plan, frame.collect()))
        elif not is_cluster(frame.sparkSession):
            outcome.add(_apply(self._plan, frame.toLocalIterator(prefetchPartitions=True)))
        else:
            work: Callable[[Iterable[Row]], list[BatchOutcome]] = partial(_apply_there, self._plan)
            for part in frame.rdd.mapPartitions(work).collect():
                outcome.add(part)
        if outcome.failure is not None:
            raise outcome.failure
        refuse_unknown_schemas(outcome.others)
        dead = letters.send(outcome.others)
        if dead:
            outcome.bumps.append(f"records that could not be read: {dead}")
        outcome.bumps += self._gap_bumps(outcome.others)
        if outcome.bumps:
            more = f", and {len(outcome.bumps) - 1} more" if len(outcome.bumps) > 1 else ""
            _invalidator(self._cache).bump(f"{outcome.bumps[0]}{more}")
        return {
            "rows": outcome.rows,
            "applied": outcome.counts.applied,
            "discarded": outcome.counts.discarded,
            "unknown": outcome.counts.unknown,
            "retried": outcome.counts.retried,
            "bumps": len(outcome.bumps),
            "dead_letters": dead,
        }

    def _gap_bumps(self, records: Iterable[RejectedRecord]) -> list[str]:
        """Return why the gaps among ``records`` concern this cache (I9)."""
        bumps = []
        for record in records:
            if record.status is not DecodeStatus.GAP:
                continue
            try:
                gap = orjson.loads(record.value)
                source, reason = gap["source"], gap.get("reason")
            except (ValueError, TypeError, KeyError):
                # Whatever was lost is lost, also if the record that says so cannot be read.
                source, reason = None, "a gap that cannot be read"
            if source is None or source in self._sources:
                bumps.append(f"changes of {source or 'some source'} were lost: {reason}")
        return bumps


def _invalidator(cache: CacheConfig) -> Invalidator:
    return _shared_invalidator(cache.url, cache.namespace, cache.tombstone_ttl)


@cache
def _shared_invalidator(url: str, namespace: str, tombstone_ttl: float) -> Invalidator:
    """Return this process's connection to the cache. Spark's workers live on and use it again."""
    return Invalidator(RedisStore(url), namespace, tombstone_ttl=tombstone_ttl)


def _apply_there(plan: InvalidationPlan, rows: Iterable[Row]) -> list[BatchOutcome]:
    """Apply the records of one partition in a worker, whose exceptions would arrive as text only."""
    try:
        return [_apply(plan, rows)]
    except RelayError as failure:
        return [BatchOutcome(failure=failure)]


def _apply(plan: InvalidationPlan, rows: Iterable[Row]) -> BatchOutcome:
    """Invalidate what some records touch. Each row is one document of ``Decoder.touched``."""
    with _no_collector():
        return _applied(plan, rows)


def _applied(plan: InvalidationPlan, rows: Iterable[Row]) -> BatchOutcome:
    templates = Templates(plan.cache)
    layouts = [
        (layout, [field.name for field in layout.key], _odd(layout.key), _image_reader(layout))
        for layout in plan.layouts
    ]
    invalidator = _invalidator(plan.cache)
    outcome = BatchOutcome()
    documents = (orjson.loads(row[0]) for row in rows)
    while part := list(islice(documents, _AT_ONCE)):
        others = [_record(document["x"]) for document in part if "x" in document]
        found = invalidations(_touched(part, layouts), templates)
        counts = invalidator.apply(found.pairs)
        outcome.add(
            BatchOutcome(len(part), counts, found.bumps, [r for r in others if r.status != DecodeStatus.TOMBSTONE])
        )
    return outcome


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python's cyclic collector out: nothing here has cycles, and it would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _touched(
    documents: Iterable[Mapping[str, Any]],
    layouts: Sequence[tuple[Layout, Sequence[str], Mapping[str, str], ImageReader]],
) -> Iterator[Touched]:
    for document in documents:
        change = document.get("c")
        if change is None:
            continue
        layout, names, odd, image = layouts[change["i"]]
        texts, old, new = change.get("key"), change.get("old"), change.get("new")
        key = None if texts is None else dict(zip(names, texts, strict=True))
        if odd and key is not None:
            key = _read(key, odd)
        yield Touched(
            _OPERATIONS[change["op"]],
            layout.table,
            key,
            None if old is None else image(old),
            None if new is None else image(new),
            _token(change.get("token")),
        )


def _record(fields: Mapping[str, Any]) -> RejectedRecord:
    return RejectedRecord(
        DecodeStatus(fields["status"]),
        fields["topic"],
        fields["partition"],
        fields["offset"],
        b64decode(fields.get("value", "")),
    )


def _image_reader(layout: Layout) -> ImageReader:
    """Return what reads the columns of an image from the text that ``Decoder.touched`` gives of it."""
    if layout.row is None:
        return _item
    if layout.rest is None:  # an SQL row
        odd = _odd(layout.row)
        return (lambda text: _read(orjson.loads(text), odd)) if odd else orjson.loads
    kinds = {field.name: field.column or "" for field in layout.row}

    def typed(text: str) -> Mapping[str, Any] | None:
        columns: dict[str, Any] = orjson.loads(text)
        others = columns.pop(REST, {})
        if BROKEN in others:
            return None
        return attributes(columns, kinds) | {name: orjson.loads(value) for name, value in others.items()}

    return typed


def _odd(fields: Iterable[Field]) -> dict[str, str]:
    """Return the kind of each column of an SQL row whose value is not the text that the JVM prints."""
    found = {}
    for each in fields:
        kind = each.type.get("logicalType") if isinstance(each.type, dict) else each.type
        if each.column == "set" or kind in ("decimal", "float", "double"):
            found[each.name] = "set" if each.column == "set" else str(kind)
    return found


def _read(columns: Mapping[str, Any], odd: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: sql_value(odd[name], shown) if name in odd and shown is not None else shown
        for name, shown in columns.items()
    }


def _item(text: str) -> Mapping[str, Any] | None:
    columns: dict[str, Any] = orjson.loads(text)
    if BROKEN in columns:
        return None  # not JSON: what is in it is not known
    return {name: orjson.loads(value) for name, value in columns.items()}


def _token(fields: Mapping[str, Any] | None) -> EventToken | None:
    if fields is None:
        return None
    origin = fields.get("origin")
    return EventToken(
        fields["timestamp"], fields["shard"], fields["position"], None if origin is None else OriginToken(**origin)
    )

"""The cache consumer: the batches of changes become invalidations in Redis.

One Spark action a batch: each record comes to the driver as one small JSON text, and everything else is done here.
What a change touches is decided in ``cache_keys``, what becomes of an entry in ``relay.cache``.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from pyspark.sql import DataFrame

from relay.cache import Invalidator, RedisStore
from relay.change import Operation
from relay.config import Cache, Config
from relay.token import EventToken, OriginToken
from spark_consumers.cache_keys import Templates, Touched, invalidations
from spark_consumers.dead_letters import DeadLetters, Record, refuse_unknown_schemas
from spark_consumers.decode import BROKEN, Decoder, Layout, Status

_OPERATIONS = {operation.value: operation for operation in Operation}


class CacheConsumer:
    """Keeps one cache namespace honest."""

    name = "cache"
    at_most = 50_000  # records a batch: some 20 MB on the driver (I11)
    interval = None
    delta = False

    def __init__(self, config: Config, cache: Cache) -> None:
        self._templates = Templates(cache)
        self._sources = {source.name for source in config.sources}
        self._gaps = config.internal("gaps")
        # The gaps are part of the stream, so that its checkpoint covers them: none is missed in a restart (I9).
        self.topics = [*map(config.topic, cache.keys), self._gaps]
        self._layouts: Sequence[Layout] = ()
        self._store = RedisStore(cache.url)
        self._invalidator = Invalidator(self._store, cache.namespace, tombstone_ttl=cache.tombstone_ttl)

    def lock(self) -> None:
        """Any number may invalidate one cache."""

    def close(self) -> None:
        self._store.close()

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        self._layouts = decoder.layouts
        beyond = {
            layout.table: sorted(self._templates.columns(layout.table) - {field.name for field in layout.key})
            for layout in decoder.layouts
        }
        return decoder.touched(records, beyond)

    def apply(self, frame: DataFrame, letters: DeadLetters) -> dict[str, int]:
        """Invalidate what a batch touches; return counts. Raises ``Unavailable``, ``UnknownSchemas``."""
        documents = [orjson.loads(row[0]) for row in frame.collect()]
        others = [_record(document["x"]) for document in documents if "x" in document]
        refuse_unknown_schemas(others)
        found = invalidations(self._touched(documents), self._templates)
        dead = letters.send(others)
        if dead:
            found.bumps.append(f"{dead} records could not be read")
        found.bumps += self._gap_bumps(others)
        if found.bumps:
            more = f", and {len(found.bumps) - 1} more" if len(found.bumps) > 1 else ""
            self._invalidator.bump(f"{found.bumps[0]}{more}")
        counts = self._invalidator.apply(found.pairs)
        return {
            "rows": len(documents),
            "applied": counts.applied,
            "discarded": counts.discarded,
            "unknown": counts.unknown,
            "retried": counts.retried,
            "bumps": len(found.bumps),
            "dead_letters": dead,
        }

    def _touched(self, documents: Iterable[Mapping[str, Any]]) -> Iterator[Touched]:
        layouts = [(layout, [field.name for field in layout.key]) for layout in self._layouts]
        for document in documents:
            change = document.get("c")
            if change is None:
                continue
            layout, names = layouts[change["i"]]
            key = change.get("key")
            yield Touched(
                _OPERATIONS[change["op"]],
                layout.table,
                None if key is None else dict(zip(names, key, strict=True)),
                _image(change.get("old"), layout),
                _image(change.get("new"), layout),
                _token(change.get("token")),
            )

    def _gap_bumps(self, records: Iterable[Record]) -> list[str]:
        """Return why the gaps among ``records`` concern this cache (I9)."""
        bumps = []
        for record in records:
            if record.status is not Status.GAP:
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


def _record(fields: Mapping[str, Any]) -> Record:
    return Record(
        Status(fields["status"]),
        fields["topic"],
        fields["partition"],
        fields["offset"],
        b64decode(fields.get("value", "")),
    )


def _image(text: str | None, layout: Layout) -> Mapping[str, Any] | None:
    if text is None:
        return None
    columns: dict[str, Any] = orjson.loads(text)
    if layout.row is not None:
        return columns
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

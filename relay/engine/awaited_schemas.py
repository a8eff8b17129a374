"""Pages that wait until the schemas of their changes are published, each shard's in its order.

A schema registry, or a broker, that does not answer is asked again until it does, as a source is. Other pages pass.
Used by the worker's thread.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from relay.engine.topic_writers import TopicWriters
from relay.errors import ConfigError, NoAnswer, RelayError
from relay.kafka.topic_writer import TopicWriter
from relay.process.slow_call import SlowCall, call_all
from relay.reading.open_shard import WARN_AT_FAILURES, OpenShard, ReadOutcome, backoff
from relay.source import Page
from relay.table import TableSchema

log = logging.getLogger(__name__)

Results = Sequence[tuple[OpenShard, ReadOutcome]]

# The first is a warning too: nothing else says that a registry is away.
_WARN_AT = {1} | WARN_AT_FAILURES


_Made = TopicWriter | tuple[TableSchema, RelayError]
"""A writer, or a table and why it has none. After ``NoAnswer`` it may have one later."""


class AwaitedSchemas:
    """Publishes the schemas that pages come with. ``writers``: the published ones."""

    def __init__(self, writers: TopicWriters) -> None:
        self._writers = writers
        self._held: list[tuple[OpenShard, Page]] = []
        self._publishing: SlowCall[list[list[_Made]]] | None = None
        self._failures = 0
        self._publish_at = -math.inf
        # Why no page can have these tables, for the pages that wait for them.
        self._refused: dict[TableSchema, RelayError] = {}

    def forget(self) -> None:
        """Drop the pages: their shards are closed."""
        self._held.clear()

    def let_through(self, results: Results) -> Iterator[tuple[OpenShard, ReadOutcome]]:
        """Yield what may be published now of ``results`` and of what was held before.

        Instead of a page whose schema is refused, it yields the error (I12). Nothing more is read of a shard before its
        page is published, so its order stays (I2). Raises ``ConfigError``.
        """
        self._take_published()
        waiting: Results = [*self._held, *results] if self._held else results
        self._held.clear()
        missing: dict[TableSchema, None] = {}
        for shard, result in waiting:
            if shard.closed:
                continue  # its next owner publishes the schema
            if isinstance(result, Page) and result.tables and (found := self._writers.missing(result.tables)):
                if refused := next((self._refused[table] for table in found if table in self._refused), None):
                    yield shard, refused
                    continue
                self._held.append((shard, result))
                missing |= dict.fromkeys(found)
            else:
                yield shard, result
        self._refused.clear()
        if missing and self._publishing is None and time.monotonic() >= self._publish_at:
            self._publishing = SlowCall("schemas", partial(self._make, list(missing)))

    def _make(self, tables: Iterable[TableSchema]) -> list[list[_Made]]:
        """In a thread: make writers, table by table. Raises ``ConfigError``."""
        schemas: dict[tuple[str, str], list[TableSchema]] = {}
        for table in tables:
            schemas.setdefault((table.source, table.table), []).append(table)
        return call_all("schemas", [partial(self._make_in_order, each) for each in schemas.values()])

    def _make_in_order(self, schemas: Iterable[TableSchema]) -> list[_Made]:
        """Make the writers of a table, none after one that fails: a registry checks each schema with the one before."""
        made: list[_Made] = []
        for table in schemas:
            try:
                made.append(self._writers.make(table))
            except ConfigError as error:
                error.source = table.source
                raise
            except RelayError as error:
                return [*made, (table, error)]
        return made

    def _take_published(self) -> None:
        if self._publishing is None or not self._publishing.done():
            return
        call, self._publishing = self._publishing, None
        made = list(chain.from_iterable(call.result()))
        self._writers.add(each for each in made if isinstance(each, TopicWriter))
        failed = dict(each for each in made if not isinstance(each, TopicWriter))
        unanswered = {table: error for table, error in failed.items() if isinstance(error, NoAnswer)}
        self._refused = {table: error for table, error in failed.items() if table not in unanswered}
        if not unanswered:
            if self._failures:
                log.warning("the schemas are published now, after %d failures", self._failures)
            self._failures, self._publish_at = 0, -math.inf
            return
        self._failures += 1
        wait = backoff(self._failures)
        self._publish_at = time.monotonic() + wait
        waiting = 0
        for shard, page in self._held:
            if missing := self._writers.missing(page.tables):
                waiting += 1
                if reason := next((unanswered[table] for table in missing if table in unanswered), None):
                    shard.error = str(reason)  # which explains why it stands still
        log.log(
            logging.WARNING if self._failures in _WARN_AT else logging.DEBUG,
            "the changes of %d shards wait for the schema of their table, failure %d in a row: %s; retrying in %.1f s",
            waiting,
            self._failures,
            next(iter(unanswered.values())),
            wait,
        )

"""Pages that wait until the schemas of their changes are published, in order for each shard. Other pages go on."""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from relay.engine.topic_writers import TopicWriters
from relay.errors import ConfigError, NoAnswer, RelayError
from relay.kafka.topic_writer import TopicWriter
from relay.process.slow_call import SlowCall, call_all
from relay.reading.reader_pool import WARN_AT_FAILURES, OpenShard, ReadOutcome, backoff
from relay.source import Page
from relay.table import TableSchema

log = logging.getLogger(__name__)

Results = Sequence[tuple[OpenShard, ReadOutcome]]

_WARN_AT = {1} | WARN_AT_FAILURES  # the first, too: nothing else says that a registry is down

_Made = dict[TableSchema, TopicWriter | RelayError]  # after ``NoAnswer``, a table may get a writer later


class AwaitedSchemas:
    """Publishes the schemas of pages. ``writers``: the writers for published schemas."""

    def __init__(self, writers: TopicWriters) -> None:
        self._writers = writers
        self._held: list[tuple[OpenShard, Page]] = []
        self._publishing: SlowCall[list[_Made]] | None = None
        self._failures = 0
        self._publish_at = -math.inf
        # Why tables cannot be published, for the pages that wait for them.
        self._refused: dict[TableSchema, RelayError] = {}

    def forget(self) -> None:
        """Drop the pages, because their shards are closed."""
        self._held.clear()

    def let_through(self, results: Results) -> Iterator[tuple[OpenShard, ReadOutcome]]:
        """Yield what may be published now of ``results`` and of those held before. Raises ``ConfigError``.

        In place of a page whose schema is refused, yields the error (I12). A shard that waits is not read on (I2).
        """
        self._take_published()
        waiting: Results = [*self._held, *results] if self._held else results
        self._held.clear()
        missing: dict[TableSchema, None] = {}
        for shard, result in waiting:
            if shard.closed:
                continue  # the shard's next owner publishes the schema
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

    def _make(self, tables: Iterable[TableSchema]) -> list[_Made]:
        """Make writers, concurrently for several tables. Runs in a thread. Raises ``ConfigError``."""
        schemas: dict[tuple[str, str], list[TableSchema]] = {}
        for table in tables:
            schemas.setdefault((table.source, table.table), []).append(table)
        return call_all("schemas", [partial(self._make_in_order, each) for each in schemas.values()])

    def _make_in_order(self, schemas: Iterable[TableSchema]) -> _Made:
        """Make one table's writers up to the first failure: a registry checks each schema against the one before."""
        made: _Made = {}
        for table in schemas:
            try:
                made[table] = self._writers.make(table)
            except ConfigError as error:
                error.source = table.source
                raise
            except RelayError as error:
                return {**made, table: error}
        return made

    def _take_published(self) -> None:
        if self._publishing is None or not self._publishing.done():
            return
        call, self._publishing = self._publishing, None
        made = [each for of_table in call.result() for each in of_table.items()]
        self._writers.add(each for _, each in made if isinstance(each, TopicWriter))
        failed = {table: each for table, each in made if isinstance(each, RelayError)}
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
                    shard.error = str(reason)  # shown as the reason why the shard waits
        level = logging.WARNING if self._failures in _WARN_AT else logging.DEBUG
        said = "%d shards wait for the schema of their changes, failure %d in a row: %s; retrying in %.1f s"
        log.log(level, said, waiting, self._failures, next(iter(unanswered.values())), wait)

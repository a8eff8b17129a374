"""Pages that wait until the schemas of their changes are published, each shard's in its order.

A schema registry, or a broker, that does not answer is asked again until it does, as a source is. Other pages pass.
Used by the worker's thread.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from relay.engine.open_shard import LONGEST_BACKOFF, SHORTEST_WAIT, OpenShard
from relay.engine.topic_writers import TopicWriters
from relay.errors import NoAnswer
from relay.kafka.topic_writer import TopicWriter
from relay.process.slow_call import SlowCall
from relay.source import Page, ReadResult
from relay.table import TableSchema

log = logging.getLogger(__name__)

Results = Sequence[tuple[OpenShard, ReadResult]]

# Consecutive failures that are logged as warnings: others would fill the log.
_WARN_AT_FAILURES = {1, 3, 10, 100, 1000, 10_000}


class AwaitedSchemas:
    """Publishes the schemas that pages come with. ``writers``: has those that are published."""

    def __init__(self, writers: TopicWriters, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._writers = writers
        self._clock = clock
        self._held: list[tuple[OpenShard, Page]] = []
        self._publishing: SlowCall[list[TopicWriter]] | None = None
        self._failures = 0
        self._publish_at = -math.inf

    def __repr__(self) -> str:
        return f"<AwaitedSchemas[{len(self._held)} pages held, {self._failures} failures]>"

    def forget(self) -> None:
        """Drop the pages: their shards are closed."""
        self._held.clear()

    def let_through(self, results: Results) -> Iterator[tuple[OpenShard, ReadResult]]:
        """Yield what may be published now of ``results`` and of what was held before. Raises ``RelayError``.

        Nothing more is read of a shard before its page is published, so its order stays (I2).
        """
        self._take_published()
        waiting: Results = [*self._held, *results] if self._held else results
        self._held.clear()
        missing: dict[TableSchema, None] = {}
        for shard, result in waiting:
            if shard.closed:
                continue  # its next owner publishes the schema
            if isinstance(result, Page) and result.tables and (found := self._writers.missing(result.tables)):
                self._held.append((shard, result))
                missing |= dict.fromkeys(found)
            else:
                yield shard, result
        if missing and self._publishing is None and self._clock() >= self._publish_at:
            self._publishing = SlowCall("schemas", partial(self._writers.make, list(missing)))

    def _take_published(self) -> None:
        if self._publishing is None or not self._publishing.done:
            return
        call, self._publishing = self._publishing, None
        try:
            self._writers.add(call.result())
        except NoAnswer as error:
            self._failures += 1
            wait = random.uniform(0.5, 1.0) * min(LONGEST_BACKOFF, SHORTEST_WAIT * 2.0 ** min(self._failures, 10))
            self._publish_at = self._clock() + wait
            for shard, _ in self._held:
                shard.error = str(error)  # which explains why it stands still
            log.log(
                logging.WARNING if self._failures in _WARN_AT_FAILURES else logging.DEBUG,
                "the changes of %d shards wait for the schema of their table, failure %d in a row: %s; retrying in"
                " %.1f s",
                len({shard.key for shard, _ in self._held}),
                self._failures,
                error,
                wait,
            )
        else:
            if self._failures:
                log.warning("the schemas are published now, after %d failures", self._failures)
            self._failures, self._publish_at = 0, -math.inf

"""Finds out, in a separate thread, what a planned snapshot has to read."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from relay.errors import RelayError, Unavailable
from relay.process.seldom import Seldom
from relay.process.slow_call import SlowCall
from relay.records import ShardCheckpoint, SnapshotControl
from relay.snapshots.control import Measure, Measurement
from relay.source import Measured, SnapshotSource

log = logging.getLogger(__name__)

_RETRY_AFTER = 5.0  # seconds


class Measuring:
    """The measurements for one source, one after another. ``published``: the committed checkpoints of the stream."""

    def __init__(self, source: str, tables: SnapshotSource, clock: Callable[[], float]) -> None:
        self._source = source
        self._tables = tables
        self._clock = clock
        # When to retry, and when to log again what the beginning waits for.
        self._retry = Seldom(clock, every=_RETRY_AFTER)
        self._under_way: tuple[Measurement, SlowCall[Measured]] | None = None

    def has_ended(self, published: Mapping[str, ShardCheckpoint]) -> bool:
        """Whether a measurement has ended, and its snapshot may begin."""
        if self._under_way is None or not self._under_way[1].done():
            return False
        return self._tables.may_begin(self._under_way[0].asked.as_of, published)

    def start(self, control: SnapshotControl, step: Measure, published: Mapping[str, ShardCheckpoint]) -> None:
        """Start to measure a snapshot, unless that was tried a moment ago."""
        if self._retry.is_due():
            known, tables = dict(published), control.tables
            call = SlowCall(f"measure-{self._source}", lambda: self._tables.measure(known, tables))
            self._under_way = Measurement(control.id, step), call

    def wait(self, seconds: float) -> None:
        """Log now and then when a snapshot begins."""
        if self._retry.is_due():
            log.info("source %s: the snapshot starts in %d s, after the gap that it repairs", self._source, seconds)

    def look(self, snapshot: str, published: Mapping[str, ShardCheckpoint]) -> Measurement | None:
        """Return the measurement of a snapshot, None if none has begun. Raises ``RelayError`` for unreadable tables."""
        if self._under_way is None or self._under_way[0].id != snapshot:
            self._under_way = None  # it was for a snapshot that has been replaced
            return None
        measurement, call = self._under_way
        if not self.has_ended(published):
            if call.done() and self._retry.is_due():
                behind = self._clock() - measurement.asked.as_of
                said = "source %s: the snapshot waits until every shard is published up to %d s ago"
                log.info(said, self._source, behind)
            return measurement
        try:
            return replace(measurement, found=call.result())
        except RelayError as error:
            self._under_way = None
            if not isinstance(error, Unavailable):
                raise
            log.warning("source %s: the snapshot cannot start yet: %s", self._source, error)
            return None

    def drop(self) -> None:
        """Forget the last measurement, because its snapshot begins."""
        self._under_way = None

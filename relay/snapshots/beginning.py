"""What a snapshot has to read, asked in a thread of its own, and when it may begin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from relay.errors import Unavailable
from relay.process.slow_call import SlowCall
from relay.records import ShardCheckpoint, SnapshotControl
from relay.snapshots.emptied_tables import emptied
from relay.source import Measured, SnapshotSource

log = logging.getLogger(__name__)

_RETRY_AFTER = 5.0  # seconds


class BeginningSnapshot:
    """That of one source, one after the other. ``published``: returns the committed checkpoints of the stream.

    ``clock``: seconds since the epoch. Used by the worker's thread.
    """

    def __init__(
        self,
        source: str,
        tables: SnapshotSource,
        published: Callable[[], Mapping[str, ShardCheckpoint]],
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._tables = tables
        self._published = published
        self._clock = clock
        # When to check again whether a snapshot can begin.
        self._retry_at = 0.0
        # The measurement under way, with the id and ``as_of`` of its snapshot, and what was emptied before.
        self._measuring: tuple[str, int, Mapping[str, float], SlowCall[Measured]] | None = None

    def __repr__(self) -> str:
        return f"<BeginningSnapshot[{self._source}: {self._measuring[0] if self._measuring else 'none'}]>"

    @property
    def is_measured(self) -> bool:
        """Whether a measurement has ended, and the snapshot may begin."""
        if self._measuring is None or not self._measuring[3].done:
            return False
        return self._tables.may_begin(self._measuring[1], self._published())

    def measure(self, control: SnapshotControl) -> SnapshotControl | None:
        """Return ``control`` with what a snapshot that begins now reads; None if it cannot yet.

        And ``emptied``: a table that gets another name later is not among those that were measured.

        Raises ``RelayError`` for tables that cannot be read.
        """
        if self._measuring is None or self._measuring[0] != control.id:
            as_of = int(self._clock() - self._tables.margin)
            if self._clock() < self._retry_at:
                return None
            self._retry_at = self._clock() + _RETRY_AFTER
            if as_of <= control.after:
                # A READ could not yet replace what was published before a gap, nor the end what was read before.
                wait = control.after + 1 - as_of
                log.info("source %s: the snapshot starts in %d s, later than what it repairs", self._source, wait)
                return None
            published, tables = dict(self._published()), control.tables
            call = SlowCall(f"measure-{self._source}", lambda: self._tables.measure(published, tables))
            self._measuring = control.id, as_of, emptied(published), call  # I1
        _, as_of, before, measuring = self._measuring
        if not self.is_measured:
            if measuring.done and self._clock() >= self._retry_at:
                self._retry_at = self._clock() + _RETRY_AFTER
                behind = self._clock() - as_of
                log.info(
                    "source %s: the snapshot starts once each shard is published to %d s ago", self._source, behind
                )
            return None
        self._measuring = None
        try:
            measured = measuring.result()
        except Unavailable as error:
            log.warning("source %s: the snapshot cannot start yet: %s", self._source, error)
            return None
        segments, rows, parts = measured
        return replace(control, as_of=as_of, segments=segments, rows=rows, parts=tuple(parts), emptied=before)

"""One worker's window: it counts into it and leaves its status there, and others look in from their threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from relay.observe import health
from relay.observe.bars import SnapshotBars
from relay.observe.gauges import Gauges, Moment
from relay.observe.metrics import Metrics
from relay.observe.report import report
from relay.observe.status import WorkerStatus

_TAKE_EVERY = 1.0

Take = Callable[[float | None], WorkerStatus]
"""Takes a status. Its argument: since when some partitions have not passed the fence, None if all have."""


class Observer:
    """``shows``: whether anybody can look; without it, only the counters count.

    ``stalled_after``: seconds, see ``health``. ``clock``: never goes back, the pump's; ``wall``: the epoch's.
    """

    def __init__(
        self,
        name: str,
        worker: int = 0,
        *,
        shows: bool = False,
        stalled_after: float = health.STALLED_AFTER,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.worker = worker
        self.shows = shows
        self.stalled_after = stalled_after
        self.clock = clock
        self.wall = wall
        self.metrics = Metrics()
        # Where somebody watches the snapshots.
        self.bars: SnapshotBars | None = None
        # Written by the worker's thread, each in one step; what is in them never changes.
        self._status: WorkerStatus | None = None
        self._turned: float | None = None
        self._taken = 0.0
        self._fencing_since: float | None = None
        self.metrics.registry.register(Gauges(self._moment))

    def turn(self, take: Take, *, fencing: bool) -> None:
        """The main loop begins a turn. For the worker's thread.

        ``take``: gives the worker's status, of which this one keeps a new one every second. ``fencing``: whether some
        partitions have not passed the fence.
        """
        self._turned = now = self.clock()
        if not fencing:
            self._fencing_since = None
        elif self._fencing_since is None:
            self._fencing_since = now
        if self.shows and (self._status is None or now - self._taken >= _TAKE_EVERY):
            self._taken = now
            self._status = take(self._fencing_since)

    def stalls(self) -> list[health.Stall]:
        """Return what stands still (I10). This, and all below, from any thread."""
        return health.stalls(*self._moment(), limit=self.stalled_after)

    def unready(self) -> list[str]:
        return health.unready(self._status)

    def report(self) -> dict[str, Any]:
        """Return all that is known, ready for JSON, without secrets."""
        status, _, now, wall = self._moment()
        return {
            "name": self.name,
            "worker": self.worker,
            **report(status, now, wall),
            "stalls": self.stalls(),
            "not_ready": self.unready(),
        }

    def _moment(self) -> Moment:
        return self._status, self._turned, self.clock(), self.wall()

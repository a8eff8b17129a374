"""Hands a worker's counters and status from its thread to the threads that serve HTTP."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from relay.observe import health
from relay.observe.bars import SnapshotBars
from relay.observe.gauges import Gauges, Observation, open_lag
from relay.observe.history import History
from relay.observe.liveness import Liveness
from relay.observe.metrics import Metrics
from relay.observe.report import report
from relay.observe.status import WorkerStatus

_STATUS_INTERVAL = 1.0


class Observer:
    """``file``: the config's, for commands that are shown.

    ``keeps_status``: whether somebody can ask for the status; without it, only the counters are kept.

    ``stalled_after``: seconds, see ``health``. ``clock``: monotonic seconds, the same clock as the reader pool's.
    ``wall``: seconds since the epoch.
    """

    def __init__(
        self,
        name: str,
        worker: int = 0,
        *,
        file: str = "relay.yaml",
        keeps_status: bool = False,
        stalled_after: float = health.STALLED_AFTER,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.worker = worker
        self.file = file
        # As `relay status` calls the members of the group.
        self.process = f"{socket.gethostname()}/{os.getpid()}"
        # The other workers and the consumers of this relay, as the HTTP threads ask them.
        self.others: Callable[[], list[dict[str, Any]]] = list
        self.keeps_status = keeps_status
        self.stalled_after = stalled_after
        self.clock = clock
        self.wall = wall
        self.metrics = Metrics()
        self.liveness = Liveness(clock=clock)
        self.history = History()
        # The progress bars of snapshots, if stderr is a terminal. Only the worker's thread uses them.
        self.bars: SnapshotBars | None = None
        # Shared: the worker's thread replaces these two, and any thread reads them. Assignment is atomic, and a
        # WorkerStatus never changes, so no lock is needed.
        self._status: WorkerStatus | None = None
        self._turned: float | None = None
        # Only the worker's thread uses it.
        self._taken = 0.0
        self.metrics.registry.register(Gauges(self._observe, clock()))

    @property
    def registry(self) -> CollectorRegistry:
        return self.metrics.registry

    def begin_turn(self, take: Callable[[], WorkerStatus], *, waits: bool) -> None:
        """Record that the main loop begins a turn, and ``take`` a new status every second. For the worker's thread.

        ``waits``: whether something is to be committed.
        """
        self._turned = now = self.clock()
        self.liveness.turn(waits=waits)
        if self.keeps_status and (self._status is None or now - self._taken >= _STATUS_INTERVAL):
            self._taken = now
            self._status = take()
            self.liveness.look(self._status)
            if self.history.is_due(now):
                wall = self.wall()
                self.history.add(now, wall, self.metrics.totals(), open_lag(self._status, wall))

    def stalls(self) -> list[health.Stall]:
        """Return everything without progress (I10). Safe from any thread, as are the methods below."""
        return health.find_stalls(*self._observe(), limit=self.stalled_after, liveness=self.liveness)

    def not_ready_reasons(self) -> list[str]:
        return health.not_ready_reasons(self._status)

    def report(self) -> dict[str, Any]:
        """Return the complete status as JSON values, without secrets."""
        status, _, now, wall = self._observe()
        return {
            "name": self.name,
            "worker": self.worker,
            "process": self.process,
            "config": self.file,
            **report(status, now, wall),
            "dead_letters": self.metrics.dead_letters(),
            "history": list(map(list, self.history.samples())),
            "stalls": self.stalls(),
            "not_ready": self.not_ready_reasons(),
        }

    def _observe(self) -> Observation:
        return self._status, self._turned, self.clock(), self.wall()

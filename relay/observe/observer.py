"""Hands a worker's counters and status to the threads that serve HTTP. Gauges age while a worker hangs."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from relay import __version__
from relay.config.value_types import iso_time
from relay.observe import health, metrics
from relay.observe.health import Liveness
from relay.observe.history import Recent
from relay.observe.metrics import Metric, Metrics
from relay.observe.status import FORMAT, SourceView, WorkerStatus, report

_STATUS_INTERVAL = 1.0


@dataclass(eq=False, kw_only=True)
class Observer(Collector):
    name: str = field(kw_only=False)
    worker: int = field(default=0, kw_only=False)
    file: str = "relay.yaml"  # the config, for commands in messages
    keeps_status: bool = False  # whether somebody can ask for the status; otherwise only counters are kept
    stalled_after: float = health.STALLED_AFTER
    clock: Callable[[], float] = time.monotonic  # as the reader pool's
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.process = f"{socket.gethostname()}/{os.getpid()}"  # as `relay status` calls this member of the group
        self.id = uuid4().hex  # containers may share a machine's name, and each process has id 1
        self.others: Callable[[], list[dict[str, Any]]] = list  # asks the other workers and the consumers
        self.unread: Callable[[], Iterable[Mapping[str, Any]]] = list  # what Kafka knows of the consumers
        self.metrics = Metrics()
        self.liveness = Liveness(clock=self.clock)
        self.recent = Recent()
        # The worker's thread replaces it, and any thread reads it: a status never changes, so no lock is needed.
        self._status: WorkerStatus | None = None
        self._taken = 0.0  # only for the worker's thread
        self.registry = self.metrics.registry
        self.registry.register(self)

    def begin_turn(self, take: Callable[[], WorkerStatus], *, waits: bool) -> None:
        """Record a turn of the main loop; ``take`` a status each second. ``waits``: something waits for a commit."""
        now = self.clock()
        self.liveness.turn(waits=waits)
        if self.keeps_status and (self._status is None or now - self._taken >= _STATUS_INTERVAL):
            self._taken = now
            self._status = take()
            self.liveness.look(self._status)
            if self.recent.history.is_due(now):
                wall = self.wall()
                # Of the open shard in this worker that is furthest behind.
                lag = max((lag for each in self._status.sources for lag in _shard_lags(each, wall)), default=None)
                self.recent.history.add(now, wall, self.metrics.totals, lag)

    def stalls(self) -> list[health.Stall]:
        """Return everything without progress (I10). Safe from any thread, as are the methods below."""
        return health.find_stalls(*self._observe(), limit=self.stalled_after, liveness=self.liveness)

    def not_ready_reasons(self) -> list[str]:
        return health.not_ready_reasons(self._status)

    def report(self) -> dict[str, Any]:
        """Return the complete status as JSON values, without secrets."""
        status, _, now, wall = self._observe()
        published = self.metrics.tables
        return {
            "name": self.name,
            "format": FORMAT,
            "worker": self.worker,
            "process": self.process,
            "id": self.id,
            "config": self.file,
            **report(status, now, wall),
            "version": __version__,
            "uptime_seconds": round(now - self.liveness.started, 1),
            "tables": [
                {"source": source, "table": table, "topic": topic, "changes": published.get((source, table), 0)}
                for (source, table), topic in (status.topics if status is not None else {}).items()
            ],
            "dead_letters": self.metrics.dead_letters(),
            "history": list(map(list, self.recent.history.samples())),
            "events": [{**each._asdict(), "at": iso_time(each.at)} for each in self.recent.events()],
            "stalls": list(map(asdict, self.stalls())),
            "not_ready": self.not_ready_reasons(),
        }

    def collect(self) -> Iterable[GaugeMetricFamily]:
        status, turned, now, wall = self._observe()
        yield _family(metrics.UPTIME, [([], now - self.liveness.started)])
        if turned is not None:
            yield _family(metrics.TURN_AGE, [([], now - turned)])
        if status is None:
            return
        yield _family(metrics.PARTITIONS, [([], float(len(status.owned)))])
        for metric, value in _OF_SOURCE.items():
            values = ((source, value(source, now, wall)) for source in status.sources)
            samples = [([s.stream.source], found) for s, found in values if found is not None]
            absent = [([name], 1.0) for name, _, _ in status.absent] if metric is metrics.SET_ASIDE else []
            yield _family(metric, samples + absent)

    def _observe(self) -> tuple[WorkerStatus | None, float | None, float, float]:
        """Return the latest status, when the main loop last turned, and the time by both clocks."""
        return self._status, self.liveness.turned, self.clock(), self.wall()


def _family(metric: Metric, samples: Iterable[tuple[list[str], float]]) -> GaugeMetricFamily:
    family = metric.gauge()
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _shard_lags(source: SourceView, wall: float) -> Iterator[float]:
    return (lag for shard in source.open if (lag := source.shard_lag(shard, wall)) is not None)


# The value of a gauge per source, from the monotonic and the wall clock time; None leaves the gauge out.
_OF_SOURCE: dict[Metric, Callable[[SourceView, float, float], float | None]] = {
    metrics.LAG: lambda source, now, wall: source.lag(wall),
    metrics.SHARD_LAG: lambda source, now, wall: max(_shard_lags(source, wall), default=None),
    metrics.WATERMARK: lambda source, now, wall: source.low_watermark,
    metrics.OPEN: lambda source, now, wall: len(source.open) + len(source.segments),
    metrics.UNFINISHED: lambda source, now, wall: len(source.unfinished()),
    metrics.PENDING_GAPS: lambda source, now, wall: len(source.pending_gaps),
    metrics.ALTERED: lambda source, now, wall: len({gap["table"] for gap in source.altered}),
    metrics.SET_ASIDE: lambda source, now, wall: len(source.set_aside),
    metrics.SNAPSHOT_READ: lambda source, now, wall: source.rows[0] if source.rows else None,
    metrics.SNAPSHOT_ROWS: lambda source, now, wall: source.rows[1] if source.rows else None,
    metrics.POLL_AGE: lambda source, now, wall: max((now - poll.polled for _, _, poll in source.polls()), default=None),
    metrics.LISTING_AGE: lambda source, now, wall: max(0.0, wall - source.listing.at) if source.listing.at else None,
}

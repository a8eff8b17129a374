"""The gauges of the catalogue, computed from the latest status at each scrape, so they age while a worker hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from relay.observe import metrics
from relay.observe.metrics import Metric
from relay.observe.status import SourceView, WorkerStatus

Observation = tuple[WorkerStatus | None, float | None, float, float]
"""The latest status, when the main loop last turned, and the time by both clocks: see ``health.find_stalls``."""


class Gauges(Collector):
    """``observe``: returns the latest status and the time. Called from any thread.

    ``started``: when the worker did, by the monotonic clock.
    """

    def __init__(self, observe: Callable[[], Observation], started: float) -> None:
        self._observe = observe
        self._started = started

    def collect(self) -> Iterable[GaugeMetricFamily]:
        status, turned, now, wall = self._observe()
        yield _family(metrics.UPTIME, [([], now - self._started)])
        if turned is not None:
            yield _family(metrics.TURN_AGE, [([], now - turned)])
        if status is None:
            return
        yield _family(metrics.PARTITIONS, [([], float(len(status.owned)))])
        for metric, value in _SOURCE.items():
            values = ((source, value(source, now, wall)) for source in status.sources)
            yield _family(metric, [([s.stream.source], found) for s, found in values if found is not None])


def open_lag(status: WorkerStatus, wall: float) -> float | None:
    """Return the lag of the shard that is furthest behind among those open in a worker, None without one."""
    return max((lag for source in status.sources for lag in _shard_lags(source, wall)), default=None)


def _family(metric: Metric, samples: Iterable[tuple[list[str], float]]) -> GaugeMetricFamily:
    family = metric.gauge()
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _shard_lags(source: SourceView, wall: float) -> Iterator[float]:
    for shard in source.open:
        lag = source.shard_lag(shard, wall)
        if lag is not None:
            yield lag


def _listing_age(source: SourceView, wall: float) -> float | None:
    return max(0.0, wall - source.listed_at) if source.listed_at else None


# Per source: takes the monotonic and the wall clock time; None leaves the gauge out.
_SOURCE: dict[Metric, Callable[[SourceView, float, float], float | None]] = {
    metrics.LAG: lambda source, now, wall: source.lag(wall),
    metrics.SHARD_LAG: lambda source, now, wall: max(_shard_lags(source, wall), default=None),
    metrics.WATERMARK: lambda source, now, wall: source.low_watermark,
    metrics.OPEN: lambda source, now, wall: len(source.open) + len(source.segments),
    metrics.UNFINISHED: lambda source, now, wall: len(source.unfinished()),
    metrics.PENDING_GAPS: lambda source, now, wall: len(source.pending_gaps),
    metrics.SNAPSHOT_READ: lambda source, now, wall: source.rows[0] if source.rows else None,
    metrics.SNAPSHOT_ROWS: lambda source, now, wall: source.rows[1] if source.rows else None,
    metrics.POLL_AGE: lambda source, now, wall: max((now - poll.polled for _, _, poll in source.polls()), default=None),
    metrics.LISTING_AGE: lambda source, now, wall: _listing_age(source, wall),
}

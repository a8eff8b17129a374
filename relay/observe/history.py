"""The last 15 minutes of a worker in a ring: 180 samples, one in 5 s, however many sources and shards there are."""

from collections import deque
from typing import NamedTuple

INTERVAL = 5.0
"""Seconds from one sample to the next."""

KEPT = 180
"""Samples that are kept. One takes some 200 bytes, and 45 in ``/status.json``."""


class Totals(NamedTuple):
    """Counted since the start of the worker. ``latency``: the sum of the latencies of ``pages``, in seconds."""

    changes: float
    latency: float
    pages: float


class Sample(NamedTuple):
    """``at``: seconds since the epoch. ``rate``: changes published a second since the last sample.

    ``lag``: seconds of the shard that is furthest behind among those open in this worker, or None without one.
    ``latency``: mean seconds from the commit in the database to the publishing, or None if nothing was published.
    """

    at: int
    rate: float
    lag: float | None
    latency: float | None


class History:
    """Only the worker's thread adds; any thread may take a copy."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._last: tuple[float, Totals] | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time for a sample, ``now`` in monotonic seconds."""
        return self._last is None or now - self._last[0] >= INTERVAL

    def add(self, now: float, wall: float, totals: Totals, lag: float | None) -> None:
        """Add a sample; the first call only notes the totals. ``wall``: seconds since the epoch."""
        if self._last is not None:
            then, before = self._last
            changes, latency, pages = (new - old for new, old in zip(totals, before, strict=True))
            mean = round(latency / pages, 3) if pages else None
            rate = round(changes / max(now - then, 0.001), 2)
            self._samples.append(Sample(round(wall), rate, None if lag is None else round(lag, 1), mean))
        self._last = now, totals

    def samples(self) -> list[Sample]:
        """Return the samples, the oldest first."""
        return list(self._samples.copy())

"""What the consumers of a process show of themselves: their state, lag and health, in the threads that serve HTTP.

A consumer's thread says what happens, another one says every few seconds where the topics end. All the rest is computed
when somebody asks, so a consumer that hangs is noticed (I10).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from threading import Lock
from typing import Any
from uuid import uuid4

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from relay.config.hidden import redacted
from relay.kafka.group_offsets import Offsets, count_between
from relay.observe import consumer_metrics as metrics
from relay.observe.consumer_metrics import ConsumerMetrics
from relay.observe.health import Stall
from relay.process.server_memory import ServerMemory

STALLED_AFTER = 300.0
"""Seconds in which a consumer with waiting records applies a batch. A batch may be large, or merge small files."""

_LOOP = 5  # failures without a batch between them that make a loop: all quick attempts at one batch
_PATIENCE = 60.0  # seconds of failing that are one, too, and without a failure until one that has nothing to do is well
_LOOKS = 1000  # kept at most, over any time
_GAUGES = tuple(each for each in metrics.CONSUMER_CATALOGUE if not each.buckets and not each.name.endswith("_total"))
_LOSS_SHOWN = 3600.0  # how many seconds health is red after dead letters were lost, unless one is written
_RECENT = 300.0  # how many seconds the lag of a batch is shown


@dataclass(eq=False)
class ConsumerWatch:
    """One consumer, as its threads report it.

    ``tombstone_ttl``: its cache's, in seconds; None for other consumers. ``apply_every``: how many seconds records may
    wait for a batch. ``stalled_after``: seconds beyond that. ``clock``: monotonic seconds.
    """

    name: str
    topics: Sequence[str]
    counted: ConsumerMetrics
    _: KW_ONLY
    tombstone_ttl: float | None = None
    apply_every: float = 0.0
    stalled_after: float = STALLED_AFTER
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # Where it is served, as HOST:PORT@NAME, the name of its machine. Set before the consumer starts.
        self.address = ""
        # The memory of the servers of its cache. Set by the thread that looks, as one assignment of one reference.
        self.memory: Sequence[ServerMemory] = ()
        # The tables that take no changes: since when, in seconds, and why. Set before the consumer starts.
        self.set_aside: Callable[[], Mapping[str, tuple[float, str]]] = dict
        # Guards all below, which is short work.
        self._lock = Lock()
        self._state = "starting"
        self._error: str | None = None
        # The failures since it last advanced: how many, and when the first and the last of them were.
        self._failures, self._failing_since, self._failed_at = 0, 0.0, -math.inf
        # When dead letters could last not be written, or None if none were or some could since.
        self._lost_at: float | None = None
        self._begun = self.clock()
        self._progress = _Progress(self._begun)
        # The lags of recent batches from the commits of their changes, with the times of the batches: each that no
        # later batch has exceeded.
        self._commit_lags: deque[tuple[float, float]] = deque()
        self.counted.add_consumer(self.name)

    # ------------------------------------------------------------------ by the consumer's threads

    def start_at(self, offsets: Offsets) -> None:
        """Note where the consumer resumes, and that it runs. One that failed has to advance first."""
        with self._lock:
            self._state, self._progress.reached = "failing" if self._failures else "running", offsets
            self._progress.moved_at = self.clock()

    def reach(self, offsets: Offsets) -> None:
        """Note up to where records are applied."""
        with self._lock:
            self._state, self._error, self._failures = "running", None, 0
            self._progress.reach(offsets, self.clock())

    def count_batch(self, counts: dict[str, Any], seconds: float) -> None:
        self.counted.count_batch(self.name, counts, seconds)
        if counts.get("lost_dead_letters") or counts.get("dead_letters"):
            with self._lock:
                self._lost_at = self.clock() if counts.get("lost_dead_letters") else None
        if "lag" in counts:
            with self._lock:
                lags = self._commit_lags
                while lags and (lags[-1][1] <= counts["lag"] or len(lags) == _LOOKS):
                    lags.pop()
                lags.append((self.clock(), counts["lag"]))

    def fail(self, error: str, *, for_good: bool = False) -> None:
        """Note a failure. ``for_good``: whether this was the last attempt."""
        self.counted.count_failure(self.name)
        with self._lock:
            self._state, self._error, self._failed_at = "failed" if for_good else "failing", error, self.clock()
            self._failing_since = self._failing_since if self._failures else self._failed_at
            self._failures += 1

    def stop(self) -> None:
        with self._lock:
            self._state = "stopped"

    # ------------------------------------------------------------------ by the thread that looks at the topics

    @property
    def reached(self) -> Offsets | None:
        """Up to where records are applied; None before the start."""
        with self._lock:
            return self._progress.reached

    def look(self, reached: Offsets, ends: Offsets, at: float) -> None:
        """Note where the topics ended ``at`` a time, by the clock. ``reached``: for the count of what waits."""
        with self._lock:
            self._progress.look(reached, ends, at)
            if self._state == "failing" and not self._progress.open and at - self._failed_at > _PATIENCE:
                self._state, self._error, self._failures = "running", None, 0  # nothing is there to advance by

    # ------------------------------------------------------------------ by anybody

    def stalls(self) -> list[Stall]:
        """Return why this consumer is not healthy (I10)."""
        with self._lock:
            now = self.clock()
            found = list(self._stalls(now))
        error = redacted(self._error) if self._error else None
        stalls = [Stall(what, seconds, error=error, hangs=hangs) for what, seconds, hangs in found]
        for table, (since, why) in self.set_aside().items():  # I12: at once, since only a person can help
            what = f"consumer {self.name}: table {table} is set aside"
            stalls.append(Stall(what, max(0.0, time.time() - since), error=redacted(why)))
        return stalls

    def _stalls(self, now: float) -> Iterator[tuple[str, float, bool]]:
        """Yield what, for how many seconds, and whether it hangs, so that a restart may help."""
        name = f"consumer {self.name}"
        # One that failed once may hang in its next attempt.
        fails = now - self._failed_at <= self.stalled_after + self.apply_every
        if self._state == "failed":
            # Not by the liveness probe: a new process would refuse to start, and the consumers beside it end.
            yield f"{name} has stopped; restart it", now - self._failed_at, False
            return
        failing = now - self._failing_since
        if self._state == "failing" and (self._failures >= _LOOP or failing > _PATIENCE):
            yield f"{name} fails again and again", failing, False
        if self._lost_at is not None and now - self._lost_at < _LOSS_SHOWN:  # I12
            yield f"{name} could not write dead letters; see its log", now - self._lost_at, False
        if self._state == "starting" and now - self._begun > self.stalled_after:
            yield f"{name} has not started; see its log", now - self._begun, not fails
        if self._state in ("starting", "stopped"):
            return
        progress = self._progress
        since = max(progress.open[0][0], progress.moved_at) if progress.open else now
        if now - since > self.stalled_after + self.apply_every:
            yield f"{name} makes no progress while {progress.waiting} records wait", now - since, not fails
        if now - progress.looked_at > self.stalled_after:
            yield f"{name} cannot see the ends of its topics; see the brokers", now - progress.looked_at, False

    @property
    def is_ready(self) -> bool:
        with self._lock:
            return self._state == "running"

    def uptime(self) -> float:
        """Return the seconds since the process made this watch."""
        return self.clock() - self._begun

    def lag(self) -> tuple[int, float] | None:
        """Return the lag in records and in seconds, or None if it is not known."""
        with self._lock:
            return self._progress.lag(self.clock())

    def commit_lag(self) -> float:
        """Return the longest lag of the recent batches from the commits of their changes, in seconds."""
        with self._lock:
            while self._commit_lags and self._commit_lags[0][0] < self.clock() - _RECENT:
                self._commit_lags.popleft()
            return self._commit_lags[0][1] if self._commit_lags else 0.0

    def report(self) -> dict[str, Any]:
        lag = self.lag()
        with self._lock:
            found: dict[str, Any] = {"consumer": self.name, "state": self._state, "reached": self._progress.reached}
            found |= {"error": redacted(self._error) if self._error else None}
        found["dead_letters"] = self.counted.dead_letters(self.name)
        return found | {"lag_records": lag and lag[0], "lag_seconds": lag and round(lag[1], 1)}


class _Progress:
    """How far a consumer has come, and where its topics ended when somebody looked. Whoever has it guards it."""

    def __init__(self, now: float) -> None:
        self.reached: Offsets | None = None
        self.moved_at = self.looked_at = now
        self.waiting: int | None = None
        # Looks at the topics that found records which are not applied yet, the oldest first: when, and the ends.
        self.open: deque[tuple[float, Offsets]] = deque()
        # Everything that was on the topics then is applied; before the first such look, the start.
        self.complete = now

    def reach(self, offsets: Offsets, now: float) -> None:
        if offsets != self.reached:
            self.moved_at = now
        self.reached = offsets
        self._close(offsets)

    def look(self, reached: Offsets, ends: Offsets, at: float) -> None:
        self.looked_at = at
        self.waiting = max(0, count_between(reached, ends))
        self.open.append((at, ends))
        self._close(reached)
        self._close(self.reached or {})
        if len(self.open) > _LOOKS:
            self.open = deque([look for number, look in enumerate(self.open) if number % 2 == 0])

    def lag(self, now: float) -> tuple[int, float] | None:
        if self.waiting is None:
            return None
        return self.waiting, now - self.complete if self.open else 0.0

    def _close(self, reached: Offsets) -> None:
        while self.open and _includes(reached, self.open[0][1]):
            self.complete, _ = self.open.popleft()
            if not self.open:
                self.waiting = 0


class ConsumersObserver(Collector):
    """All consumers of a process, for the HTTP server. ``watches``: added before anybody is served."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._id = uuid4().hex
        self.watches: list[ConsumerWatch] = []
        self.counted = ConsumerMetrics()
        self.registry = self.counted.registry
        self.registry.register(self)

    def stalls(self) -> list[Stall]:
        return [stall for watch in self.watches for stall in watch.stalls()]

    def not_ready_reasons(self) -> list[str]:
        return [f"consumer {watch.name}: not running" for watch in self.watches if not watch.is_ready]

    def report(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "id": self._id,
            "addresses": sorted({watch.address.rpartition("@")[0] for watch in self.watches} - {""}),
            "consumers": [watch.report() for watch in self.watches],
            "stalls": self.stalls(),
            "not_ready": self.not_ready_reasons(),
        }

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = {metric: metric.gauge() for metric in _GAUGES}
        for watch in self.watches:
            families[metrics.RUNNING].add_metric([watch.name], float(watch.is_ready))
            families[metrics.SET_ASIDE].add_metric([watch.name], len(watch.set_aside()))
            families[metrics.UPTIME].add_metric([watch.name], watch.uptime())
            if watch.tombstone_ttl is not None:
                families[metrics.COMMIT_LAG].add_metric([watch.name], watch.commit_lag())
                families[metrics.TOMBSTONE_TTL].add_metric([watch.name], watch.tombstone_ttl)
            for server, used, limit, policy in watch.memory:
                families[metrics.STORE_USED].add_metric([watch.name, server], used)
                families[metrics.STORE_LIMIT].add_metric([watch.name, server, policy], limit)
            lag = watch.lag()
            if lag is not None:
                families[metrics.LAG_RECORDS].add_metric([watch.name], lag[0])
                families[metrics.LAG_SECONDS].add_metric([watch.name], lag[1])
        return families.values()


def _includes(reached: Offsets, ends: Offsets) -> bool:
    return all(reached.get(t, {}).get(p, -2) >= end for t, of_topic in ends.items() for p, end in of_topic.items())

"""What the consumers of a process report of themselves, computed on request so that one that hangs is seen (I10)."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from uuid import uuid4

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from relay import __version__
from relay.config.hidden import redacted
from relay.kafka.group_offsets import Offsets, count_between
from relay.observe import consumer_metrics as metrics
from relay.observe.consumer_metrics import ConsumerMetrics
from relay.observe.health import Stall
from relay.observe.history import History, Totals
from relay.observe.status import FORMAT
from relay.process.store_memory import ServerMemory

STALLED_AFTER = 300.0  # seconds for a consumer with waiting records to apply a batch, which may merge small files
_LOOP = 5  # failures without a batch in between that make a loop: all quick attempts at one batch
_PATIENCE = 60.0  # seconds of failing that make one; as long without failures, an idle consumer is well
_LOOKS = 1000  # failures that are kept at most
_GAUGES = tuple(each for each in metrics.CONSUMER_CATALOGUE if not each.buckets and not each.name.endswith("_total"))
_LOSS_SHOWN = 3600.0  # how many seconds health is red after dead letters were lost, unless one is written
_STORE_PATIENCE = 15.0  # seconds without the store of a cache: three looks
_RECENT = 300.0  # how many seconds the lag of a batch is shown


@dataclass(eq=False, kw_only=True)
class ConsumerWatch:
    """The state of one consumer, as its threads report it. ``clock``: returns monotonic seconds."""

    name: str = field(kw_only=False)
    topics: Sequence[str] = field(kw_only=False)
    counted: ConsumerMetrics = field(kw_only=False)
    tombstone_ttl: float | None = None  # the cache's, in seconds
    apply_every: float = 0.0  # seconds that records may wait for a batch
    stalled_after: float = STALLED_AFTER  # seconds beyond that
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # Set before the consumer starts: where the status is served, as HOST:PORT@NAME, with the machine's name; and
        # the tables that take no changes, since when, in seconds, and why.
        self.address = ""
        self.set_aside: Callable[[], Mapping[str, tuple[float, str]]] = dict
        self.store = WatchedStore(self.clock)
        self._lock = Lock()  # guards everything below; it is held only briefly
        self._state = "starting"
        self._failures = _Failures()
        self._progress = _Progress(self.clock())
        # The times of recent batches and their lags from the commits, only lags that no later batch exceeded.
        self._commit_lags: deque[tuple[float, float]] = deque()
        self.counted.add_consumer(self.name)

    # ------------------------------------------------------------------ by the consumer's threads

    def start_at(self, offsets: Offsets) -> None:
        """Record where the consumer resumes, and that it runs. After a failure it first has to advance."""
        with self._lock:
            self._state, self._progress.reached = "failing" if self._failures.number else "running", offsets
            self._progress.moved_at = self.clock()

    def reach(self, offsets: Offsets) -> None:
        with self._lock:
            self._state = "running"
            self._failures.pass_by()
            self._progress.reach(offsets, self.clock())

    def count_batch(self, counts: dict[str, Any], seconds: float) -> None:
        self.counted.count_batch(self.name, counts, seconds)
        if counts.get("lost_dead_letters") or counts.get("dead_letters"):
            with self._lock:
                self._failures.lost_at = self.clock() if counts.get("lost_dead_letters") else -math.inf
        if "lag" in counts:
            with self._lock:
                lags = self._commit_lags
                while lags and (lags[-1][1] <= counts["lag"] or len(lags) == _LOOKS):
                    lags.pop()
                lags.append((self.clock(), counts["lag"]))

    def fail(self, error: str, *, for_good: bool = False) -> None:
        """Record a failure. ``for_good``: whether this was the last attempt."""
        self.counted.count_failure(self.name)
        with self._lock:
            self._state = "failed" if for_good else "failing"
            self._failures.add(error, self.clock())

    def stop(self) -> None:
        with self._lock:
            self._state = "stopped"

    # ------------------------------------------------------------------ by the thread that looks at the topics

    @property
    def reached(self) -> Offsets | None:
        with self._lock:
            return self._progress.reached

    def look(self, reached: Offsets, ends: Offsets, at: float) -> None:
        """Record the ends of the topics at a time ``at``. ``reached``: the applied offsets, to count what waits."""
        with self._lock:
            self._progress.look(reached, ends, at)
            if self._state == "failing" and not self._progress.open and at - self._failures.at > _PATIENCE:
                self._state = "running"  # there are no records to advance by
                self._failures.pass_by()

    # ------------------------------------------------------------------ by any thread

    def stalls(self) -> list[Stall]:
        """Return why this consumer is not healthy (I10)."""
        with self._lock:
            error = self._failures.error
            stalls = [Stall(what, seconds, error=error, hangs=hangs) for what, seconds, hangs in self._stalls()]
        if (rival := self.store.rival) is not None:
            stalls.append(Stall(f"consumer {self.name}: another cache commits to its group", 0.0, error=rival))
        if (bypassed := self.store.bypassed()) is not None:
            seconds, why = bypassed
            what = f"consumer {self.name}: its store is bypassed, and values come from the source"
            stalls.append(Stall(what, seconds, error=redacted(why)))
        for table, (since, why) in self.set_aside().items():  # I12: at once, since only a person can help
            what = f"consumer {self.name}: table {table} is set aside"
            stalls.append(Stall(what, max(0.0, time.time() - since), error=redacted(why)))
        return stalls

    def _stalls(self) -> Iterator[tuple[str, float, bool]]:
        """Yield each problem, its seconds, and whether it hangs, so that a restart may help."""
        now = self.clock()
        name, failures, progress = f"consumer {self.name}", self._failures, self._progress
        # A consumer that failed once may hang in its next attempt.
        fails = now - failures.at <= self.stalled_after + self.apply_every
        if self._state == "failed":
            # Not in the liveness probe: a new process would refuse to start, and end the other consumers.
            yield f"{name} has stopped; restart it", now - failures.at, False
            return
        failing = now - failures.since
        if self._state == "failing" and (failures.number >= _LOOP or failing > _PATIENCE):
            yield f"{name} fails again and again", failing, False
        if now - failures.lost_at < _LOSS_SHOWN:  # I12
            yield f"{name} could not write dead letters; see its log", now - failures.lost_at, False
        if self._state == "starting" and now - progress.begun > self.stalled_after:
            yield f"{name} has not started; see its log", now - progress.begun, not fails
        if self._state in ("starting", "stopped"):
            return
        since = max(progress.open[0][0], progress.moved_at) if progress.open else now
        if now - since > self.stalled_after + self.apply_every:
            yield f"{name} makes no progress while {progress.waiting} records wait", now - since, not fails
        if now - progress.looked_at > self.stalled_after:
            yield f"{name} cannot look up the ends of its topics; see the brokers", now - progress.looked_at, False

    @property
    def is_ready(self) -> bool:
        with self._lock:
            return self._state == "running"

    def uptime(self) -> float:
        """Return the seconds since this watch was created, at the start of the process."""
        return self.clock() - self._progress.begun

    def lag(self) -> tuple[int, float] | None:
        """Return the lag in records and in seconds, or None if unknown."""
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
            found |= {"error": self._failures.error}
        found["is_stalled"] = bool(self.stalls())
        found["dead_letters"] = self.counted.dead_letters(self.name)
        found["history"] = list(map(list, self._progress.history.samples()))
        return found | {"lag_records": lag and lag[0], "lag_seconds": lag and round(lag[1], 1)}


class WatchedStore:
    """The servers of a cache, as the one thread that looks at them assigns what any thread may read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.memory: Sequence[ServerMemory] = ()  # of each server at the last answer
        self._clock = clock
        self.rival: str | None = None  # why another cache seems to have the same group
        self._bypassed: tuple[float, str] | None = None  # since when nothing is cached, and why

    def look(self, memory: Sequence[ServerMemory] | Exception) -> None:
        """Note the memory of each server, or why one does not answer."""
        if isinstance(memory, Exception):
            why = str(memory)
        else:
            self.memory = memory
            why = "; ".join(f"{each.server}: {each}" for each in memory if each.is_full)
        since = self._clock() if self._bypassed is None else self._bypassed[0]
        self._bypassed = (since, why) if why else None

    def bypassed(self) -> tuple[float, str] | None:
        """Return for how many seconds readers cannot cache anything, and why; None if they can, or for a moment."""
        known = self._bypassed
        seconds = self._clock() - known[0] if known is not None else 0.0
        return (seconds, known[1]) if known is not None and seconds > _STORE_PATIENCE else None


class _Failures:
    """The failures of a consumer since it advanced, from ``since`` to ``at``. The owner's lock guards it."""

    def __init__(self) -> None:
        self.number = 0
        self.since, self.at = 0.0, -math.inf
        self.lost_at = -math.inf  # when dead letters could last not be written, unless one was written since
        self.error: str | None = None

    def add(self, error: str, now: float) -> None:
        self.since = self.since if self.number else now
        self.number, self.at, self.error = self.number + 1, now, redacted(error)

    def pass_by(self) -> None:
        self.number, self.error = 0, None


class _Progress:
    """How far a consumer has come, and the ends of its topics at the last look. The owner's lock guards it."""

    def __init__(self, now: float) -> None:
        self.reached: Offsets | None = None
        self.begun = self.moved_at = self.looked_at = now
        self.history = History()
        self.waiting: int | None = None
        # Looks at the topics that found records not applied yet, the oldest first: the time and the ends.
        self.open: deque[tuple[float, Offsets]] = deque()
        # Everything that was on the topics at this time is applied. Before the first such look, it is the start.
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
        if self.history.is_due(at):
            applied = Totals(count_between({}, self.reached or reached), 0, 0)
            self.history.add(at, time.time(), applied, (self.lag(at) or (0, None))[1])
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
            "format": FORMAT,
            "version": __version__,
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
                families[metrics.STORE_BYPASSED].add_metric([watch.name], float(watch.store.bypassed() is not None))
            for server, used, limit, policy in watch.store.memory:
                families[metrics.STORE_USED].add_metric([watch.name, server], used)
                families[metrics.STORE_LIMIT].add_metric([watch.name, server, policy], limit)
            lag = watch.lag()
            if lag is not None:
                families[metrics.LAG_RECORDS].add_metric([watch.name], lag[0])
                families[metrics.LAG_SECONDS].add_metric([watch.name], lag[1])
        return families.values()


def _includes(reached: Offsets, ends: Offsets) -> bool:
    return all(reached.get(t, {}).get(p, -2) >= end for t, of_topic in ends.items() for p, end in of_topic.items())

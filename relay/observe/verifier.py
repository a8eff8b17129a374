"""What ``relay verify --forever`` reports, for HTTP and a file. One thread reports; any thread may ask."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from relay import __version__
from relay.config.hidden import redacted
from relay.observe.health import Stall
from relay.observe.metrics import Metric

BOUNDS = {"1m": 60.0, "5m": 300.0, "10m": 600.0}  # when a difference counts; after the longest it may be accused
_MOST_ACCUSED = 100
_MOST_REASONS = 20  # of one sink
_PATIENCE = 60.0  # seconds without a complete look until health is red
_LONGEST_LOOK = 600.0  # seconds that a look may take, of which one at random keys reads all rows of a table

SAMPLES = Metric(
    "relay_verify_samples_total",
    "Samples whose look has ended, by outcome: consistent, incomplete, wrong or unknown.",
    labels=("sink", "outcome"),
)
RATIO = Metric(
    "relay_consistency_ratio",
    "Share of the samples since the start that never differed from the source for as long as the bound: 1m, 5m or 10m. "
    "Absent before the first.",
    labels=("sink", "bound"),
)
NINES = Metric(
    "relay_consistency_nines",
    "The same in nines: 3 is 99.9 %. No more than the number of samples can show.",
    labels=("sink", "bound"),
)
ACCUSED = Metric("relay_verify_accused", "Keys, and consumers, that are wrong now.", labels=("sink",))
BLIND = Metric(
    "relay_verify_blind_seconds", "Time since the last complete look; 0 while everything can be read.", labels=("sink",)
)
VERIFIER_CATALOGUE = tuple(each for each in list(vars().values()) if isinstance(each, Metric))


@dataclass(slots=True)
class Accusation:
    """A key of a sink that has been wrong for ``seconds``, or its consumer, which has no ``key``."""

    sink: str
    kind: str
    table: str
    key: Mapping[str, str]
    seconds: float
    at: float  # when it was accused, in seconds since the epoch
    reason: str
    columns: Sequence[str] = ()
    history: Sequence[Mapping[str, Any]] = ()  # the changes and looks that led here, the oldest first
    ended_at: float | None = None  # when it was found right again

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Counts:
    looked_at: float  # when the last complete look ended
    outcomes: Counter[str] = field(default_factory=Counter)
    within: Counter[str] = field(default_factory=Counter)  # samples that did not differ for as long as each bound
    unknown: Counter[str] = field(default_factory=Counter)  # samples, by reason
    said: int = 0  # how many of these reasons were reported
    judged: int = 0  # samples
    blind: str | None = None  # why the look after the last complete one was not complete

    def blind_seconds(self, now: float) -> float:
        """Return since when there was no complete look, 0 unless one has failed or takes too long to be under way."""
        seconds = now - self.looked_at
        return seconds if self.blind is not None or seconds > _LONGEST_LOOK else 0.0

    def ratio(self, bound: str) -> float:
        return self.within[bound] / self.judged

    def nines(self, bound: str) -> float:
        """Return -log10 of the inconsistent share, as if one more sample had been inconsistent."""
        return math.log10((self.judged + 1) / (self.judged - self.within[bound] + 1))


class VerifierObserver(Collector):
    """The results of one process. ``sinks``: their names. ``file``: where accusations are kept for `relay doctor`."""

    def __init__(
        self, name: str, sinks: Sequence[str], file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self._file, self._clock = name, file, clock
        self._lock = Lock()  # guards everything below; it is held only briefly
        self._counts = {sink: _Counts(clock()) for sink in sinks}
        self._accused: dict[tuple[str, str, str], Accusation] = {}
        self.registry = CollectorRegistry()
        self._samples = SAMPLES.counter(self.registry)
        self.registry.register(self)
        for sink in sinks:
            for outcome in ("consistent", "incomplete", "wrong", "unknown"):
                self._samples.labels(sink, outcome)  # at 0, so that the first increase is visible

    # ------------------------------------------------------------------ by the verifier's thread

    def settle(self, sink: str, outcome: str, lasted: float | None, unknown: str = "") -> None:
        """Count a sample. ``lasted``: the longest that it differed, in seconds; None if nobody knows.

        ``unknown``: why the outcome is unknown, or empty.
        """
        self._samples.labels(sink, outcome).inc()
        with self._lock:
            counts = self._counts[sink]
            counts.outcomes[str(outcome)] += 1
            if reason := redacted(unknown):
                is_counted = reason in counts.unknown or len(counts.unknown) < _MOST_REASONS  # I11
                counts.unknown[reason if is_counted else "other reasons"] += 1
            if lasted is not None:
                counts.judged += 1
                counts.within.update(bound for bound, seconds in BOUNDS.items() if lasted < seconds)

    def new_reasons(self, sink: str) -> list[str]:
        """Return why samples are unknown, each reason only once."""
        with self._lock:
            counts = self._counts[sink]
            said, counts.said = counts.said, len(counts.unknown)
            return list(counts.unknown)[said:]

    def accuse(self, accusation: Accusation) -> bool:
        """Keep an accusation, and return whether it is new."""
        place = _place(accusation.sink, accusation.table, accusation.key)
        with self._lock:
            known = self._accused.get(place)
            if known is not None and known.ended_at is None:
                return False
            self._accused.pop(place, None)
            if len(self._accused) >= _MOST_ACCUSED:  # I11
                ended = (each for each, found in self._accused.items() if found.ended_at is not None)
                del self._accused[next(ended, next(iter(self._accused)))]
            self._accused[place] = accusation
        self.write()
        return True

    def acquit(self, sink: str, table: str, key: Mapping[str, str], now: float) -> Accusation | None:
        """Note that a key is right, and return the accusation that this ends."""
        with self._lock:
            known = self._accused.get(_place(sink, table, key))
            if known is None or known.ended_at is not None:
                return None
            known.ended_at = now
        self.write()
        return known

    def is_accused(self, sink: str, table: str, key: Mapping[str, str]) -> bool:
        with self._lock:
            known = self._accused.get(_place(sink, table, key))
            return known is not None and known.ended_at is None

    def look(self, sink: str, reason: str | None) -> bool:
        """Note whether a look was complete, or for what ``reason`` not. Return whether that is news."""
        with self._lock:
            counts = self._counts[sink]
            before, counts.blind = counts.blind, reason and redacted(reason)
            if reason is None:
                counts.looked_at = self._clock()
            return counts.blind != before

    def write(self) -> None:
        """Keep the accusations in the file. At first, this drops an earlier process's, which nobody would end."""
        if self._file is None:
            return
        with suppress(OSError):  # it is printed, too
            self._file.parent.mkdir(parents=True, exist_ok=True)
            written = self._file.with_suffix(".new")
            written.write_bytes(orjson.dumps(self.report()["accused"], option=orjson.OPT_INDENT_2))
            written.replace(self._file)

    # ------------------------------------------------------------------ by any thread

    def stalls(self) -> list[Stall]:
        """Return which sinks cannot be looked at, and why (I10). An accusation is not a stall: see the metrics."""
        now = self._clock()
        with self._lock:
            blind = {sink: (each.blind_seconds(now), each.blind) for sink, each in self._counts.items()}
        return [
            Stall(f"{sink} cannot be looked at", seconds, error=reason or "the look that began then has not ended")
            for sink, (seconds, reason) in blind.items()
            if seconds > _PATIENCE
        ]

    def not_ready_reasons(self) -> list[str]:
        return []

    def report(self) -> dict[str, Any]:
        with self._lock:
            sinks = [
                {
                    "sink": sink,
                    "samples": dict(each.outcomes),
                    "ratios": {bound: each.ratio(bound) for bound in BOUNDS} if each.judged else None,
                    "nines": {bound: round(each.nines(bound), 2) for bound in BOUNDS} if each.judged else None,
                    "blind": each.blind,
                    "unknown": dict(each.unknown),
                }
                for sink, each in self._counts.items()
            ]
            accused = [each.to_json() for each in self._accused.values()]
        return {"name": self.name, "version": __version__, "sinks": sinks, "accused": accused}

    def collect(self) -> Iterable[GaugeMetricFamily]:
        ratio, nines, accused, blind = (each.gauge() for each in (RATIO, NINES, ACCUSED, BLIND))
        with self._lock:
            for sink, counts in self._counts.items():
                for bound in BOUNDS if counts.judged else ():
                    ratio.add_metric([sink, bound], counts.ratio(bound))
                    nines.add_metric([sink, bound], counts.nines(bound))
                now_wrong = [each for each in self._accused.values() if each.sink == sink and each.ended_at is None]
                accused.add_metric([sink], len(now_wrong))
                blind.add_metric([sink], counts.blind_seconds(self._clock()))
        return [ratio, nines, accused, blind]


def _place(sink: str, table: str, key: Mapping[str, str]) -> tuple[str, str, str]:
    return sink, table, orjson.dumps(key).decode()

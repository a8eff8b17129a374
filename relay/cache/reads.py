"""The result of a read through the cache, the calls that it makes, its intermediate state, and the counters."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from relay.cache.entry import Entry, LoadedValue, Tokens

T = TypeVar("T")


class Outcome(StrEnum):
    """How a value was found.

    HIT: from the cache. FILLED: loaded and stored. DROPPED: loaded, but not stored, because the entry was invalidated
    meanwhile or the read was not fresher. MISS: loaded without an attempt to store it, because another reader was
    filling it or the store could not be reached.
    """

    HIT = "hit"
    FILLED = "filled"
    DROPPED = "dropped"
    MISS = "miss"


@dataclass(frozen=True, slots=True)
class Cached:
    """A value (None: the item does not exist), and where it came from."""

    value: bytes | None
    outcome: Outcome


class Calls(Protocol):
    """The external calls of a read, which threads and coroutines make in different ways."""

    async def store(self, call: Callable[[], T]) -> T:
        """Call the store."""

    async def load(self, wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
        """Do what ``LoadMany`` does."""

    async def pause(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease for loading a value. ``is_first``: there was no entry before it."""

    entry: Entry
    meta: bytes
    is_first: bool


@dataclass(slots=True)
class Reads:
    """The state of one call of ``get_many``. ``adds``, ``too_old``: see ``CountedReads``."""

    calls: Calls
    refused: bytes | None
    found: dict[str, Cached] = field(default_factory=dict)
    adds: int = 0
    too_old: int = 0

    def accepts(self, value: bytes | None) -> bool:
        return self.refused is None or value != self.refused


class CountedReads:
    """Counts keys that were read, and how long loads take. Threads may share it.

    ``misses`` are ``adds`` (stored where there was no entry), ``compare_and_sets`` (stored in place of one) and
    ``no_ops`` (loaded and not stored), ``too_old`` of the latter because the read was not known to be fresh enough.
    ``unreachable``: failed calls to the store.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below; never held during a call to the store or the loader
        self.hits = 0
        self.adds = 0
        self.compare_and_sets = 0
        self.no_ops = 0
        self.too_old = 0
        self.unreachable = 0
        # Smoothed mean and deviation of the seconds of a load, as TCP computes its timeout (RFC 6298). None: no load
        # has ended yet.
        self._fill_time: tuple[float, float] | None = None

    @property
    def misses(self) -> int:
        with self._lock:
            return self.adds + self.compare_and_sets + self.no_ops

    def count(self, reads: Reads) -> None:
        outcomes = Counter(cached.outcome for cached in reads.found.values())
        with self._lock:
            self.hits += outcomes[Outcome.HIT]
            self.adds += reads.adds
            self.compare_and_sets += outcomes[Outcome.FILLED] - reads.adds
            self.no_ops += outcomes[Outcome.DROPPED] + outcomes[Outcome.MISS]
            self.too_old += reads.too_old

    def count_unreachable(self) -> None:
        with self._lock:
            self.unreachable += 1

    def count_fill_time(self, seconds: float) -> None:
        with self._lock:
            if self._fill_time is None:
                self._fill_time = seconds, seconds / 2
                return
            mean, deviation = self._fill_time
            self._fill_time = mean + (seconds - mean) / 8, deviation + (abs(seconds - mean) - deviation) / 4

    def usual_fill_time(self, bound: float) -> float:
        """Return the seconds within which nearly every load ends, at most ``bound``; also ``bound`` if unknown."""
        with self._lock:
            if self._fill_time is None:
                return bound
            mean, deviation = self._fill_time
        return min(bound, mean + 4 * deviation)

"""What a read through the cache returns, the calls that it makes, what it has found so far, and how long it waits."""

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
    """A value (None: there is no such item) and where it came from."""

    value: bytes | None
    outcome: Outcome


class Calls(Protocol):
    """The outside calls of a read, which threads make in one way and coroutines in another."""

    async def store(self, call: Callable[[], T]) -> T:
        """Call the store."""

    async def load(self, wanted: Mapping[str, Tokens | None]) -> Mapping[str, LoadedValue]:
        """Do what ``LoadMany`` does."""

    async def pause(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Lease:
    """``is_first``: there was no entry before it."""

    entry: Entry
    meta: bytes
    is_first: bool


@dataclass(slots=True)
class Reads:
    """What a call of ``get_many`` has found so far.

    ``adds``: values stored where there was no entry. ``too_old``: values whose reads were not fresh enough to store.
    """

    calls: Calls
    refused: bytes | None
    found: dict[str, Cached] = field(default_factory=dict)
    adds: int = 0
    too_old: int = 0

    def accepts(self, value: bytes | None) -> bool:
        return self.refused is None or value != self.refused


class FillTime:
    """The time that loads take, from those seen so far: how long to wait for a value that another reader loads.

    Smoothed mean and deviation, as TCP judges by them whether an answer is still to come (RFC 6298). It is not locked.
    """

    def __init__(self) -> None:
        self._mean = 0.0
        self._deviation = 0.0
        self._is_known = False

    def add(self, seconds: float) -> None:
        """Take the time of one load into account."""
        if not self._is_known:
            self._mean, self._deviation, self._is_known = seconds, seconds / 2, True
            return
        self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
        self._mean += (seconds - self._mean) / 8

    def longest(self, bound: float) -> float:
        """Return how many seconds nearly every load takes at most; ``bound`` if that is less, or none is known."""
        return min(bound, self._mean + 4 * self._deviation) if self._is_known else bound

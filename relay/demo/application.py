"""The demo's application: reads items through the cache while the writers write, and records every read."""

import random
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relay.cache import Load, Outcome, TokenCache
from relay.demo.truth import PublishedChange
from relay.demo.workload import Item, Repeating, cache_key, version_of

_PAUSE = 0.002  # seconds between two reads


@dataclass(frozen=True, slots=True)
class Read:
    """One read. ``version`` is None if there is no such item. ``started``: epoch seconds."""

    item: Item
    version: int | None
    started: float
    hit: bool


class Reader(Repeating):
    """Reads random items through ``cache`` until stopped."""

    def __init__(self, cache: TokenCache, load: Load, items: Sequence[Item], seed: int) -> None:
        super().__init__(f"reader-{seed}")
        self.reads: list[Read] = []
        self._cache = cache
        self._load = load
        self._items = items
        self._random = random.Random(seed)

    def turn(self) -> None:
        # A few items are popular, as in practice.
        self.read(self._items[min(int(self._random.expovariate(8) * len(self._items)), len(self._items) - 1)])
        self.stopping.wait(_PAUSE)

    def read(self, item: Item) -> None:
        started = time.time()
        cached = self._cache.get_or_load(cache_key(item), self._load)
        self.reads.append(Read(item, version_of(cached.value), started, cached.outcome is Outcome.HIT))


def stale_reads(
    reads: Sequence[Read],
    changes: Mapping[Item, Sequence[PublishedChange]],
    before: Mapping[Item, int],
    applied_at: Callable[[PublishedChange], float | None],
) -> list[str]:
    """Check that each read is at least as new as the last invalidation applied before it started (I6).

    ``changes``: the changes of each item, in order. ``before``: the versions of the items that existed before them.
    ``applied_at``: when the invalidation of a change was in the cache.
    """
    problems = []
    applied: dict[Item, list[float]] = {}
    for item, of_item in changes.items():
        times: list[float] = []
        for change in of_item:
            when = applied_at(change)
            if when is None:
                break
            times.append(max(when, times[-1]) if times else when)
        applied[item] = times
    for read in reads:
        # State 0 is the item before its first change, state n the item after its n-th change.
        states = [before.get(read.item), *(change.version for change in changes.get(read.item, ()))]
        oldest_allowed = bisect_left(applied.get(read.item, ()), read.started)
        if read.version not in states[oldest_allowed:]:
            problems.append(
                f"{read.item}: a read at {read.started:.3f} returned version {read.version}, though the invalidation "
                f"for version {states[oldest_allowed]} had been applied before"
            )
    return problems

"""The application: it reads items through the cache, and remembers what it was given."""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from relay.cache import Outcome, TokenCache
from relay.errors import Unavailable
from tests.soak.part import Item, Part
from tests.soak.topic import TopicCheck

_PAUSE = 0.02  # seconds between two reads
_AWAY = 0.2
_CLOCK = 1.0  # sources give the time in whole seconds


class ItemRead(NamedTuple):
    """``version`` None: there was no such item. ``started``, ``ended``: epoch seconds."""

    item: Item
    version: int | None
    started: float
    ended: float
    hit: bool


class Application(threading.Thread):
    """Reads random items of one part until ``end``, with a ``pause`` in seconds between two reads.

    ``failed``: reads while the source could not be reached.
    """

    def __init__(self, part: Part, cache: TokenCache, seed: int, pause: float = _PAUSE) -> None:
        super().__init__(name=f"application-{part.table}", daemon=True)
        self.reads: list[ItemRead] = []
        self.failed = 0
        self.failure: BaseException | None = None
        self._part = part
        self._cache = cache
        self._chance = random.Random(f"application/{seed}")
        self._pause = pause
        self._stopping = threading.Event()

    def end(self) -> None:
        self._stopping.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        items = self._part.items
        try:
            while not self._stopping.wait(self._pause):
                # A few items are popular, as in practice.
                item = items[min(int(self._chance.expovariate(8) * len(items)), len(items) - 1)]
                try:
                    with self._part.gate:
                        self.reads.append(self._read(item))
                except Unavailable:
                    self.failed += 1
                    self._stopping.wait(_AWAY)
        except BaseException as error:  # for whoever compares
            self.failure = error

    def _read(self, item: Item) -> ItemRead:
        started = time.time()
        cached = self._cache.get_or_load(self._part.key_of(item), self._part.load)
        version = None if cached.value is None else self._part.version_in(cached.value)
        return ItemRead(item, version, started, time.time(), cached.outcome is Outcome.HIT)

    def stale(self, check: TopicCheck) -> list[str]:
        """Return the reads older than an invalidation that had been applied before they started: I6.

        A batch counts as applied at the time in its line in the log, which is after its last write to the cache.
        """
        return [problem for read in self.reads if (problem := stale(check, read)) is not None]


def stale(check: TopicCheck, read: ItemRead) -> str | None:
    """Return what is wrong with a read, None if nothing is."""
    told, history = check.items[read.item], check.history.get(read.item, ())
    # State n is the item after its n-th change, 0 before the first. No read can see what was not yet written, either.
    oldest = bisect_left(told.applied, read.started)
    newest = bisect_right(told.committed, read.ended + _CLOCK)
    states = range(oldest, max(oldest, newest) + 1)
    if read.version is None:
        if any(_row(check, history, state) is None for state in states):
            return None
    elif read.version in history and history.index(read.version) + 1 in states:
        return None
    applied = history[oldest - 1] if oldest else "nothing"
    where = "the cache" if read.hit else "the source"
    return f"{read} comes from {where}, though change {applied} had been applied before"


def _row(check: TopicCheck, history: Sequence[int], state: int) -> int | None:
    return check.part.row(history[state - 1]) if state else None

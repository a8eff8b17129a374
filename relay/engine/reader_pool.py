"""Reads the open shards in threads and hands their pages to the worker, one at a time per shard.

Nothing here knows Kafka or a database. Memory is bounded (I11): a page holds at most about a megabyte as the
source sends it (``STREAMED_PAGE`` where changes come by themselves), and no read is begun while the pages under way
and not yet taken could exceed the budget.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relay.source import STREAMED_PAGE, Page, ShardReader

SHORTEST_WAIT = 0.2
"""Seconds between two reads of a shard that is not behind: a stream's shard answers five calls a second."""

LONGEST_WAIT = 1.0

IDLE_READS = 250
"""Reads a second that idle shards share in one worker: with more shards than that, each waits for longer."""

LONGEST_BACKOFF = 5.0
"""Seconds between two reads of a shard that cannot be read: throttled, or its service or the network is down."""

_GATHERED = 0.005  # seconds between two reads of a shard that streams, while each gives so many records or more
_MANY = 20
_EMPTY_BEFORE_WAITING = 5
# Each thread costs the others time whenever it wakes, so more than a few are begun only while reads have to wait.
_FEW_THREADS = 4
_THREADS = 32
_LONG_WAIT = 0.05  # seconds
_LEAVE_AFTER = 3.0  # seconds for which reads under way are waited for at the end
_BUDGET = 64 << 20
_LARGEST_PAGE = 1 << 20


@dataclass
class OpenShard:
    """One open shard: its reader and when it is to be read again."""

    reader: ShardReader
    key: bytes
    # Empty pages in a row, and reads in a row that failed.
    empty: int = 0
    failures: int = 0
    closed: bool = False
    # When the last read began, by the pump's clock.
    begun: float = 0.0
    # When the last read that did not fail had come, or the shard was opened; and how the last read failed (I10).
    polled: float = 0.0
    error: str | None = None
    # Whether it is being read, or was and the page is not taken.
    running: bool = False
    # The position of the last page that did not fail, and up to when it was certain that nothing was missing.
    told: tuple[Any, float | None] = (None, None)

    def has_news(self, page: Page) -> bool:
        """Whether ``page`` shows that the shard is read. One that streams gives empty pages also while it is silent."""
        now = (page.position, page.reached)
        before, self.told = self.told, now
        return not self.reader.streams or bool(page.records or page.finished or page.gap) or now != before

    @property
    def largest_page(self) -> int:
        return STREAMED_PAGE if self.reader.streams else _LARGEST_PAGE

    def wait_after(self, page: Page, longest: float = LONGEST_WAIT) -> float:
        """Seconds between the begin of the read that gave ``page`` and the next; ``longest`` for an idle shard."""
        if page.failed:
            # Jittered, so that the shards of a throttled stream do not come back all at once.
            return random.uniform(0.5, 1.0) * min(LONGEST_BACKOFF, SHORTEST_WAIT * 2.0 ** min(self.failures, 10))
        if page.full:
            return 0.0
        if self.reader.streams:
            # Each page has its cost: of what comes thick and fast, a few at once.
            return _GATHERED if page.records >= _MANY else 0.0
        # Drawn, so that shards which were opened together do not stay in step: their pages would wait for each other.
        drawn = SHORTEST_WAIT * random.uniform(1.0, 1.2)
        if page.records:
            return drawn
        return min(longest, drawn * 1.5 ** max(0, self.empty - _EMPTY_BEFORE_WAITING))


class ReaderPool:
    """Used by one thread, the worker's; the reads happen in others. ``clock``: seconds that never go back."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # What is to be read now, and since when; None for a thread to end.
        self._wanted: queue.SimpleQueue[tuple[OpenShard, float] | None] = queue.SimpleQueue()
        # How long the last read that was begun had waited for a thread, in seconds.
        self._waited = 0.0
        self._threads: list[threading.Thread] = []
        self._due: list[tuple[float, int, OpenShard]] = []
        self._numbers = itertools.count()
        self._done: queue.SimpleQueue[tuple[OpenShard, Page | BaseException]] = queue.SimpleQueue()
        # Every reading that is open, by identity; how many of them stream; pages being read, or read and not taken.
        self._open: dict[int, OpenShard] = {}
        self._streaming = 0
        self._running = 0
        # The most bytes that those pages may have.
        self._under_way = 0

    def open(self, reader: ShardReader, key: bytes) -> OpenShard:
        now = self.clock()
        reading = OpenShard(reader, key, begun=now, polled=now)
        self._open[id(reading)] = reading
        self._streaming += reader.streams
        self._schedule(reading, 0.0)
        return reading

    def shut(self, reading: OpenShard) -> None:
        """Read ``reading`` no more, and let its reader go as soon as no read of it is under way."""
        reading.closed = True
        if not reading.running:
            self._let_go(reading)

    def _let_go(self, reading: OpenShard) -> None:
        if self._open.pop(id(reading), None) is not None:
            self._streaming -= reading.reader.streams
            reading.reader.close()

    def again(self, reading: OpenShard, wait: float) -> None:
        """Read ``reading`` once more, not before ``wait`` seconds after its last read began; at once if that is now."""
        self._schedule(reading, wait)
        self._start()  # what is taken is published while the next page is read

    def _schedule(self, reading: OpenShard, wait: float) -> None:
        heapq.heappush(self._due, (reading.begun + wait, next(self._numbers), reading))

    @property
    def longest_wait(self) -> float:
        """Seconds between two reads of an idle shard."""
        return max(LONGEST_WAIT, (len(self._due) + self._running) / IDLE_READS)

    def close(self) -> None:
        self._due.clear()
        while True:
            try:
                self._wanted.get_nowait()
            except queue.Empty:
                break
        for _ in self._threads:
            self._wanted.put(None)
        for reading in list(self._open.values()):
            self.shut(reading)
        deadline = time.monotonic() + _LEAVE_AFTER
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))  # daemons: a call that hangs is left behind
        self._arrived()

    def take(self, timeout: float) -> list[tuple[OpenShard, Page]]:
        """Return the pages that have arrived, waiting up to ``timeout`` seconds for a first one.

        Raises what a reader raised. The caller decides by ``again`` when a shard is read next.
        """
        deadline = self.clock() + timeout
        while True:
            self._start()
            pages = self._arrived()
            now = self.clock()
            if pages or now >= deadline:
                return pages
            wake = min(deadline, self._due[0][0]) if self._due and self._has_room() else deadline
            try:
                pages = self._unpack(self._done.get(timeout=max(0.001, wake - now)))
            except queue.Empty:
                continue
            if pages:
                return pages + self._arrived()

    def _start(self) -> None:
        now = self.clock()
        while self._due and self._due[0][0] <= now and self._has_room():
            reading = heapq.heappop(self._due)[2]
            if not reading.closed:
                reading.begun = now
                reading.running = True
                self._running += 1
                self._under_way += reading.largest_page
                self._wanted.put((reading, now))
                if self._needs_thread():
                    self._waited = 0.0
                    thread = threading.Thread(target=self._read_wanted, name=f"read-{len(self._threads)}", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _needs_thread(self) -> bool:
        count = len(self._threads)
        if count < _FEW_THREADS + self._streaming:
            return count < self._running
        return count < _THREADS + self._streaming and self._waited > _LONG_WAIT

    def _has_room(self) -> bool:
        # I11. Of many shards that stream, each has to be waited for.
        return self._under_way + _LARGEST_PAGE <= max(_BUDGET, _LARGEST_PAGE + self._streaming * STREAMED_PAGE)

    def _read_wanted(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            reading, since = wanted
            self._waited = self.clock() - since
            self._read(reading)

    def _read(self, reading: OpenShard) -> None:
        try:
            page = reading.reader.read()
        except BaseException as error:  # handed to the worker's thread, which raises it
            self._done.put((reading, error))
        else:
            self._done.put((reading, page))

    def _arrived(self) -> list[tuple[OpenShard, Page]]:
        pages = []
        while True:
            try:
                pages += self._unpack(self._done.get_nowait())
            except queue.Empty:
                return pages

    def _unpack(self, done: tuple[OpenShard, Page | BaseException]) -> list[tuple[OpenShard, Page]]:
        reading, page = done
        reading.running = False
        self._running -= 1
        self._under_way -= reading.largest_page
        if reading.closed:
            self._let_go(reading)
        if isinstance(page, BaseException):
            if reading.closed:
                return []
            raise page
        reading.empty = 0 if page.records else reading.empty + 1
        if page.failed or page.gone:
            reading.failures += bool(page.failed)
            reading.error = page.failed or "the source does not know it"
        elif reading.has_news(page):
            reading.failures, reading.error = 0, None
            reading.polled = self.clock()
        return [] if reading.closed else [(reading, page)]

"""Reads the open shards in threads and hands their pages to the worker, one at a time per shard.

Memory is bounded (I11): a page has about a megabyte (``STREAMED_PAGE`` if the shard streams), and no read starts while
the pages under way could exceed the budget.
"""

import heapq
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from relay.errors import ConfigError, RelayError, fault_of
from relay.reading.open_shard import LARGEST_PAGE, LONGEST_WAIT, OpenShard, ReadOutcome
from relay.source import STREAMED_PAGE, ReadResult, ShardReader

LONGEST_YIELD = 0.1  # seconds for which a snapshot's page gives way to pages of the stream that keep arriving
LONGEST_STAY = 0.5  # seconds after which it is taken in any case: changes may arrive for hours without a pause
IDLE_READS = 250  # reads per second that the idle shards of a worker share: with more shards, each waits longer

# Every thread that wakes delays the others, so more threads start only while reads have to wait for one.
_FEW_THREADS = 4
_THREADS = 32
_LONG_WAIT = 0.05  # seconds
_CLOSE_SECONDS = 3.0  # seconds that ``close`` waits for reads under way
_BUDGET = 64 << 20
_NUMBERS = itertools.count()  # numbers due reads, to order those that are due at the same time


class ReaderPool:
    """Reads shards for one thread, the worker's; its own threads only read. ``clock``: seconds that never go back."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # Shared with the reading threads: the shards to read and since when they wait (None ends a thread), ...
        self._wanted: queue.SimpleQueue[tuple[OpenShard, float] | None] = queue.SimpleQueue()
        # ... the results, in a `Queue`, since the worker's thread handles signals: in Python 3.11 and 3.12 a
        # `SimpleQueue.get` with a timeout waits for ever if a signal handler outlasts the timeout, ...
        self._done: queue.Queue[tuple[OpenShard, ReadResult | BaseException]] = queue.Queue()
        # ... and how many seconds the last read waited for a thread, which they write atomically.
        self._waited = 0.0
        # The rest belongs to the worker's thread.
        self._threads: list[threading.Thread] = []
        # Shards to read next: by the clock, in order of time.
        self._due: list[tuple[float, int, OpenShard]] = []
        # Due segments of snapshots that wait until fewer segments are read, and how many are.
        self._postponed: list[tuple[float, int, OpenShard]] = []
        self._segments_read = 0
        # Pages of snapshots that were read but not taken yet, and since when each waits, by the clock.
        self._yielding: deque[tuple[OpenShard, ReadResult | BaseException, float]] = deque()
        # How late, in seconds, the last read started.
        self._late = 0.0
        # Every open shard by identity, how many of them stream, and how many reads are under way or not yet taken.
        self._open: dict[int, OpenShard] = {}
        # Those known to have more changes, by identity.
        self._behind: set[int] = set()
        self._streaming = 0
        self._running = 0
        # The most bytes that the pages of these reads can have.
        self._under_way = 0

    def open(self, reader: ShardReader, key: bytes, source: str, *, most_at_once: int = 0) -> OpenShard:
        """Start reading a shard. For the parameters, see `OpenShard`."""
        now = self.clock()
        shard = OpenShard(reader, key, source, most_at_once, read_at=now, polled=now)
        self._open[id(shard)] = shard
        self._streaming += reader.streams
        self._schedule(shard, 0.0)
        return shard

    def shut(self, shard: OpenShard) -> None:
        """Stop reading ``shard``, and close its reader as soon as no read is under way."""
        shard.closed = True
        self._behind.discard(id(shard))
        if not shard.running:
            self._close_reader(shard)

    def _close_reader(self, shard: OpenShard) -> None:
        if self._open.pop(id(shard), None) is not None:
            self._streaming -= shard.reader.streams
            shard.reader.close()

    def again(self, shard: OpenShard, wait: float, *, has_backlog: bool = False) -> None:
        """Read ``shard`` again, ``wait`` seconds after the start of its last read. ``has_backlog``: changes wait."""
        if shard.error is None:
            shard.wait = wait
        if has_backlog:
            self._behind.add(id(shard))
        self._schedule(shard, wait)
        self._start()  # the next page is read while this one is published

    def _schedule(self, shard: OpenShard, wait: float) -> None:
        heapq.heappush(self._due, (shard.read_at + wait, next(_NUMBERS), shard))

    @property
    def has_backlog(self) -> bool:
        """Whether a shard that is being read is known to have more changes."""
        return bool(self._behind)

    @property
    def longest_wait(self) -> float:
        """Seconds between two reads of an idle shard."""
        return max(LONGEST_WAIT, (len(self._due) + self._running) / IDLE_READS)

    @property
    def delay(self) -> float:
        """Seconds that a due read has to wait for others. It does not grow while all reads hang."""
        return self._late + self._waited

    def close(self) -> None:
        self._due.clear()
        with suppress(queue.Empty):
            while True:
                self._wanted.get_nowait()
        for _ in self._threads:
            self._wanted.put(None)
        for shard in list(self._open.values()):
            self.shut(shard)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))  # daemons: a call that hangs is left behind
        self._arrived()
        while self._yielding:
            self._unpack(*self._yielding.popleft()[:2])

    def take(self, timeout: float, *, snapshots: bool = True) -> list[tuple[OpenShard, ReadOutcome]]:
        """Return the results that have arrived, waiting up to ``timeout`` seconds for the first one.

        Results of snapshots come one at a time and give way to others, for longer without ``snapshots``, but not for
        ever (I10). A ``RelayError`` of a reader is the result of its shard (I12). Raises ``ConfigError``.
        """
        deadline = self.clock() + timeout
        while True:
            self._start()
            results = self._arrived()
            now = self.clock()
            if self._yielding:
                waited = now - self._yielding[0][2]
                may_come = snapshots and (not results or waited > LONGEST_YIELD)
                if may_come or waited > LONGEST_STAY:
                    results += self._unpack(*self._yielding.popleft()[:2])
            if results or now >= deadline:
                return results
            wake = min(deadline, self._due[0][0]) if self._due and self._has_room() else deadline
            try:
                results = self._sort(*self._done.get(timeout=max(0.001, wake - now)))
            except queue.Empty:
                continue
            if results:
                return results + self._arrived()

    def _start(self) -> None:
        """Start the due reads for which there is room."""
        now = self.clock()
        while self._due and self._due[0][0] <= now and self._has_room():
            due, number, shard = heapq.heappop(self._due)
            if shard.yields and self._segments_read >= shard.most_at_once:
                self._postponed.append((due, number, shard))
            elif not shard.closed:
                self._segments_read += shard.yields
                shard.read_at, self._late = now, now - due
                shard.running = True
                self._running += 1
                self._under_way += shard.largest_page
                self._wanted.put((shard, now))
                if self._needs_thread():
                    self._waited = 0.0
                    thread = threading.Thread(target=self._run, name=f"read-{len(self._threads)}", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _needs_thread(self) -> bool:
        count = len(self._threads)
        if count < _FEW_THREADS + self._streaming:
            return count < self._running
        return count < _THREADS + self._streaming and self._waited > _LONG_WAIT

    def _has_room(self) -> bool:
        # I11. A thread that reads a streaming shard waits for its changes, so each such shard needs its own room.
        return self._under_way + LARGEST_PAGE <= max(_BUDGET, LARGEST_PAGE + self._streaming * STREAMED_PAGE)

    def _run(self) -> None:
        """Read requested shards, one after another. Runs in a reading thread."""
        while (wanted := self._wanted.get()) is not None:
            shard, since = wanted
            self._waited = self.clock() - since
            result: ReadResult | BaseException
            try:
                result = shard.reader.read()
            except BaseException as error:  # raised again in the worker's thread
                result = error
            self._done.put((shard, result))

    def _arrived(self) -> list[tuple[OpenShard, ReadOutcome]]:
        results: list[tuple[OpenShard, ReadOutcome]] = []
        with suppress(queue.Empty):
            while True:
                results += self._sort(*self._done.get_nowait())
        return results

    def _sort(self, shard: OpenShard, result: ReadResult | BaseException) -> list[tuple[OpenShard, ReadOutcome]]:
        """Return a result that has arrived, or queue it behind the results to which it gives way."""
        if not shard.yields:
            return self._unpack(shard, result)
        # I11: it counts against the budget until it is taken.
        self._yielding.append((shard, result, self.clock()))
        return []

    def _unpack(self, shard: OpenShard, result: ReadResult | BaseException) -> list[tuple[OpenShard, ReadOutcome]]:
        shard.running = False
        self._running -= 1
        self._behind.discard(id(shard))
        if shard.yields:
            self._segments_read -= 1
            while self._postponed:
                heapq.heappush(self._due, self._postponed.pop())
        self._under_way -= shard.largest_page
        if shard.closed:
            self._close_reader(shard)
        if shard.closed and isinstance(result, BaseException):
            return []
        with fault_of(shard.source):
            if isinstance(result, ConfigError) or not isinstance(result, ReadOutcome):
                raise result
        if not isinstance(result, RelayError):
            shard.note(result, self.clock())
        return [] if shard.closed else [(shard, result)]

"""Reads the open shards in threads and hands their pages to the worker, one at a time per shard.

Memory is bounded (I11): a page has about a megabyte (``STREAMED_PAGE`` if the shard streams), and no read starts while
the pages under way could exceed the budget.
"""

import heapq
import itertools
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from relay.errors import ConfigError, RelayError, fault_of
from relay.process.lost_often import LostOften
from relay.records import Position
from relay.source import STREAMED_PAGE, Page, ReadResult, ShardReader, Unreadable

LARGEST_PAGE = 1 << 20  # approximate bytes of the largest page from a shard that has to be polled for changes
SHORTEST_WAIT = 0.2  # seconds between reads without a backlog: DynamoDB Streams allows five calls a second per shard
LONGEST_WAIT = 1.0  # seconds between two reads of an idle shard, while there are few such shards
LONGEST_BACKOFF = 5.0  # seconds between reads that fail, because of throttling or an outage

WARN_AT_FAILURES = {3, 10, 100, 1000, 10_000}  # failures in a row that are logged as warnings: all would fill the log

# A shard that streams is read again at once. But while its pages reach this many records, a few are gathered first,
# since every page has a cost.
_MANY = 20
_GATHER_SECONDS = 0.005
_EMPTY_BEFORE_WAITING = 5

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

ReadOutcome = ReadResult | RelayError  # an error: why the shard cannot be read on without a person


def backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
    # Jitter keeps the shards of a throttled stream from coming back all at once.
    return random.uniform(0.5, 1.0) * min(LONGEST_BACKOFF, SHORTEST_WAIT * 2.0 ** min(failures, 10))


@dataclass(eq=False)
class OpenShard:
    """A shard that is being read. ``key``: the key of its checkpoint. ``source``: the name of its source.

    Used by the worker's thread, except ``reader``.

    ``most_at_once``: for a segment of a snapshot, the most segments that are read at once; 0 for a shard of a stream.
    """

    reader: ShardReader
    key: bytes
    source: str
    most_at_once: int = 0
    # Consecutive empty pages, and consecutive failed reads.
    empty: int = 0
    failures: int = 0
    closed: bool = False
    read_at: float = 0.0  # when the last read began, by the pool's clock
    # When the last good read arrived, or the shard was opened; why the last read failed, or its warning.
    polled: float = 0.0
    error: str | None = None
    is_unknown: bool = False  # whether the source has reported the shard as unknown since the last good read
    wait: float = 0.0  # scheduled seconds from that read to the next one: with many shards, each is read rarely
    running: bool = False  # whether a read is under way, or its result was not taken yet
    _last: tuple[Position | None, float | None] = (None, None)  # position and `Page.reached` of the last page
    lost_often: bool = False  # whether the result shows that its connection is lost every few seconds
    _losses: LostOften = field(default_factory=LostOften)

    def note(self, result: ReadResult, now: float) -> None:
        """Count a result. ``now``: the time by the pool's clock."""
        self.empty = 0 if isinstance(result, Page) and result.counts.records else self.empty + 1
        if isinstance(result, Unreadable):
            self.lost_often = not self.failures and self.reader.streams and self._losses.note(now)
            self.failures += 1
            self.error = result.reason
        elif not isinstance(result, Page):
            self.error, self.is_unknown = "the source does not know it", True
        elif self._has_news(result):  # I10
            self.failures, self.error, self.is_unknown = 0, result.warning, False
            self.polled = now

    def _has_news(self, page: Page) -> bool:
        """Whether ``page`` proves that the shard can be read. A silent shard that streams also gives empty pages."""
        now = (page.position, page.reached)
        last, self._last = self._last, now
        return not self.reader.streams or bool(page.counts.records or page.finished or page.gap) or now != last

    @property
    def yields(self) -> bool:
        """Whether its pages give way to pages of streams."""
        return self.most_at_once > 0

    @property
    def largest_page(self) -> int:
        return STREAMED_PAGE if self.reader.streams else LARGEST_PAGE

    def has_backlog_after(self, page: Page) -> bool:
        """Whether changes are expected to wait; a stream is read again before its source could fill a page."""
        return page.pause == 0.0 or (page.pause is None and self.reader.streams and page.counts.records > 0)

    def wait_after(self, result: ReadResult, longest: float = LONGEST_WAIT) -> float:
        """Return the seconds from the start of the read of ``result`` to the next; ``longest`` for an idle shard."""
        if not isinstance(result, Page):
            return backoff(self.failures)
        if result.pause is not None:
            return result.pause
        if self.reader.streams:
            return _GATHER_SECONDS if result.counts.records >= _MANY else 0.0
        # Jitter keeps shards that opened together out of step: their pages would wait for each other.
        wait = SHORTEST_WAIT * random.uniform(1.0, 1.2)
        if result.counts.records:
            return wait
        # Ten doublings are more than enough, and 1,751 would overflow a float.
        wait *= 1.5 ** min(max(0, self.empty - _EMPTY_BEFORE_WAITING), 10)
        # With many shards, each would first be read many times before it waits as long as the others.
        return wait if wait < LONGEST_WAIT else longest


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

"""One open shard: its reader, its source, and the time of its next read."""

import random
from dataclasses import dataclass

from relay.errors import RelayError
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

    def note(self, result: ReadResult, now: float) -> None:
        """Count a result. ``now``: by the pool's clock."""
        self.empty = 0 if isinstance(result, Page) and result.counts.records else self.empty + 1
        if isinstance(result, Unreadable):
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
        """Return the seconds from the start of the read with ``result`` to the next. ``longest``: for an idle shard."""
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

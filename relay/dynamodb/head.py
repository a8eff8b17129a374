"""How far a shard is from its head, judged by its pages: see "The head of a shard" in ``relay/dynamodb/README.md``."""

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from relay.dynamodb.cursor import CALLS_TO_REACH_HEAD, may_be_from
from relay.dynamodb.stream_calls import PAGE_LIMIT

QUIET_SECONDS = 10.0
"""Seconds without a record after which an open shard counts as read to its head, if `QUIET_PAGES` came as well."""

QUIET_PAGES = 50
"""Empty pages in a row, with one iterator. Runs of 4 or 5 were seen to span four hours (Bloop, "Record Gaps")."""

LATENESS = 60
"""Seconds by which a record may appear after its creation time, and so the progress of an idle shard lags."""

_LONGEST_PAUSE = float(LATENESS)
"""Seconds between two pages, for example after a failure, after which an earlier quiet time proves nothing."""

BACKLOG = 5.0
"""Seconds: older records belong to a backlog when they are read. At its head, a shard is read more often."""

# Bytes of records in a page that probably ended because of its size: DynamoDB ends pages before 1 MB.
_LARGE_PAGE = 1 << 19

# Empty pages in a row after which a closed shard is read less often: it may have children, but no end yet.
_MANY_EMPTY_PAGES = 100


@dataclass(eq=False, repr=False)
class HeadSearch:
    """What a shard's pages reveal about its head. Used by the thread that reads the shard.

    ``is_closed``, ``is_awaited``: see `Opening`. ``clock``: seconds that never go back.
    """

    is_closed: Callable[[], bool] = lambda: False
    _: KW_ONLY
    is_awaited: bool = False
    clock: Callable[[], float] = time.monotonic
    reached: bool = field(default=False, init=False)
    """Whether the shard counts as read to its head."""
    _is_behind: bool = field(default=True, init=False)
    """Whether the last records belonged to a backlog, or none was read with this iterator."""
    _empty_pages: int = field(default=0, init=False)
    """Empty pages in a row, with one iterator."""
    # When the first and the last empty page since the last record were read, and the seconds between them.
    _quiet_since: float | None = field(default=None, init=False)
    _empty_at: float = field(default=0.0, init=False)
    _quiet_for: float = field(default=0.0, init=False)

    @property
    def more_waits(self) -> bool:
        """Whether the next page should be read at once: it is probably not the head, or the head is awaited."""
        if self.is_awaited and self._empty_pages and not self.reached and not self.is_closed():
            return True
        return self._is_behind and self._empty_pages < _MANY_EMPTY_PAGES

    @property
    def is_idle(self) -> bool:
        """Whether the shard has been quiet so long that `LATENESS` covers any record still to come."""
        return self._empty_pages >= CALLS_TO_REACH_HEAD and self._quiet_for >= LATENESS and not self.is_closed()  # I1

    def new_iterator(self) -> None:
        """Note that the next page is the first of a new iterator, so empty pages are read again."""
        self.reached, self._is_behind, self._empty_pages = False, True, 0

    def records(self, count: int, size: int, created: float, begun: float) -> None:
        """Note a page of ``count`` records with ``size`` bytes, the last ``created`` when its read had ``begun``."""
        self.reached, self._empty_pages, self._quiet_since = False, 0, None
        self._is_behind = (
            count >= PAGE_LIMIT or size >= _LARGE_PAGE or not may_be_from(created, begun - BACKLOG) or self.is_closed()
        )

    def empty(self) -> None:
        """Note an empty page: pages between the records of a shard may be empty, too."""
        now = self.clock()
        if self._quiet_since is None or now - self._empty_at > _LONGEST_PAUSE:  # I1: records may have come in the pause
            self._quiet_since, self._empty_pages = now, 0
        self._empty_at = now
        self._empty_pages += 1
        self._quiet_for = now - self._quiet_since
        # A closed shard has no head: it may have closed long ago, and is read only to its end.
        is_closed = self.is_closed()
        self.reached = not is_closed and self._empty_pages >= QUIET_PAGES and self._quiet_for >= QUIET_SECONDS  # I1
        self._is_behind = is_closed or (self._is_behind and self._empty_pages < CALLS_TO_REACH_HEAD)

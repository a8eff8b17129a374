"""How far a shard is from its head, as its pages tell: DynamoDB does not say where the head is."""

from __future__ import annotations

from collections.abc import Callable

from relay.dynamodb.creation import may_be_from
from relay.dynamodb.cursor import CALLS_TO_REACH_HEAD
from relay.dynamodb.session import PAGE_LIMIT

BACKLOG = 5.0
"""Seconds: records that are older when they are read belong to a backlog. At its head a shard is read more often."""

# Bytes of the records in a page that was probably ended by its size: DynamoDB ends it before 1 MB.
_LARGE_PAGE = 1 << 19

# Empty pages in a row after which a closed shard is read more slowly: it may have children, but no end yet.
_MANY_EMPTY_PAGES = 100


class HeadSearch:
    """What the pages of a shard tell. Used by the thread that reads the shard.

    ``is_closed``: whether the newest listing shows that the shard is closed.
    """

    def __init__(self, is_closed: Callable[[], bool] = lambda: False) -> None:
        self.reached = False
        # Whether the last records belonged to a backlog, or none was read with this iterator.
        self._is_behind = True
        # In a row, with one iterator.
        self._empty_pages = 0
        self._is_closed = is_closed

    def __repr__(self) -> str:
        state = "reached" if self.reached else "behind" if self._is_behind else "near"
        return f"<HeadSearch[{state}, {self._empty_pages} empty pages]>"

    @property
    def more_waits(self) -> bool:
        """Whether the next page is probably not the head: it should be read at once."""
        return self._is_behind and self._empty_pages < _MANY_EMPTY_PAGES

    def new_iterator(self) -> None:
        """The next page is the first of its iterator, so empty pages are read again."""
        self.reached, self._is_behind, self._empty_pages = False, True, 0

    def records(self, count: int, size: int, created: float, begun: float) -> None:
        """Note a page of ``count`` records of ``size`` bytes, the last one ``created`` when its read had ``begun``."""
        self.reached, self._empty_pages = False, 0
        self._is_behind = (
            count >= PAGE_LIMIT or size >= _LARGE_PAGE or not may_be_from(created, begun - BACKLOG) or self._is_closed()
        )

    def empty(self) -> None:
        """Note an empty page: pages between the records of a shard may be empty, too."""
        self._empty_pages += 1
        # A closed shard has no head: it may have closed long ago, and is read up to its end only.
        is_closed = self._is_closed()
        self.reached = not is_closed and self._empty_pages >= CALLS_TO_REACH_HEAD
        self._is_behind = is_closed or (self._is_behind and not self.reached)

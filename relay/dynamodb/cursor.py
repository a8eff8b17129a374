"""Reads one shard from a position: iterators, pages, and the recovery when the stream has trimmed the position.

Rules: AWS, "DynamoDB Streams low-level API" and "Data retention limit for DynamoDB Streams".
"""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from relay.dynamodb.account_pace import Pace
from relay.dynamodb.stream_calls import IteratorExpired, StreamSession, TrimmedData, retried
from relay.stream_token import TRIM_HORIZON, Position

log = logging.getLogger(__name__)

T = TypeVar("T")

CALLS_TO_REACH_HEAD = 5
"""Empty pages after which an open shard counts as read up to now: pages in the middle of a shard may be empty, too."""

FETCH_TRIES = 5
"""Fetches in one read before a reader gives up. Each may find that its iterator or its position is no longer valid."""


def may_be_from(created: float, since: float) -> bool:
    """Whether a record with the creation time ``created`` may have been written at ``since`` or later, in seconds.

    DynamoDB rounds the time down to the second, DynamoDB Local to the minute. If in doubt, the record is kept (I1).
    """
    return created + (60 if created % 60 == 0 else 1) > since


class RawPage(NamedTuple):
    """One answer of GetRecords."""

    records: list[Any]
    """The records as the client returns them."""
    next_iterator: str | None
    """None at the end of a closed shard."""
    fresh: bool
    """Whether the iterator was created for this page, so that empty stretches are read again."""


@dataclass(frozen=True, slots=True)
class UnreportedGap:
    """Records that are lost, or may be, and that the caller has not reported yet (I9)."""

    reason: Literal["trimmed", "expired", "gone"]
    begin: Position
    """The position before the gap."""
    found_at: float
    """Seconds since the epoch."""


@dataclass(eq=False, repr=False)
class ShardCursor:
    """A position in a shard, and an iterator there. Used by one thread at a time.

    ``iterator``: where the first page starts, instead of ``fetched``. ``retries``: whether it retries failed calls.
    Methods that call the service raise ``ShardNotFound``, ``RelayError``, and ``Transient`` unless it retries; then the
    position has not moved.
    """

    session: StreamSession
    shard: str
    fetched: Position = TRIM_HORIZON
    """Where the next page starts."""
    _: KW_ONLY
    iterator: str | None = None
    retries: bool = False
    ended: bool = field(default=False, init=False)
    """Whether the shard is closed and was read to its end."""
    gap: UnreportedGap | None = field(default=None, init=False)
    """The first gap that its reader has not reported and cleared; pages after it start at the horizon."""
    opened_at: float = field(default=0.0, init=False)
    """When the iterator was created, in seconds since the epoch."""
    _fresh: bool = field(default=True, init=False)
    """Whether no page was read with this iterator yet."""

    def move_to(self, position: Position) -> None:
        """Continue at ``position``, and forget a gap that was not reported."""
        self.fetched, self.iterator, self.ended, self.gap = position, None, False, None

    def open(self) -> None:
        """Create an iterator if there is none. A position that was trimmed becomes the horizon, and a gap."""
        if self.iterator is not None or self.ended:
            return
        opened_at = self.session.clock()
        try:
            iterator = self._make_iterator()
        except TrimmedData:
            self.skip_to_horizon("trimmed")
            iterator = self._make_iterator()
        self.iterator, self.ended, self.opened_at = iterator, iterator is None, opened_at
        self._fresh = True

    def fetch(self) -> RawPage | None:
        """Fetch the page at the position. The same page is fetched again until ``advance``.

        None means that the iterator had expired or records were trimmed; the next call continues with another iterator.
        Raises ``IteratorExpired`` if a new iterator may start at other records, since the position has no sequence
        number: then drop the iterator, or ``skip_to_horizon``.
        """
        try:
            self.open()
            if (iterator := self.iterator) is None:
                return RawPage([], None, self._fresh)
            records, following = self._call(lambda: self.session.records(iterator), "reading records")
        except IteratorExpired:
            if not self.fetched.exact:
                raise
            self.iterator = None
            return None
        except TrimmedData:
            self.skip_to_horizon("trimmed")
            return None
        return RawPage(records, following, self._fresh)

    def advance(self, page: RawPage, last: str | None) -> None:
        """Move past ``page``. ``last``: the sequence number of its last record, or None if it has no records."""
        self.iterator, self.ended, self._fresh = page.next_iterator, page.next_iterator is None, False
        if last is not None:
            self.fetched = Position("after_sequence", last)

    def skip_to_horizon(self, reason: Literal["trimmed", "expired"]) -> None:
        """Continue at the horizon, and remember the gap unless one is already waiting to be reported."""
        if self.gap is None:
            self.gap = UnreportedGap(reason, self.fetched, self.session.clock())
        if reason == "trimmed":
            log.info("shard %s: the stream has trimmed %s; continuing at the trim horizon", self.shard, self.fetched)
        self.fetched, self.iterator = TRIM_HORIZON, None

    def abandon(self) -> None:
        """Record everything from the position on as a gap: the stream no longer has the shard."""
        begin = self.fetched if self.gap is None else self.gap.begin
        self.gap = UnreportedGap("gone", begin, self.session.clock())

    def _make_iterator(self) -> str | None:
        return self._call(lambda: self.session.iterator(self.shard, self.fetched), "requesting an iterator")

    def _call(self, call: Callable[[], T], doing: str) -> T:
        if not self.retries:
            return call()
        return retried(call, f"shard {self.shard}: {doing} at {self.fetched}", Pace(sleep=self.session.sleep))

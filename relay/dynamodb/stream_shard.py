"""One shard of a `Stream`. Rules: Bloop, "Internal" (Shard, Record Gaps) and "Streams" (Periodic Heartbeats)."""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime

from relay.dynamodb.cursor import CALLS_TO_REACH_HEAD, FETCH_TRIES, RawPage, ShardCursor, may_be_from
from relay.dynamodb.stream_calls import IteratorExpired, StreamSession
from relay.dynamodb.stream_record import Record, stream_record
from relay.errors import RelayError
from relay.records import Gap
from relay.stream_token import TRIM_HORIZON, Position, ShardToken

log = logging.getLogger(__name__)

OnGap = Callable[[Gap], None]


@dataclass(eq=False, repr=False)
class StreamShard:
    """A shard, read from one position to its end. Calls that fail are retried, and empty pages skipped.

    The caller moves ``delivered`` with ``mark_delivered``, record by record. ``cursor`` is ahead, at the next page.
    """

    session: StreamSession
    id: str
    _: KW_ONLY
    on_gap: OnGap | None = None
    calls_to_reach_head: int = CALLS_TO_REACH_HEAD
    delivered: Position | None = field(default=None, init=False)
    """Where a token taken now would resume, or None until the shard is opened."""
    since: datetime | None = field(default=None, init=False)
    """Records created before this time are dropped, up to the first one that is not older."""
    empty_responses: int = field(default=0, init=False)
    """Empty pages since the position was set or the iterator was created; data does not reset it."""
    unread: int = field(default=0, init=False)
    """How many of its records are in the buffer."""
    lookups: int = field(default=0, init=False)
    """How often its children have been looked up since it was drained."""
    lookup_at: float = field(default=0.0, init=False)
    """When its children are next looked up, as a time of the clock; infinite for a disabled stream."""
    denied_since: float | None = field(default=None, init=False)
    """Since when the stream has called it unknown although listing it, in seconds by the clock."""

    def __post_init__(self) -> None:
        self.cursor = ShardCursor(self.session, self.id, retries=True)

    @property
    def exhausted(self) -> bool:
        """Whether the shard is closed, its last page was fetched and its last gap was reported."""
        return self.cursor.ended and self.cursor.gap is None

    @property
    def drained(self) -> bool:
        """Whether all its records were handed out."""
        return self.exhausted and not self.unread

    def token(self, parent: str | None = None) -> ShardToken:
        """Return this shard's part of a token. Logs a warning if resuming there is not exact (I4)."""
        if self.delivered is not None and not self.delivered.exact and not self.exhausted:
            risk = f"the token has no sequence number for it, only {self.delivered}"
            log.warning("shard %s: %s: resuming there may skip or repeat records", self.id, risk)
        return ShardToken(self.id, parent, self.delivered)

    def move_to(self, position: Position) -> None:
        """Move to a position. Its iterator is requested when needed."""
        self.delivered, self.since, self.empty_responses = position, None, 0
        self.cursor.move_to(position)

    def open(self) -> None:
        """Request an iterator unless there is one. Raises ``ShardNotFound`` or ``Unavailable``."""
        self.cursor.open()
        self.delivered = self.delivered or TRIM_HORIZON

    def seek_to(self, time: datetime) -> list[Record]:
        """Move to the first record created at ``time`` or later, to the second, and return its page.

        Returns an empty list at the end or head of the shard; later records are compared until one is late enough.
        """
        self.move_to(TRIM_HORIZON)
        self.since = time.replace(microsecond=0)
        return self.get_records()

    def get_records(self) -> list[Record]:
        """Return the next records, after up to ``calls_to_reach_head`` empty pages; an empty list if there are none.

        After that many empty pages, makes one call. Raises ``IteratorExpired`` if a new iterator might skip records
        and there is no ``on_gap``, ``ShardNotFound`` if the shard is gone, and ``RelayError``.
        """
        if self.exhausted:
            return []
        records = self.next_page()
        while not records and not self.exhausted and self.empty_responses < self.calls_to_reach_head:
            records = self.next_page()
        if not records:
            self._report_gap(None)
        return records

    def next_page(self) -> list[Record]:
        """Fetch one page, which keeps the iterator alive, and return its records. Raises as ``get_records`` does."""
        for _ in range(FETCH_TRIES):
            try:
                page = self.cursor.fetch()
            except IteratorExpired as error:
                self._replace_inexact_iterator(error)
            else:
                if page is not None:
                    return self._accept(page)
        raise RelayError(f"shard {self.id} at {self.delivered}: no iterator was valid in {FETCH_TRIES} tries")

    def mark_delivered(self, record: Record) -> None:
        """Move the token's position past ``record``, which the caller has handed out."""
        self.delivered = Position("after_sequence", record["meta"]["sequence_number"])

    def report_gone(self) -> None:
        """Report a gap: the stream no longer has the shard, so the rest of it cannot be read."""
        self.cursor.abandon()
        self._report_gap(None)

    def _accept(self, page: RawPage) -> list[Record]:
        """Move past ``page`` and return the wanted records."""
        records = [stream_record(record, self.id) for record in page.records]
        if records or page.next_iterator is None:
            # Before anything moves: if the callback raises, this page is fetched again (I9).
            self._report_gap(records[0]["meta"]["sequence_number"] if records else None)
        if page.fresh:
            self.empty_responses = 0
        self.delivered = self.delivered or TRIM_HORIZON
        self.cursor.advance(page, records[-1]["meta"]["sequence_number"] if records else None)
        if not records:
            self.empty_responses += 1
            return []
        wanted = self._drop_older(records)
        if not wanted:
            self.delivered = self.cursor.fetched
        elif not self.delivered.exact:
            # No part of the page is delivered yet: a token taken now must return all of it again.
            self.delivered = Position("at_sequence", wanted[0]["meta"]["sequence_number"])
        return wanted

    def _drop_older(self, records: list[Record]) -> list[Record]:
        if self.since is None:
            return records
        for index, record in enumerate(records):
            if may_be_from(record["meta"]["created_at"].timestamp(), self.since.timestamp()):
                self.since = None
                return records[index:]
        return []

    def _replace_inexact_iterator(self, error: IteratorExpired) -> None:
        """Replace an expired iterator whose position has no sequence number. Raises if that may skip records."""
        cursor = self.cursor
        # While searching for a time, no wanted record was passed: the search starts again.
        if cursor.gap is not None or self.since is not None:
            cursor.iterator = None
            return
        if self.on_gap is None:
            raise IteratorExpired(
                f"shard {self.id}: the iterator at {cursor.fetched} expired before it returned a record, so records "
                "may be lost: call heartbeat() at least every 14 minutes, or pass on_gap to continue after a gap"
            ) from error
        if cursor.fetched.type == "latest":
            self.since = datetime.fromtimestamp(int(cursor.opened_at)).astimezone()
        cursor.skip_to_horizon("expired")

    def _report_gap(self, first_seen: str | None) -> None:
        """Report the gap before the record ``first_seen``, if there is one. It remains if the callback raises."""
        found = self.cursor.gap
        if found is None:
            return
        # arn:aws:dynamodb:<region>:<account>:table/<table>/stream/<label>
        table, _, label = self.session.stream_arn.partition(":table/")[2].partition("/stream/")
        end = Position("at_sequence", first_seen).to_json() if first_seen is not None else None
        gap = Gap(table, label, self.id, found.reason, found.begin.to_json(), end, found.found_at)
        place = f"shard {self.id}: records may be lost ({found.reason})"
        log.warning("%s, from %s to %s: gap %s", place, found.begin, first_seen or "an unknown end", gap.id)
        if self.on_gap is not None:
            self.on_gap(gap)
        self.cursor.gap = None
        if found.reason != "gone":
            self.delivered = TRIM_HORIZON

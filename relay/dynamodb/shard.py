"""One shard of a stream: its place in the lineage, the position in it, and its iterator.

Rules: seed 001, "Shard"; seed 002, "Record Gaps" and "Periodic Heartbeats". Which shards are read, and when,
is decided in ``relay.dynamodb.coordinator``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from relay.dynamodb.creation import may_be_from
from relay.dynamodb.session import IteratorExpired, StreamSession, TrimmedData, retried
from relay.dynamodb.stream_record import Record, stream_record
from relay.errors import RelayError
from relay.lineage import Gap
from relay.stream_token import TRIM_HORIZON, IteratorType, Position, ShardToken

log = logging.getLogger(__name__)

OnGap = Callable[[Gap], None]

CALLS_TO_REACH_HEAD = 5
"""Empty pages after which a shard counts as read up to now (seed 002, "Why only 5 calls?")."""

_TRIES = 5


class StreamShard:
    """A shard, read from one position to its end.

    ``position`` is what a token would say: the caller moves it on with ``delivered``, record by record. How far
    pages were fetched is another matter, and kept apart.
    """

    def __init__(
        self,
        session: StreamSession,
        shard_id: str,
        *,
        parent: StreamShard | None = None,
        position: Position | None = None,
        on_gap: OnGap | None = None,
        calls_to_reach_head: int = CALLS_TO_REACH_HEAD,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.session = session
        self.id = shard_id
        self.parent: StreamShard | None = None
        self.children: list[StreamShard] = []
        if parent is not None:
            self.adopt_by(parent)
        # Where a token taken now would begin; None while nothing asked for this shard.
        self.position = position
        self.on_gap = on_gap
        self.calls_to_reach_head = calls_to_reach_head
        self.clock = clock
        self.sleep = sleep
        # Records created before this time are passed over, until the first that is not.
        self.since: datetime | None = None
        # Empty pages since the last jump; data does not reset it.
        self.empty_responses = 0
        # Where the next page begins, when there is no iterator for it.
        self._frontier = position
        self._iterator: str | None = None
        self._exhausted = False
        # When the iterator was made, for one at the head.
        self._opened_at = 0.0
        # A loss that was met and not told yet: its reason, and the position before it.
        self._loss: tuple[str, Position] | None = None

    def __repr__(self) -> str:
        state = "exhausted" if self._exhausted else self.position or "not begun"
        return f"<StreamShard[{state}, id={self.id!r}]>"

    def adopt_by(self, parent: StreamShard) -> None:
        """Become a child of ``parent``."""
        if self.parent is not parent:
            self.parent = parent
            parent.children.append(self)

    @property
    def exhausted(self) -> bool:
        """Whether the shard is closed and its last page was fetched."""
        return self._exhausted

    @property
    def token(self) -> ShardToken:
        """What of this shard goes into a stream's token; warns where a restart there cannot be exact (I4)."""
        if self.position is not None and not self.position.exact and not self._exhausted:
            log.warning("shard %s: its token is at a non-exact location, %s", self.id, self.position)
        return ShardToken(self.id, self.parent.id if self.parent is not None else None, self.position)

    def walk(self) -> Iterator[StreamShard]:
        """Yield this shard and all its descendants, each after its parent."""
        waiting = [self]
        while waiting:
            shard = waiting.pop(0)
            yield shard
            waiting.extend(shard.children)

    def jump_to(self, iterator_type: IteratorType, sequence: str | None = None) -> None:
        """Stand at a position, with a new iterator.

        A position that the stream has trimmed becomes the horizon, and a gap. Raises ``InvalidPosition``,
        ``ShardNotFound`` or ``Unavailable``; the shard has moved only if it returns.
        """
        self.move_to(Position(iterator_type, sequence))
        self.open()

    def move_to(self, position: Position) -> None:
        """Stand at a position; its iterator is made when it is needed."""
        self.position = self._frontier = position
        self._iterator, self._exhausted, self._loss, self.since = None, False, None, None
        self.empty_responses = 0

    def open(self) -> None:
        """Make an iterator if there is none. Raises ``ShardNotFound`` or ``Unavailable``."""
        if self._iterator is not None or self._exhausted:
            return
        begin = self._frontier or TRIM_HORIZON
        opened_at = self.clock()
        try:
            iterator = self._iterator_at(begin)
        except TrimmedData:
            log.info("shard %s: %s is past the trim horizon; moving to the horizon", self.id, begin)
            self._lose("trimmed", begin)
            iterator = self._iterator_at(TRIM_HORIZON)
        if self.position is None:
            self.position = begin
        self._iterator, self._exhausted, self._opened_at = iterator, iterator is None, opened_at

    def seek_to(self, time: datetime) -> list[Record]:
        """Jump to the first record created at ``time`` or later, compared by whole seconds, and return its page.

        Reads everything from the horizon on. An empty list: the shard is exhausted, or its head was reached; then
        what comes later is still compared, until one record is late enough.
        """
        self.move_to(TRIM_HORIZON)
        self.since = time.replace(microsecond=0)
        return self.get_records()

    def get_records(self) -> list[Record]:
        """Return the next records, over up to ``calls_to_reach_head`` empty pages, or an empty list.

        Once that many were met in this shard, it asks once. Raises ``IteratorExpired`` where a new iterator could
        leave something out and there is no gap callback, ``ShardNotFound`` when the shard is gone, ``RelayError``.
        """
        if self._exhausted:
            return []
        records = self.next_page()
        while not records and not self._exhausted and self.empty_responses < self.calls_to_reach_head:
            records = self.next_page()
        if not records:
            self._tell_loss(None)
        return records

    def next_page(self) -> list[Record]:
        """Fetch one page: keep the iterator alive, and return what there is. Errors as for ``get_records``."""
        for _ in range(_TRIES):
            try:
                self.open()
                if self._iterator is None:
                    return []
                page = self._page(self._iterator)
            except IteratorExpired as error:
                self._renew(error)
            except TrimmedData:
                self._lose("trimmed", self._frontier or TRIM_HORIZON)  # I9
            else:
                return self._take(*page)
        raise RelayError(f"shard {self.id} at {self.position}: no usable iterator in {_TRIES} tries")

    def delivered(self, record: Record) -> None:
        """Note that ``record`` was handed out: a token begins after it."""
        self.position = Position("after_sequence", record["meta"]["sequence_number"])

    def tell_gone(self) -> None:
        """Report that the stream has lost this shard; what was not read of it cannot be read any more."""
        begin = self._loss[1] if self._loss is not None else self._frontier
        self._loss = ("gone", begin or TRIM_HORIZON)
        self._tell_loss(None)

    def _iterator_at(self, position: Position) -> str | None:
        return retried(
            lambda: self.session.iterator_at(self.id, position.type, position.sequence),
            f"shard {self.id}, an iterator at {position}",
            sleep=self.sleep,
        )

    def _page(self, iterator: str) -> tuple[list[Any], str | None]:
        return retried(
            lambda: self.session.records(iterator), f"shard {self.id}, records at {self._frontier}", sleep=self.sleep
        )

    def _take(self, raw: list[Any], following: str | None) -> list[Record]:
        records = [stream_record(record, self.id) for record in raw]
        if records or following is None:
            # Before anything moves: when the callback raises, this page is fetched again (I9).
            self._tell_loss(records[0]["meta"]["sequence_number"] if records else None)
        self._iterator, self._exhausted = following, following is None
        if not records:
            self.empty_responses += 1
            return []
        last = Position("after_sequence", records[-1]["meta"]["sequence_number"])
        self._frontier = last
        wanted = self._wanted(records)
        if not wanted:
            self.position = last
        elif self.position is None or not self.position.exact:
            # Nothing of the page is delivered yet: a token taken now must bring all of it again.
            self.position = Position("at_sequence", wanted[0]["meta"]["sequence_number"])
        return wanted

    def _wanted(self, records: list[Record]) -> list[Record]:
        if self.since is None:
            return records
        for index, record in enumerate(records):
            if may_be_from(record["meta"]["created_at"].timestamp(), self.since.timestamp()):
                self.since = None
                return records[index:]
        return []

    def _renew(self, error: IteratorExpired) -> None:
        """Drop an expired iterator where a new one is as good. Re-raises where it is not."""
        begin = self._frontier or TRIM_HORIZON
        # Where a time is sought, nothing that counts was passed: the search begins again.
        if not begin.exact and self._loss is None and self.since is None:
            # Records may have come and gone between the old iterator and a new one at the same end.
            if self.on_gap is None:
                raise IteratorExpired(
                    f"shard {self.id}: the iterator at {begin} expired before it found a record: call heartbeat() "
                    "at least every 14 minutes, or give on_gap"
                ) from error
            if begin.type == "latest":
                self.since = datetime.fromtimestamp(int(self._opened_at)).astimezone()
            self._lose("expired", begin)
        self._iterator = None

    def _lose(self, reason: str, begin: Position) -> None:
        """Go on at the horizon. The position stays, so that a token taken before the gap is told meets it again."""
        if self._loss is None:
            self._loss = (reason, begin)
        self._frontier, self._iterator, self.empty_responses = TRIM_HORIZON, None, 0

    def _tell_loss(self, first_seen: str | None) -> None:
        if self._loss is None:
            return
        reason, begin = self._loss
        # arn:aws:dynamodb:<region>:<account>:table/<table>/stream/<label>
        table, _, label = self.session.stream_arn.partition(":table/")[2].partition("/stream/")
        end = Position("at_sequence", first_seen).to_json() if first_seen is not None else None
        gap = Gap(table, label, self.id, reason, begin.to_json(), end, self.clock())
        log.warning(
            "shard %s: gap %s: %s, from %s to %s", self.id, gap.id, reason, begin, first_seen or "an unknown end"
        )
        if self.on_gap is not None:
            self.on_gap(gap)
        self._loss = None
        if reason != "gone":
            self.position = TRIM_HORIZON

"""Reading one shard: where it stands, and what happens when the stream no longer has that place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from relay.dynamodb.creation import may_be_from
from relay.dynamodb.records import RecordFormat
from relay.dynamodb.session import PAGE_LIMIT, IteratorExpired, ShardNotFound, StreamSession, Transient, TrimmedData
from relay.errors import RelayError
from relay.lineage import Gap, StreamId
from relay.source import Opening, Page, ReadResult, UnknownShard, Unreadable

LATENESS = 60
"""Seconds by which a record may appear after its creation time: the progress of an idle shard lags by it."""

RETENTION = 24 * 3600
"""Seconds for which a stream keeps a record (AWS, "Data retention limit for DynamoDB Streams")."""

# Threads that make changes all at once only take the interpreter from each other, and from the worker.
_ONE_AT_A_TIME = threading.Lock()

_EMPTY_AT_HEAD = 5
"""Empty pages in a row after which a shard is taken to be read up to now: they come in the middle, too."""

_ITERATORS = 3
"""Iterators taken in one read before it is left for later."""


class DynamoDBShardReader:
    """The reader of one shard.

    Positions are ``{"type": "after_sequence", "sequence": n}``: exact, so an expired iterator is simply
    replaced (I4). Reading from the horizon needs no position: nothing was read yet.
    """

    streams = False

    def __init__(
        self,
        session: StreamSession,
        stream: StreamId,
        opening: Opening,
        record_format: RecordFormat,
        *,
        head: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.session = session
        self.stream = stream
        self.shard = opening.shard
        self.format = record_format
        # The last sequence number read, None before the first.
        self.sequence: str | None = None
        # The first sequence number wanted, where that is where reading begins; None at the horizon.
        self._first: str | None = None
        start, checkpoint = opening.start, opening.checkpoint
        if opening.position is not None:
            self.sequence = opening.position["sequence"]
        elif start.get("type") == "after_sequence":
            self.sequence = start["sequence"]
        elif start.get("type") == "at_sequence":
            self._first = start["sequence"]
        # Records created before this time, in seconds, are not wanted.
        self.since: float = start.get("since", 0.0)
        # Whether that holds for what is read now: not for what comes after the head of then, nor once something
        # was published, or a host whose clock is ahead would drop what is new.
        self._discards = head is None and (checkpoint is None or checkpoint.token is None)
        # The last timestamp of this lineage, in seconds.
        self.floor = opening.floor
        # Up to when the shard has been read, in seconds.
        self.read_until = opening.read_until
        self.clock = clock
        self._iterator: str | None = head
        # Whether no page was read at this iterator yet.
        self._fresh = True
        # Empty pages in a row, in one walk.
        self._empty = 0
        # A loss that no page has told of yet.
        self._gap: Gap | None = None
        # What a record is refused for, to be raised after the page of those before it.
        self._fault: RelayError | None = None

    def __repr__(self) -> str:
        return f"<DynamoDBShardReader[{self.shard.id} after {self.sequence or 'the horizon'}]>"

    def close(self) -> None:
        """Nothing is held: an iterator is only a place."""

    def read(self) -> ReadResult:
        """Return the next page. Raises ``RelayError`` on what is final."""
        if self._fault is not None:
            raise self._fault
        begun = self.clock()
        for _ in range(_ITERATORS):
            try:
                if self._iterator is None:
                    self._iterator = self._begin()
                    if self._iterator is None:
                        return self._page([], begun, finished=True)
                records, following = self.session.records(self._iterator)
            except IteratorExpired:
                self._iterator = None
                if self.sequence is None and self._first is None:
                    self._discards = True  # reading begins again at the horizon
            except TrimmedData:
                self._lose()
                self._iterator = self.sequence = self._first = None
            except ShardNotFound:
                return UnknownShard(self.shard, begun)
            except Transient as error:
                return Unreadable(self.shard, begun, str(error))
            else:
                self._iterator = following
                if not records:
                    return self._page(records, begun, finished=following is None)
                with _ONE_AT_A_TIME:
                    return self._page(records, begun, finished=following is None)
        return Unreadable(self.shard, begun, f"no usable iterator in {_ITERATORS} tries")

    def _idle_since(self, begun: float) -> float | None:
        """Return up to when a shard is read that gave nothing at ``begun``; None where more may be just ahead.

        The end of a closed shard says nothing about the time: it may have ended long ago.
        """
        self._empty = 1 if self._fresh else self._empty + 1
        return begun - LATENESS if self._empty >= _EMPTY_AT_HEAD else None

    def _begin(self) -> str | None:
        """Return an iterator where reading goes on."""
        if self.sequence is None and self._first is not None:
            self._fresh = True
            return self.session.iterator_at(self.shard.id, "at_sequence", self._first)
        if self.sequence is None and self.clock() - self.read_until > RETENTION:
            # Nothing tells whether there was something that the horizon has passed by: so there may have been.
            self._lose()
        self._fresh = True
        return self.session.iterator(self.shard.id, self.sequence)

    def _lose(self) -> None:
        """I9: remember that records may be lost, until a page tells of it."""
        if self._gap is None:
            first = {"type": "at_sequence", "sequence": self._first} if self._first is not None else None
            begin = self._position() or first or {"type": "at_time", "seconds": self.read_until}
            self._gap = Gap(self.stream.source, self.stream.label, self.shard.id, "trimmed", begin, None, self.clock())
        self.read_until = self.clock()

    def _page(self, records: list[Any], begun: float, *, finished: bool) -> Page:
        changes, size, behind = [], 0, 0
        progress = self._idle_since(begun) if not records and not finished else None
        for index, record in enumerate(records):
            try:
                change = self.format.change(record, self.floor)
            except RelayError as error:
                if not index:
                    raise
                # A reset past it would also pass by what came before it, were that not given.
                self._fault, records, finished = error, records[:index], False
                break
            created = change.committed_at // 1_000_000
            progress = float(created)
            behind += created < self.floor
            if change.token is not None:
                self.floor = change.token.timestamp
            if not self._discards or may_be_from(created, self.since):
                self._discards = False
                changes.append(change)
                size += record.dynamodb.size_bytes or record.dynamodb.image_bytes  # I11
        if records:
            self._empty = 0
            self.sequence = records[-1].dynamodb.sequence_number
        if progress is not None:
            self.read_until = max(self.read_until, progress)
        gap, self._gap = self._gap, None
        fresh, self._fresh = self._fresh, False
        return Page(
            shard=self.shard,
            changes=changes,
            position=self._position(),
            token=changes[-1].token if changes else None,
            progress=progress,
            begun=begun,
            records=len(records),
            size=size,
            full=len(records) >= PAGE_LIMIT,
            finished=finished,
            gap=gap,
            fresh=fresh,
            behind=behind,
        )

    def _position(self) -> Mapping[str, Any] | None:
        return {"type": "after_sequence", "sequence": self.sequence} if self.sequence is not None else None

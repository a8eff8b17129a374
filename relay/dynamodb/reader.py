"""Reading one shard: where it stands, and what happens when the stream no longer has that place."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from relay.dynamodb.records import RecordFormat
from relay.dynamodb.session import (
    PAGE_LIMIT,
    IteratorExpired,
    ShardNotFound,
    StreamSession,
    Transient,
    TrimmedData,
)
from relay.errors import RelayError
from relay.lineage import Gap, Shard, Stream
from relay.source import Page

LATENESS = 60
"""Seconds by which a record may appear after its creation time: the progress of an idle shard lags by it."""

_RETRIES = 8
_LONGEST_BACKOFF = 5.0


class DynamoDBShardReader:
    """The reader of one shard.

    Positions are ``{"type": "after_sequence", "sequence": n}``: exact, so an expired iterator is simply
    replaced (I4). Reading from the horizon needs no position: nothing was read yet.
    """

    def __init__(
        self,
        session: StreamSession,
        stream: Stream,
        shard: Shard,
        record_format: RecordFormat,
        *,
        start: Mapping[str, Any],
        position: Mapping[str, Any] | None,
        floor: int,
        head: str | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.session = session
        self.stream = stream
        self.shard = shard
        self.format = record_format
        # The last sequence number read, None at the horizon.
        self.sequence: str | None = position["sequence"] if position else None
        # Records created before this time, in seconds, are not wanted.
        self.since: float = start.get("since", 0.0)
        # Whether that holds for what is read now: not for what comes after the head of then.
        self._discards = head is None
        # The last timestamp of this lineage, in seconds.
        self.floor = floor
        self.clock = clock
        self.sleep = sleep
        self._iterator: str | None = head

    def __repr__(self) -> str:
        return f"<DynamoDBShardReader[{self.shard.id} after {self.sequence or 'the horizon'}]>"

    def read(self) -> Page:
        """Return the next page. Raises ``RelayError`` on what is final."""
        begun = self.clock()
        gap: Gap | None = None
        for attempt in range(_RETRIES):
            try:
                if self._iterator is None:
                    self._iterator = self.session.iterator(self.shard.id, self.sequence)
                    if self._iterator is None:
                        return self._page([], begun, finished=True, gap=gap)
                records, following = self.session.records(self._iterator)
            except IteratorExpired:
                # Without a sequence number reading begins again at the horizon.
                self._iterator, self._discards = None, True
            except TrimmedData:
                gap = self._gap("trimmed")  # I9
                self._iterator, self.sequence, self._discards = None, None, True
            except ShardNotFound:
                return self._page([], begun, gap=gap, gone=True)
            except Transient as error:
                if attempt == _RETRIES - 1:
                    raise RelayError(f"{self.stream.qualified(self.shard.id)}: giving up: {error}") from error
                self.sleep(random.uniform(0, min(_LONGEST_BACKOFF, 0.1 * 2**attempt)))
            else:
                self._iterator = following
                return self._page(records, begun, finished=following is None, gap=gap)
        raise RelayError(f"{self.stream.qualified(self.shard.id)}: no usable iterator in {_RETRIES} tries")

    def _page(
        self,
        records: list[Any],
        begun: float,
        *,
        finished: bool = False,
        gap: Gap | None = None,
        gone: bool = False,
    ) -> Page:
        changes, size, progress = [], 0, None
        for record in records:
            change = self.format.change(record, self.floor)
            created = change.committed_at // 1_000_000
            progress = float(created)
            if change.token is not None:
                self.floor = change.token.timestamp
            if not self._discards or _may_be_after(created, self.since):
                changes.append(change)
                size += record["dynamodb"].get("SizeBytes") or len(change.new or "") + len(change.old or "")
        if records:
            self.sequence = records[-1]["dynamodb"]["SequenceNumber"]
        elif not gone:
            progress = begun - LATENESS
        return Page(
            shard=self.shard,
            changes=changes,
            position={"type": "after_sequence", "sequence": self.sequence} if self.sequence is not None else None,
            token=changes[-1].token if changes else None,
            progress=progress,
            begun=begun,
            records=len(records),
            size=size,
            full=len(records) >= PAGE_LIMIT,
            finished=finished,
            gap=gap,
            gone=gone,
        )

    def _gap(self, reason: str) -> Gap:
        begin = {"type": "after_sequence", "sequence": self.sequence} if self.sequence else None
        return Gap(self.stream.source, self.stream.label, self.shard.id, reason, begin, None, self.clock())


def _may_be_after(created: int, since: float) -> bool:
    """Whether a record of creation time ``created`` may have been written at ``since`` or later.

    DynamoDB rounds the time down to the second, DynamoDB Local to the minute; in doubt nothing is lost (I1).
    """
    return created + (60 if created % 60 == 0 else 1) > since

"""The engine's reader of one shard: pages of records become pages of changes."""

import threading

from relay.change import Change, ChangeParts
from relay.dynamodb.cursor import FETCH_TRIES, RawPage, ShardCursor, may_be_from
from relay.dynamodb.head import LATENESS, HeadSearch
from relay.dynamodb.records import RecordFormat, chosen
from relay.dynamodb.stream_calls import IteratorExpired, ShardNotFound, StreamSession, Transient
from relay.errors import RelayError
from relay.records import Gap, StreamId
from relay.source import LastPage, Opening, Page, PageCounts, ReadResult, UnknownShard, Unreadable
from relay.stream_token import TRIM_HORIZON, Position

RETENTION = 24 * 3600
"""How many seconds a stream keeps a record (AWS, "Data retention limit for DynamoDB Streams")."""

# Shared by the readers of all shards, each on its own thread. Threads that make changes at the same time only slow each
# other and the worker down. Not held during a call to the service.
_ONE_AT_A_TIME = threading.Lock()


class DynamoDBShardReader:
    """Reads one shard for the engine: one page of changes per call, without retries.

    A page's position is ``after_sequence``, where an expired iterator is replaced exactly (I4). Before the first record
    there is no position, and reading restarts at the horizon. ``head``: an iterator at the shard's head when the plan
    was made, which is used instead of the start.
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
    ) -> None:
        self.stream = stream
        self.shard = opening.shard
        self.format = record_format
        start, checkpoint = opening.start, opening.checkpoint
        # I9: if nothing was read since a gap was reported, whatever is missing from before that is part of this gap.
        has_gap = checkpoint is not None and checkpoint.gap is not None and checkpoint.position is None
        reported_at = checkpoint.updated_at if checkpoint is not None and has_gap else 0.0
        # The start may be a time: then reading begins at the horizon.
        is_exact = "sequence" in opening.resume and not has_gap
        resumed = Position.from_json(opening.resume) if is_exact else TRIM_HORIZON
        self.cursor = ShardCursor(session, opening.shard.id, resumed, iterator=head)
        # Records created before this time, in seconds since the epoch, are dropped; 0: none.
        self.since: float = start.get("since", 0.0)
        # Whether they are dropped now: not after the shard's head, nor once anything was published. Otherwise a host
        # whose clock is ahead would drop new records.
        self._drops_older = self.since > 0 and head is None and (checkpoint is None or checkpoint.token is None)
        # The last timestamp of this lineage, in seconds.
        self.floor = opening.floor
        # The time up to which the shard was read, in seconds since the epoch.
        self.read_until = max(opening.read_until, reported_at)
        self.clock = session.clock
        self._head = HeadSearch(opening.is_closed, is_awaited=opening.is_awaited)
        # Why the next record is refused. Raised after the page with the records before it.
        self._refusal: RelayError | None = None

    def close(self) -> None:
        """Do nothing: an iterator does not have to be closed."""

    def read(self) -> ReadResult:
        """Return the next page. Raises ``RelayError`` for errors that a retry cannot repair."""
        if self._refusal is not None:
            raise self._refusal
        begun = self.clock()
        try:
            for _ in range(FETCH_TRIES):
                page = self._fetch()
                if page is None:
                    continue
                if not page.records:
                    return self._page(page, begun)
                with _ONE_AT_A_TIME:
                    return self._page(page, begun)
        except ShardNotFound:
            return UnknownShard(self.shard, begun)
        except Transient as error:
            return Unreadable(self.shard, begun, str(error))
        return Unreadable(self.shard, begun, f"no iterator was valid in {FETCH_TRIES} tries")

    def _fetch(self) -> RawPage | None:
        cursor = self.cursor
        is_inexact = cursor.iterator is None and not cursor.fetched.exact and not cursor.ended
        if is_inexact and self.clock() - self.read_until > RETENTION:
            # Records may have been trimmed since, without any other sign.
            cursor.skip_to_horizon("trimmed")
        try:
            return cursor.fetch()
        except IteratorExpired:
            cursor.iterator = None
            # No record was read yet: reading restarts at the horizon, before the start.
            self._drops_older = self.since > 0
            return None

    def _page(self, page: RawPage, begun: float) -> Page:
        records, finished = page.records, page.next_iterator is None
        changes: list[Change] = []
        read, size, behind = 0, 0, 0
        progress: float | None = None
        if page.fresh:
            self._head.new_iterator()
        block = None if self._drops_older else self.format.block(records, self.floor)
        if block is not None:
            self.floor, behind, read, size = block.floor, block.behind, block.size, block.size
            progress = float(block.created)
        for index, record in enumerate(records if block is None else ()):
            try:
                change = self.format.change(record, self.floor)
            except RelayError as error:
                if not index:
                    raise
                # Return the records before it first: a reset past the refused record would skip them, too.
                self._refusal, records, finished = error, records[:index], False
                break
            created = change.committed_at // 1_000_000
            progress = float(created)
            behind += created < self.floor
            data = record.dynamodb
            weight = data.size_bytes or len(data.old_image) + len(data.new_image)
            read += weight
            if change.token is not None:
                self.floor = change.token.timestamp
            if not self._drops_older or may_be_from(created, self.since):
                self._drops_older = False
                changes.append(change)
                size += weight  # I11
        found = changes if block is None else ChangeParts([block.changes])
        token = found[-1].token if found else None
        if wanted := self.format.wanted:
            found = chosen(changes, wanted)
        gap = self._gap()
        if progress is not None:
            self._head.records(len(records), read, progress, begun)
        elif not finished:
            self._head.empty()
            progress = begun - LATENESS if self._head.is_idle else None
        self.cursor.advance(page, records[-1].dynamodb.sequence_number if records else None)
        if progress is not None:
            self.read_until = max(self.read_until, progress)
        position = self.cursor.fetched
        return Page(
            shard=self.shard,
            changes=found,
            position=position.to_json() if position.type == "after_sequence" else None,
            token=token,
            progress=progress,
            begun=begun,
            counts=PageCounts(len(records), size, behind),
            pause=0.0 if self._head.more_waits else None,
            end=LastPage() if finished else None,
            gap=gap,
            at_head=self._head.reached and not finished,
        )

    def _gap(self) -> Gap | None:
        """Return the gap before the fetched page (I9)."""
        gap = self.cursor.gap
        if gap is None:
            return None
        begin = gap.begin.to_json() if gap.begin.exact else {"type": "at_time", "seconds": self.read_until}
        self.cursor.gap = None
        self.read_until = self.clock()
        return Gap(self.stream.source, self.stream.label, self.shard.id, gap.reason, begin, None, gap.found_at)

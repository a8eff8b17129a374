"""Reads one shard of a keyspace: opens its streams, makes pages, and decides what to do when a stream ends."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from relay.errors import RelayError, Unavailable
from relay.mysql_dialect.snapshot_times import LATENESS
from relay.records import Gap, StreamId
from relay.source import LastPage, Opening, Page, PageCounts, ReadResult, UnknownShard, Unreadable
from relay.vitess.call import Call
from relay.vitess.client import CURRENT, NO_TABLE, Vtgate, events_of
from relay.vitess.events import ShardEvents
from relay.vitess.failures import BrokenStream, Ending, ending, hint, participants, unknown_shard
from relay.vitess.http2 import CallEnded
from relay.vitess.position import VitessShard, VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.server_starts import ServerStarted, ServerStarts
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard_rows import PageMustEnd
from relay.vitess.tables import Tables
from relay.vitess.watch import PositionPurged, Watch

log = logging.getLogger(__name__)

_CUT_OFF = 20  # how many streams may end before the journal although they have all its participants
READ_AT_ONCE = 16 << 10  # about how many bytes of small answers are read together


class ShardStream:
    """Applies the events of ``call``. ``is_shared``: whether it has other shards' events too, which are skipped."""

    def __init__(self, call: Call, events: ShardEvents, watch: Watch, *, is_shared: bool) -> None:
        self.events = events
        self._call = call
        self._watch = watch
        self._is_shared = is_shared
        # Unread answers and their bytes, the unread rest of answers before them, and events that are not applied yet.
        self._answers: list[bytes] = []
        self._size = 0
        self._rest = b""
        self._left: Iterator[pb.VEvent] = iter(())

    def close(self) -> None:
        self._call.close()

    def read(self) -> None:
        """Apply events until there are enough for a page, or no more have come. Waits once, for a first change.

        Raises `CallEnded` once all events before the end are applied, and the errors of ``ShardEvents.apply``.
        """
        events, settings = self.events, self.events.settings
        deadline = time.monotonic() + settings.wait
        while self._apply_parsed():
            if self._answers or self._rest:
                self._read_next()
                continue
            # Changes do not wait; positions without changes are collected.
            wait = 0.0 if events.changes.size else max(0.0, deadline - time.monotonic())
            answers = self._call.take(wait)
            if not answers:
                return
            self._watch.received()
            self._answers = answers  # all earlier answers are read
            self._size = sum(map(len, answers))

    def _apply_parsed(self) -> bool:
        """Apply the events that are parsed. Return whether the page has room for more."""
        events, page_bytes = self.events, self.events.settings.page_bytes
        apply, changes = events.apply, events.changes
        try:
            for event in self._left:
                apply(event)
                if events.journal is not None or changes.size >= page_bytes:
                    return False
        except PageMustEnd:
            self._left = chain([event], self._left)
            return False
        return changes.size < page_bytes

    def _read_next(self) -> None:
        """Read whole transactions of the next answer, or of several small ones. If there are none, parse the events."""
        # Concatenated messages are one message with the events of all; each event may be its end.
        count = max(1, READ_AT_ONCE * len(self._answers) // max(1, self._size))
        answers = b"".join(self._answers[:count])
        del self._answers[:count]
        self._size -= len(answers)
        self.events.bytes_in += len(answers)
        joined = self._rest + answers
        read = 0 if self._is_shared else self.events.read_whole(joined)
        self._rest = joined[read:] if read else b""
        if not read:
            self._left = filter(self._is_own, events_of(joined))

    def _is_own(self, event: pb.VEvent) -> bool:
        shard = self.events.shard
        return not event.shard or (event.shard == shard.name and event.keyspace == shard.keyspace)


class VitessShardReader:
    """Reads one shard. Its starts are positions, see ``relay.vitess.position``."""

    streams = True

    def __init__(
        self,
        vtgate: Vtgate,
        stream: StreamId,
        opening: Opening,
        tables: Tables,
        settings: VStreamSettings,
        *,
        clock: Callable[[], float],
        heard: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.stream = stream
        self.shard = opening.shard
        self.tables = tables
        self.clock = clock
        self._heard = heard
        shard = VitessShard.of(stream, opening.shard, settings.keyspace)
        # The position at the end of the last page.
        self.position = VStreamPosition.from_json(opening.resume, shard.qualified)
        self.token = opening.checkpoint.token if opening.checkpoint is not None else None
        self.floor = opening.floor  # seconds: no later token is earlier than this
        names = sorted(tables.known) if settings.streamed is None else settings.streamed
        if not names and not settings.portion.without:
            raise RelayError(
                f"shard {shard.qualified}: the keyspace has no table to relay: create one with a primary key, "
                "or name the columns of a `key`"
            )
        # The other participants of the shard's journal, which vtgate wants in its stream, and those among them that the
        # topology does not have; and how many streams have ended before the journal, although they had them all.
        self._participants, self._unknown = set[str](), set[str]()
        self._cut_off = 0
        self.watch = Watch(vtgate, shard, next(iter(names), NO_TABLE), settings, clock=clock)
        self._starts = ServerStarts(self.watch.tablets, silence=settings.silence)
        self._stream: ShardStream | None = None
        self._purged: str | None = None  # why no stream can start at the position any more, until the head is known
        # A final error, which is raised after the page with the changes before it.
        self._fault: RelayError | None = None

    def close(self) -> None:
        self._close_stream()
        self.watch.close()

    # ------------------------------------------------------------------ pages

    def read(self) -> ReadResult:
        """Return the next page. Raises ``RelayError`` if no retry can help. Not called again after the last page."""
        begun = self.clock()
        if self._purged is not None:
            return self._skip_to_head(self._purged, begun)
        if self._fault is not None:
            raise self._fault
        if self.tables.moves.is_reached(self.position):
            self.close()
            return replace(self._empty_page(begun), end=LastPage(self.tables.moves.journal(self.position)))
        stream = self._stream = self._stream or self._open()
        try:
            stream.read()
        except CallEnded as ended:
            if not self._has_page(stream.events):
                return self._handle_end(ended, begun)
        except ServerStarted as started:
            self._close_stream()
            if (unknown := self._starts.passed(started.timestamp)) is not None:
                return Unreadable(self.shard, begun, unknown)
            if not self._has_page(stream.events):
                return self._empty_page(begun)
        except (BrokenStream, Unavailable) as error:
            self._close_stream()
            what = "reopening the stream" if isinstance(error, BrokenStream) else "a table cannot be looked up"
            return Unreadable(self.shard, begun, f"{what}: {error}")
        except RelayError as error:
            if not self._has_page(stream.events):
                raise
            self._fault = error
        if (ahead := self._ahead_of_move(stream.events, begun)) is not None:
            return ahead
        if (lost := stream.events.lost) is not None:
            lost_from = stream.events.resume_position()
            reason = stream.events.leave_out(lost)
            self.position = stream.events.resume_position()
            self.tables.followed.keep()
            return self._gap_page(reason, lost_from, begun)
        page = self._page(stream.events, begun)
        if page.has_content or page.finished:
            return page
        return self._check_silence(page, stream.events)

    def _ahead_of_move(self, events: ShardEvents, begun: float) -> ReadResult | None:
        """Return what replaces a page if tables may have been moved to another keyspace in it, and None otherwise."""
        try:
            if not self.tables.moves.look(events.position, self.tables.may_be_moved):
                return None
            result: ReadResult = self._empty_page(begun)
        except Unavailable as error:
            result = Unreadable(self.shard, begun, str(error))
        self._close_stream()  # the changes before the move are read again
        self._fault = None
        return result

    def _check_silence(self, page: Page, events: ShardEvents) -> ReadResult:
        """Return ``page``, which has no changes, or why the stream is silent if it should not be."""
        try:
            reason = self.watch.diagnose(self.position, events.is_active)
        except PositionPurged as purged:
            self._close_stream()
            return self._skip_to_head(str(purged), page.begun)
        if reason is None:
            return page
        self._close_stream()
        return Unreadable(self.shard, page.begun, reason)

    def _has_page(self, events: ShardEvents) -> bool:
        return bool(events.changes.size or events.journal or events.resume_position() != self.position)

    def _page(self, events: ShardEvents, begun: float) -> Page:
        size = events.changes.size
        changes, statements = events.changes.take(), events.changes.take_schema_changes()
        self.tables.followed.keep()
        records = events.rows.records + len(statements)
        tables = events.rows.end_page(inside_transaction=not events.is_between_transactions)
        position = events.resume_position()
        if position != self.position:
            self.watch.advanced(has_changes=bool(changes))
        self.position = position
        if events.changes.tally.token is not None:
            self.token = events.changes.tally.token
            self.floor = max(self.floor, self.token.timestamp)
        behind, events.changes.tally.behind = events.changes.tally.behind, 0
        progress, events.progress = events.progress, None
        if (reached := self._reached_head(position, events)) is not None:
            progress = max(progress or 0.0, reached - self.watch.settings.margin)
        page = replace(
            self._empty_page(begun),
            changes=changes,
            progress=progress,
            counts=PageCounts(records, size, behind),
            pause=0.0 if size >= self.watch.settings.page_bytes else None,
            end=LastPage(events.journal) if events.journal is not None else None,
            tables=tables if changes else (),
            schema_changes=statements,
        )
        if page.finished:
            self.close()
        return page

    def _reached_head(self, position: VStreamPosition, events: ShardEvents) -> float | None:
        """Call `Watch.check_head`. Once a head is reached, later tokens are not earlier than `lowest` says."""
        reached = self.watch.check_head(position, events.is_active) if events.is_between_transactions else None
        if reached is not None:
            self.floor = max(self.floor, int(reached - LATENESS))
            events.changes.floor = max(events.changes.floor, self.floor)  # I7: a snapshot relies on `lowest`
        return reached

    def _empty_page(self, begun: float) -> Page:
        return Page(self.shard, [], self.position.to_json(), self.token, None, begun, reached=self.watch.reached)

    # ------------------------------------------------------------------ the stream

    def _open(self) -> ShardStream:
        """Open a stream at the position, without waiting for its events."""
        settings, shard = self.watch.settings, self.watch.shard
        others = sorted(self._participants - self._unknown)
        self.tables.followed.undo()
        events = ShardEvents(
            shard,
            settings,
            self.tables,
            self.position,
            floor=self.floor,
            end=self._starts.end_after(self.position.executed, self.clock()),
            clock=self.clock,
            heard=self._heard,
        )
        log.info(
            "%s: streaming from %s%s",
            shard.qualified,
            self.position.executed,
            f" together with shards {', '.join(others)}" if others else "",
        )
        starts = [pb.ShardGtid(keyspace=shard.keyspace, shard=other, gtid=CURRENT) for other in others]
        # A stream of all tables includes tables that are created later. Events of unwanted tables are skipped.
        names = [settings.portion.pattern] if settings.streamed is None else settings.streamed or [NO_TABLE]
        tablets = self.watch.tablets
        call = tablets.stream([tablets.at(self.position.executed), *starts], names, settings.heartbeat)
        self.watch.opened()
        return ShardStream(call, events, self.watch, is_shared=bool(self._participants))

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _handle_end(self, ended: CallEnded, begun: float) -> ReadResult:
        """Decide how to continue after the end of a stream. Raises ``RelayError`` if no retry can help."""
        self._close_stream()
        kind, shard = ending(ended), self.watch.shard
        if kind is Ending.PARTICIPANTS:
            # Without the participants, the journal may not come.
            others = participants(ended, shard.keyspace) - {shard.name} - self._unknown
            self._cut_off += others <= self._participants
            self._participants |= others
            if self._cut_off <= _CUT_OFF:
                return self._empty_page(begun)
            return Unreadable(self.shard, begun, f"vtgate does not send the journal of a reshard: {ended}")
        if kind is Ending.UNKNOWN_SHARD:
            if (missing := unknown_shard(ended)) != shard.name:
                self._unknown.add(missing)
                return self._empty_page(begun)
            if not (moved := self.watch.settings.portion.only):
                return UnknownShard(self.shard, begun)
            why = f"MoveTables moved {', '.join(moved)} to keyspace {shard.keyspace}: let vtgate serve it"
            return Unreadable(self.shard, begun, f"{why}: {ended}")
        if kind is Ending.DENIED:
            raise Unavailable(
                f"vtgate {self.watch.tablets.vtgate.address} denies access: {ended}: check `user` and `password`"
            )
        if kind is Ending.FINAL:
            raise RelayError(
                f"shard {shard.qualified} cannot be read after {self.position.executed}: {ended}{hint(ended)}"
            )
        if kind is Ending.PURGED and self.watch.is_purged(self.position, ended.text):
            return self._skip_to_head(ended.text, begun)
        if kind is Ending.MISMATCH:
            behind = self.watch.diagnose_mismatch(self.position, self.watch.settings.wait)
            return Unreadable(self.shard, begun, behind or str(ended))
        return Unreadable(self.shard, begun, str(ended))

    # ------------------------------------------------------------------ gaps

    def _skip_to_head(self, purged: str, begun: float) -> ReadResult:
        """Return a gap up to the head, once that is known: no older position is sure (I9). ``purged``: the reason."""
        self._purged = purged
        if (head := self.watch.head(self.watch.settings.wait)) is None:
            why = f"{purged}; cannot find out where to continue: {self.watch.head_failed}"
            return Unreadable(self.shard, begun, why)
        try:
            has_ended = not self.watch.tablets.is_serving()
        except RelayError as error:
            return Unreadable(self.shard, begun, f"{purged}; cannot find out whether the shard was resharded: {error}")
        if has_ended:  # I10: nothing comes any more, except what a reversible reshard replicates back
            raise RelayError(
                f"shard {self.watch.shard.qualified}: {purged}. The shard has since been resharded, and the journal "
                "that names its successors has been purged, too, or would be skipped. Run `relay reset CONFIG "
                f"{self.stream.source} --to ...`: it begins with the existing shards, and records the gap"
            )
        self.tables.moves.is_due = True  # I3: the transaction of a journal may have been purged
        lost_from, reached = self.position, replace(self.position, executed=head.position, transaction="", done={})
        try:
            self.tables.moves.look(reached, self.tables.may_be_moved)
        except Unavailable as error:
            return Unreadable(self.shard, begun, f"{purged}; {error}")
        self.position = reached
        log.warning("%s: %s", self.watch.shard.qualified, purged)
        self._purged = None
        self.tables.followed.forget()  # I9: the gap may lack statements
        return self._gap_page("purged", lost_from, begun)

    def _gap_page(self, reason: str, lost_from: VStreamPosition, begun: float) -> Page:
        begin, end, now = lost_from.to_json(), self.position.to_json(), self.clock()
        gap = Gap(self.stream.source, self.stream.label, self.shard.id, reason, begin, end, now)
        return replace(self._empty_page(begun), gap=gap)

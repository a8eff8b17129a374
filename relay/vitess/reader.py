"""Reading one shard of a keyspace: its stream, what ends it, whether it is silent, and how far it has got."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from hashlib import blake2b

import orjson

from relay.change import Snapshot
from relay.errors import RelayError, Unavailable
from relay.lineage import Gap, StreamId
from relay.source import Opening, Page, ReadResult, UnknownShard, Unreadable
from relay.vitess.call import Call
from relay.vitess.client import CURRENT, EVERY, Vtgate
from relay.vitess.events import Broken, ShardEvents
from relay.vitess.failures import Ending, ending, hint, participants, unknown_shard
from relay.vitess.head import rule
from relay.vitess.http2 import CallEnded
from relay.vitess.journals import early
from relay.vitess.position import VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.settings import VStreamSettings
from relay.vitess.tables import INTERNAL, Tables
from relay.vitess.watch import PositionPurged, Watch

log = logging.getLogger(__name__)

_AT_ONCE = 16 << 10  # bytes of answers that are parsed together
_RACES = 20  # how often a journal is waited for that vtgate may or may not send before it ends the stream


class VitessShardReader:
    """The reader of one shard. Positions: see ``position``; starts: ``{"gtid": ...}`` and ``{"type": "copy"}``."""

    streams = True

    def __init__(
        self,
        vtgate: Vtgate,
        stream: StreamId,
        opening: Opening,
        tables: Tables,
        settings: VStreamSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.vtgate = vtgate
        self.stream = stream
        self.shard = shard = opening.shard
        self.tables = tables
        self.settings = settings
        self.clock = clock
        self.qualified = stream.qualified(shard.id)
        space, _, self.name = shard.name.rpartition("/")
        self.keyspace = space or settings.keyspace
        # What the last page that was returned led to.
        self.place = VStreamPosition.of(opening.resume, self.qualified)
        self.floor = opening.floor
        self.token = opening.checkpoint.token if opening.checkpoint is not None else None
        named = orjson.dumps([stream.source, stream.label, shard.id, dict(opening.start)], option=orjson.OPT_SORT_KEYS)
        self._snapshot = blake2b(named, digest_size=8).hexdigest()
        # Tables that were copied, at least in part, and are not there any more.
        self._gone: set[str] = set()
        self._call: Call | None = None
        self._events = self._interpreter()
        # Answers that were taken and not looked at, and the events of the one that is.
        self._answers: deque[bytes] = deque()
        self._left: Iterator[pb.VEvent] = iter(())
        self._cut: pb.VEvent | None = None
        self._fresh = True
        # The table that the stream copies.
        self._copying: str | None = None
        # What is asked of vtgate, and copied in this order.
        self._names = list(tables.names if settings.tables is None else settings.tables)
        if not self._names:
            raise RelayError(f"shard {self.qualified}: there is no table to be read")
        if self.place.copied is not None and settings.tables is None:
            self._let_go(self._names)
        self.watch = Watch(
            vtgate, stream.source, self.qualified, self.keyspace, self.name, self._names[0], settings, clock=clock
        )
        # Shards that a journal wants in the stream, those of them that cannot be, and journals that were missed.
        self._others: set[str] = set()
        self._not_there: set[str] = set()
        self._races = 0
        # Why the position cannot be read from any more, until the head is known.
        self._lost: str | None = None
        self._fault: RelayError | None = None
        self._end: Page | None = None

    def __repr__(self) -> str:
        return f"<VitessShardReader[{self.qualified} after {self.place.executed or 'nothing'}]>"

    def close(self) -> None:
        self._hang_up()
        self.watch.close()

    # ------------------------------------------------------------------ pages

    def read(self) -> ReadResult:
        """Return the next page. Raises ``RelayError`` on what is final."""
        begun = self.clock()
        if self._end is not None:
            return replace(self._end, changes=(), begun=begun, records=0, size=0, gap=None, tables=())
        if self._lost is not None:
            return self._lose(begun)
        if self._fault is not None:
            raise self._fault
        if self._call is None and (wait := self._too_early(begun)) > 0:
            return Unreadable(self.shard, begun, f"rows copied now could not replace what came last: in {wait:.0f} s")
        try:
            if self._call is None:
                self._open()
            self._read()
        except CallEnded as ended:
            if not self._has_something():
                return self._ended(ended, begun)
        except Broken as error:
            self._hang_up()
            return Unreadable(self.shard, begun, f"its stream made no sense, and is read again: {error}")
        except Unavailable as error:
            self._hang_up()
            return Unreadable(self.shard, begun, f"a new table cannot be looked up: {error}")
        except RelayError as error:
            if self.place.copied is not None or not self._has_something():
                raise
            self._fault = error  # after what came before it
        if self._events.copy_completed:
            return self._copied(begun)
        page = self._page(begun)
        return page if page.changes or page.finished else self._watched(page)

    def _watched(self, page: Page) -> ReadResult:
        """Return ``page``, which has nothing, or the reason why there is nothing although there should be."""
        try:
            why = self.watch.verdict(self.place, self._events.moved, page.begun)
        except PositionPurged as loss:
            self._hang_up()
            self._lost = str(loss)
            return self._lose(page.begun)
        if why is None:
            return page
        self._hang_up()
        return Unreadable(self.shard, page.begun, why)

    def _read(self) -> None:
        """Take events in until there is enough for a page, or no more has come."""
        assert self._call is not None
        events = self._events
        deadline = time.monotonic() + self.settings.wait
        while True:
            if not self._take_in():
                return
            if self._answers:
                self._next_answer()
                continue
            # What has come is not kept waiting; positions alone are gathered.
            wait = 0.0 if events.changes.size else max(0.0, deadline - time.monotonic())
            answers = self._call.take(wait)
            if not answers:
                return
            self.watch.heard()
            self._answers.extend(answers)

    def _next_answer(self) -> None:
        """Go on with the events of the next answer, or of several small ones."""
        answers, waiting = [self._answers.popleft()], self._answers
        size = len(answers[0])
        while waiting and size + len(waiting[0]) <= _AT_ONCE:
            answers.append(waiting.popleft())
            size += len(answers[-1])
        self._events.bytes_in += size
        # Messages one after the other are one with the events of all.
        events = pb.VStreamResponse.FromString(b"".join(answers)).events
        if self._others:
            self._left = iter([event for event in events if self._is_mine(event)])
        else:
            self._left = iter(events)

    def _is_mine(self, event: pb.VEvent) -> bool:
        return not event.shard or (event.shard == self.name and event.keyspace == self.keyspace)

    def _take_in(self) -> bool:
        """Take in the events of one answer. Return whether the page may have more."""
        events = self._events
        take_in, changes = events.take_in, events.changes
        if self._cut is not None:
            cut, self._cut = self._cut, None
            take_in(cut)
        for event in self._left:
            if not take_in(event):
                self._cut = event
                return False
            if events.journal is not None or events.copy_completed or changes.size >= self.settings.page_bytes:
                return False
        return True

    def _has_something(self) -> bool:
        events = self._events
        return bool(events.changes.size or events.journal or events.place_now() != self.place)

    def _page(self, begun: float) -> Page:
        events = self._events
        size = events.changes.size
        changes = events.changes.take()
        records = events.records
        tables = events.page_tables()
        place = events.place_now()
        if place != self.place:
            self.watch.moved()
        self.place = place
        if events.changes.token is not None:
            self.token = events.changes.token
            self.floor = max(self.floor, self.token.timestamp)
        behind, events.changes.behind = events.changes.behind, 0
        progress, events.progress = events.progress, None
        if self.watch.look(place, events.moved) and self.watch.reached is not None:
            progress = max(progress or 0.0, self.watch.reached - self.settings.margin)
        fresh, self._fresh = self._fresh, False
        page = Page(
            shard=self.shard,
            changes=changes,
            position=place.to_json(),
            token=self.token,
            progress=progress,
            begun=begun,
            records=records,
            size=size,
            full=size >= self.settings.page_bytes,
            finished=events.journal is not None,
            fresh=fresh,
            behind=behind,
            tables=tables if changes else (),
            reached=self.watch.reached,
            journal=events.journal,
        )
        if page.finished:
            self._hang_up()
            self.watch.close()
            self._end = page
        return page

    def _nothing(self, begun: float) -> Page:
        return Page(self.shard, [], self.place.to_json(), self.token, None, begun, reached=self.watch.reached)

    # ------------------------------------------------------------------ the stream

    def _interpreter(self) -> ShardEvents:
        now = self.clock()
        copies = self.place.copied is not None
        return ShardEvents(
            self.stream.source,
            self.qualified,
            self.keyspace,
            self.name,
            self.tables,
            self.place,
            floor=self.floor,
            snapshot=Snapshot(self._snapshot, int(now) - self.settings.margin) if copies else None,
            copy_begun=now,
            largest_unnamed=self.settings.largest_unnamed,
            page_bytes=self.settings.page_bytes,
            wanted=self._wants,
            gone=self._gone,
        )

    def _wants(self, table: str) -> bool:
        wanted = self.settings.tables
        return table in wanted if wanted is not None else not table.startswith(INTERNAL)

    def _too_early(self, now: float) -> float:
        """Return in how many seconds a copy that is not begun can begin: a READ replaces what is older than it."""
        place = self.place
        if place.copied is None or place.copied or place.executed or not self.floor:
            return 0.0
        return self.floor + 1 + self.settings.margin - now

    def _open(self) -> None:
        """Open the stream where the last page ended. Does not wait."""
        place, settings = self.place, self.settings
        tables, copy = list(self._names), list[str]()
        if (before := place.copied) is not None:
            # One table at a time. Of a table that is still to be copied vtgate sends no changes, and it forgets which
            # tables were copied whenever it goes on at another tablet (uvstreamer.go, buildTablePlan): so with
            # several in one stream, changes of one that was copied before could be missed.
            begun = [pk.table_name for pk in place.pks]
            copy = [table for table in tables if table not in before]
            # The one that was begun goes on, whatever comes before it by now: its place holds for no other.
            copy = sorted(copy, key=lambda table: table not in begun)[:1]
            self._copying = copy[0] if copy else None
            self.place = place = replace(place, pks=tuple(pk for pk in place.pks if pk.table_name in copy))
            if not copy:
                self.place = place = replace(place, copied=None, pks=())
            else:
                tables = [*(table for table in before if self._wants(table)), *copy]
        self._events = self._interpreter()
        own = pb.ShardGtid(keyspace=self.keyspace, shard=self.name, gtid=place.executed, table_p_ks=place.pks)
        others = sorted(self._others - self._not_there)
        log.info("%s: streaming %s%s", self.qualified, place.executed or copy, f" with {others}" if others else "")
        self._call = self.vtgate.vstream(
            [own, *(pb.ShardGtid(keyspace=self.keyspace, shard=other, gtid=CURRENT) for other in others)],
            # Those that appear later as well: of one that is not wanted, the events are passed over.
            {EVERY: ""} if settings.tables is None and not copy else dict(rule(table, self._gone) for table in tables),
            tablet_type=settings.tablet_type,
            cells=settings.cells,
            copy=copy,
            best_effort=bool(copy and self._gone),
            heartbeat=settings.heartbeat,
        )
        self._fresh = True
        self.watch.opened()

    def _let_go(self, there: Collection[str]) -> bool:
        """Leave out of the copy what is not ``there`` any more. Return whether there is such a table."""
        begun = [pk.table_name for pk in self.place.pks]
        names = dict.fromkeys((*self._names, *(self.place.copied or ()), *begun))
        gone = [name for name in names if self._wants(name) and name not in there and name not in self._gone]
        for table in gone:
            if table in begun:
                self.place = replace(self.place, copied=(*(self.place.copied or ()), table), pks=())
            if table in (self.place.copied or ()):
                self._gone.add(table)  # its DROP is still to come, and is what tells of its rows
            elif self.settings.tables is None and len(self._names) > 1:
                self._names.remove(table)
            else:
                return False  # one that the config names has to be made, or left out there
            log.warning("%s: %s is gone, and is copied no further", self.qualified, table)
        return bool(gone)

    def _hang_up(self) -> None:
        if self._call is not None:
            self._call.close()
            self._call = None
        self._answers.clear()
        self._left = iter(())
        self._cut = None

    def _copied(self, begun: float) -> ReadResult:
        """A table is copied: the page that ends it. What follows is another stream."""
        if self.settings.tables is None:
            # What was made meanwhile is in no stream yet.
            try:
                self._names += [table for table in self.tables.found() if table not in self._names]
            except Unavailable as error:
                self._hang_up()
                return Unreadable(self.shard, begun, f"the tables that are still to be copied are not known: {error}")
        page = self._page(begun)
        self._hang_up()
        before = self.place.copied or ()
        assert self._copying is not None
        done = (*before, self._copying)
        rest = [table for table in self._names if table not in done]
        self.place = replace(self.place, copied=done if rest else None, pks=())
        log.info("%s: copied %s", self.qualified, done[-1])
        return replace(page, position=self.place.to_json())

    def _ended(self, ended: CallEnded, begun: float) -> ReadResult:
        """The stream is over, and everything that it gave is in pages. Raises ``RelayError`` on what is final."""
        self._hang_up()
        kind = ending(ended)
        if kind is Ending.PARTICIPANTS:
            return self._widen(ended, begun)
        if kind is Ending.UNKNOWN_SHARD:
            missing = unknown_shard(ended)
            if missing == self.name:
                return UnknownShard(self.shard, begun)
            self._not_there.add(missing)
            return self._nothing(begun)
        if kind in (Ending.NO_TABLE, Ending.FINAL) and self.place.copied is not None:
            try:
                if self._let_go(self.tables.found()):
                    return self._nothing(begun)
            except Unavailable as error:
                return Unreadable(self.shard, begun, f"{ended}; which tables there are is not known: {error}")
        if kind is Ending.DENIED:
            raise Unavailable(f"vtgate {self.vtgate.address} refuses us: {ended}: check `user` and `password`")
        if kind is Ending.FINAL:
            raise RelayError(
                f"shard {self.qualified} cannot be read on after {self.place.executed}: {ended}{hint(ended)}"
            )
        if kind is Ending.PURGED and self.watch.is_purged(self.place, ended.text):
            self._lost = ended.text
            return self._lose(begun)
        if kind is Ending.MISMATCH:
            behind = self.watch.mismatched(self.place, self.settings.wait)
            return Unreadable(self.shard, begun, behind or str(ended))
        return Unreadable(self.shard, begun, str(ended))

    def _widen(self, ended: CallEnded, begun: float) -> ReadResult:
        """Open the stream again with the other shards that a reshard has joined; their events are dropped.

        vtgate tells of a journal only if all of its participants are in the stream, or by luck.
        """
        if self.place.copied is not None:
            raise early(self.qualified, "")
        others = participants(ended, self.keyspace) - {self.name} - self._not_there
        self._races += others <= self._others
        self._others |= others
        if self._races > _RACES:
            return Unreadable(self.shard, begun, f"its journal does not come: {ended}")
        return self._nothing(begun)

    # ------------------------------------------------------------------ losses

    def _lose(self, begun: float) -> ReadResult:
        """I9: the page of a loss, once it is known where reading goes on: at the head, there is no older place."""
        head = self.watch.head(self.settings.wait)
        if head is None:
            return Unreadable(
                self.shard, begun, f"{self._lost}; nor is it known where it stands: {self.watch.head_failed}"
            )
        lost_from = self.place.to_json()
        self.place = replace(self.place, executed=head.position, transaction="", done={})
        gap = Gap(
            self.stream.source,
            self.stream.label,
            self.shard.id,
            "purged",
            lost_from,
            self.place.to_json(),
            self.clock(),
        )
        log.warning("%s: %s", self.qualified, self._lost)
        self._lost = None
        return replace(self._nothing(begun), gap=gap, fresh=True)

"""Reads one shard of a keyspace: opens its streams, makes pages, and decides what to do when a stream ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b

import orjson

from relay.change import Snapshot
from relay.errors import RelayError, Unavailable
from relay.lineage import Gap, StreamId
from relay.source import Opening, Page, ReadResult, UnknownShard, Unreadable
from relay.vitess.client import CURRENT, Vtgate
from relay.vitess.copy_plan import CopyPlan
from relay.vitess.events import ShardEvents
from relay.vitess.failures import BrokenStream, Ending, ending, hint, unknown_shard
from relay.vitess.http2 import CallEnded
from relay.vitess.journals import JournalParticipants, resharded_during_copy
from relay.vitess.position import VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard import VitessShard
from relay.vitess.stream import ShardStream
from relay.vitess.tables import Tables
from relay.vitess.watch import PositionPurged, Watch

log = logging.getLogger(__name__)


class VitessShardReader:
    """The reader of one shard. Starts are positions, see ``position``, and ``{"type": "copy"}``."""

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
        self.shard = opening.shard
        self.tables = tables
        self.settings = settings
        self.clock = clock
        self.names = VitessShard.of(stream, opening.shard, settings.keyspace)
        # Of the last page.
        self.position = VStreamPosition.from_json(opening.resume, self.names.qualified)
        self.token = opening.checkpoint.token if opening.checkpoint is not None else None
        # Seconds: no token is earlier.
        self.floor = opening.floor
        identity = orjson.dumps(
            [stream.source, stream.label, opening.shard.id, dict(opening.start)], option=orjson.OPT_SORT_KEYS
        )
        self._snapshot_id = blake2b(identity, digest_size=8).hexdigest()
        self._plan = CopyPlan(self.names, settings, tables)
        if self.position.copied is not None and settings.tables is None:
            self.position, _ = self._plan.drop_missing(tables.names, self.position)
        self._participants = JournalParticipants(self.names)
        self.watch = Watch(vtgate, self.names, self._plan.first, settings, clock=clock)
        self._stream: ShardStream | None = None
        # The table that the stream copies.
        self._copying: str | None = None
        # Why the position can no longer be read from, until the head is known.
        self._purged: str | None = None
        # A final error, which is raised after the page of what came before it.
        self._fault: RelayError | None = None
        # The last page of the shard.
        self._end: Page | None = None

    def __repr__(self) -> str:
        return f"<VitessShardReader[{self.names.qualified} after {self.position.executed or 'nothing'}]>"

    def close(self) -> None:
        self._close_stream()
        self.watch.close()

    # ------------------------------------------------------------------ pages

    def read(self) -> ReadResult:
        """Return the next page. Raises ``RelayError`` for what no retry can change."""
        begun = self.clock()
        if self._end is not None:
            return replace(
                self._end, changes=(), schema_changes=(), begun=begun, records=0, size=0, gap=None, tables=()
            )
        if self._purged is not None:
            return self._skip_to_head(self._purged, begun)
        if self._fault is not None:
            raise self._fault
        if self._stream is None and (delay := self._plan.delay(self.position, self.floor, begun)) > 0:
            return Unreadable(
                self.shard,
                begun,
                f"copied rows would be no newer than what is published: the copy starts in {delay:.0f} s",
            )
        stream = self._stream = self._stream or self._open()
        try:
            stream.read()
        except CallEnded as ended:
            if not self._has_page(stream.events):
                return self._handle_end(ended, begun)
        except BrokenStream as error:
            self._close_stream()
            return Unreadable(self.shard, begun, f"reopening the stream, whose events do not fit together: {error}")
        except Unavailable as error:
            self._close_stream()
            return Unreadable(self.shard, begun, f"a new table cannot be looked up: {error}")
        except RelayError as error:
            if self.position.copied is not None or not self._has_page(stream.events):
                raise
            self._fault = error
        if stream.events.is_copied:
            return self._finish_table(stream.events, begun)
        page = self._page(stream.events, begun)
        if page.has_content or page.finished:
            return page
        return self._check_silence(page, stream.events)

    def _check_silence(self, page: Page, events: ShardEvents) -> ReadResult:
        """Return ``page``, which has no changes, or why the stream is silent although it should not be."""
        try:
            reason = self.watch.diagnose(self.position, events.is_active)
        except PositionPurged as purged:
            self._close_stream()
            self._purged = str(purged)
            return self._skip_to_head(self._purged, page.begun)
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
        tables = events.end_page()
        position = events.resume_position()
        if position != self.position:
            self.watch.advanced()
        self.position = position
        if events.changes.token is not None:
            self.token = events.changes.token
            self.floor = max(self.floor, self.token.timestamp)
        behind, events.changes.behind = events.changes.behind, 0
        progress, events.progress = events.progress, None
        if self.watch.check_head(position, events.is_active) and self.watch.reached is not None:
            progress = max(progress or 0.0, self.watch.reached - self.settings.margin)
        page = Page(
            shard=self.shard,
            changes=changes,
            position=position.to_json(),
            token=self.token,
            progress=progress,
            begun=begun,
            records=records,
            size=size,
            full=size >= self.settings.page_bytes,
            finished=events.journal is not None,
            behind=behind,
            tables=tables if changes else (),
            reached=self.watch.reached,
            journal=events.journal,
            schema_changes=statements,
        )
        if page.finished:
            self.close()
            self._end = page
        return page

    def _empty_page(self, begun: float) -> Page:
        return Page(self.shard, [], self.position.to_json(), self.token, None, begun, reached=self.watch.reached)

    # ------------------------------------------------------------------ the stream

    def _open(self) -> ShardStream:
        """Open a stream at the position. Does not wait for vtgate."""
        settings, shard, others = self.settings, self.names, self._participants.streamed
        planned = self._plan.next(self.position)
        self.position, self._copying = planned.position, planned.copied
        copy = [planned.copied] if planned.copied is not None else []
        now = self.clock()
        self.tables.followed.undo()
        events = ShardEvents(
            shard,
            settings,
            self.tables,
            self.position,
            floor=self.floor,
            snapshot=Snapshot(self._snapshot_id, int(now) - settings.margin) if copy else None,
            opened_at=now,
            dropped=self._plan.dropped,
        )
        log.info(
            "%s: streaming from %s%s",
            shard.qualified,
            self.position.executed or f"a copy of {self._copying}",
            f" together with shards {', '.join(others)}" if others else "",
        )
        at = pb.ShardGtid(
            keyspace=shard.keyspace, shard=shard.name, gtid=self.position.executed, table_p_ks=self.position.pks
        )
        call = self.vtgate.vstream(
            [at, *(pb.ShardGtid(keyspace=shard.keyspace, shard=other, gtid=CURRENT) for other in others)],
            planned.rules,
            tablet_type=settings.tablet_type,
            cells=settings.cells,
            copy=copy,
            best_effort=bool(copy and self._plan.dropped),
            heartbeat=settings.heartbeat,
        )
        self.watch.opened()
        return ShardStream(call, events, self.watch, is_shared=self._participants.is_needed)

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _finish_table(self, events: ShardEvents, begun: float) -> ReadResult:
        """Return the page that ends the copy of a table. The next table, or the changes, are in another stream."""
        try:
            self._plan.add_created()
        except Unavailable as error:
            self._close_stream()
            return Unreadable(self.shard, begun, f"cannot list the tables that remain to be copied: {error}")
        assert self._copying is not None
        if events.copy is not None:
            # I6: in the page whose position is past the copy, so that it is published once.
            events.rows.end_copy(self._copying, events.copy.snapshot, begun)
        page = self._page(events, begun)
        self._close_stream()
        self.position = self._plan.complete(self._copying, self.position)
        return replace(page, position=self.position.to_json())

    def _handle_end(self, ended: CallEnded, begun: float) -> ReadResult:
        """Decide how to continue after the end of a stream. Raises ``RelayError`` for what no retry can change."""
        self._close_stream()
        kind = ending(ended)
        if kind is Ending.PARTICIPANTS:
            return self._add_participants(ended, begun)
        if kind is Ending.UNKNOWN_SHARD:
            missing = unknown_shard(ended)
            if missing == self.names.name:
                return UnknownShard(self.shard, begun)
            self._participants.remove(missing)
            return self._empty_page(begun)
        if kind in (Ending.NO_TABLE, Ending.FINAL) and self.position.copied is not None:
            try:
                self.position, can_continue = self._plan.drop_missing(self.tables.find(), self.position)
            except Unavailable as error:
                return Unreadable(self.shard, begun, f"{ended}; the tables of the keyspace cannot be listed: {error}")
            if can_continue:
                return self._empty_page(begun)
        if kind is Ending.DENIED:
            raise Unavailable(f"vtgate {self.vtgate.address} denies access: {ended}: check `user` and `password`")
        if kind is Ending.FINAL:
            raise RelayError(
                f"shard {self.names.qualified} cannot be read after {self.position.executed}: {ended}{hint(ended)}"
            )
        if kind is Ending.PURGED and self.watch.is_purged(self.position, ended.text):
            self._purged = ended.text
            return self._skip_to_head(ended.text, begun)
        if kind is Ending.MISMATCH:
            behind = self.watch.diagnose_mismatch(self.position, self.settings.wait)
            return Unreadable(self.shard, begun, behind or str(ended))
        return Unreadable(self.shard, begun, str(ended))

    def _add_participants(self, ended: CallEnded, begun: float) -> ReadResult:
        """Reopen the stream with the other participants of a journal, without which it may not come."""
        if self.position.copied is not None:
            raise resharded_during_copy(self.names)
        if not self._participants.add_missing(ended):
            return Unreadable(self.shard, begun, f"the journal of a reshard does not come: {ended}")
        return self._empty_page(begun)

    # ------------------------------------------------------------------ gaps

    def _skip_to_head(self, purged: str, begun: float) -> ReadResult:
        """Return the page of a gap, once the head is known: reading continues there, the oldest certain position (I9).

        ``purged``: why what follows the position is no longer available.
        """
        head = self.watch.head(self.settings.wait)
        if head is None:
            return Unreadable(
                self.shard, begun, f"{purged}; where reading could continue is not known: {self.watch.head_failed}"
            )
        lost_from = self.position.to_json()
        self.position = replace(self.position, executed=head.position, transaction="", done={})
        gap = Gap(
            self.stream.source,
            self.stream.label,
            self.shard.id,
            "purged",
            lost_from,
            self.position.to_json(),
            self.clock(),
        )
        log.warning("%s: %s", self.names.qualified, purged)
        self._purged = None
        return replace(self._empty_page(begun), gap=gap)

"""One source while it is being read: its plan, its shards, and what is written down about them.

Decides which shards to open and what their checkpoints say; the worker decides when, and in which transaction.
Only what is committed and visible in the checkpoints topic counts here (I4).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from relay.engine import gap_decisions
from relay.engine.caught_up import CaughtUp
from relay.engine.discovery import JournaledShards, ListedShards
from relay.engine.journals import record_of
from relay.engine.planning import Planning
from relay.engine.progress import Progress, low_watermark, read_until
from relay.engine.pruning import replaced
from relay.engine.reader_pool import OpenShard, ReaderPool
from relay.engine.snapshots import Snapshots, is_unread
from relay.errors import Unavailable
from relay.kafka.checkpoints import CheckpointView, partition_of
from relay.lineage import Checkpoint, Gap, Lineage, Plan, Shard, ShardState, StreamId
from relay.source import Page, Source
from relay.table import TableSchema

log = logging.getLogger(__name__)

IDLE_CHECKPOINT = 10.0
"""Seconds after which an idle shard's progress is written down."""

_TELL_EVERY = 60.0
_PATIENCE = 5.0
_KNOWN_FOR = 0.1  # seconds, while other workers commit all the time


class SourceState:
    """The shards of one source. Used by the worker's thread."""

    def __init__(
        self, source: Source, view: CheckpointView, pump: ReaderPool, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.source = source
        self.view = view
        self.pump = pump
        self.clock = clock
        self.planning = Planning(source, view, clock=clock)
        self.started = clock()
        self._turn_to(source.connect())

    def _turn_to(self, stream: StreamId) -> None:
        """Begin to read ``stream``, and know nothing of any other."""
        self.stream = stream
        self.plan_key = stream.plan_key
        self.lineage = Lineage(stream)
        self.listings: ListedShards | JournaledShards = (
            JournaledShards(stream, self.lineage, lambda: self.plan, clock=self.clock)
            if self.source.has_journals
            else ListedShards(self.source, stream, self.lineage, clock=self.clock)
        )
        self.snapshots = Snapshots(self.source, stream, self.view, self.pump, self.resume_timestamp, clock=self.clock)
        # Until when not to ask again what failed.
        self._again_at = 0.0
        self._told = 0.0
        # Open shards, and finished ones whose last checkpoint is not visible yet.
        self.open: dict[str, OpenShard] = {}
        # The newest checkpoint per open shard, published or about to be.
        self._latest: dict[str, Checkpoint] = {}
        self.caught_up = CaughtUp(self.started, has_heads=self.source.has_journals)
        # The endings of the view that were seen.
        self._endings = 0
        self._plan_checked = False
        # Tables that the plan may not have.
        self._met: dict[str, TableSchema] = {}
        # Losses that were told of since the start, which the checkpoints may not show yet.
        self._gaps_told: set[str] = set()
        self._known_at = -1
        self._known_again_at = 0.0
        self._known_is = Progress()
        # The state that everything which can be opened was opened in.
        self._opened_at: tuple[int, int, frozenset[int]] | None = None

    def __repr__(self) -> str:
        return f"<SourceState[{self.source.name}: {len(self.open)} open]>"

    @property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        """The committed checkpoints of this stream, all workers' shards."""
        return self.view.checkpoints.get(self.stream, {})

    @property
    def plan(self) -> Plan | None:
        return self.view.plans.get(self.stream)

    def close(self) -> None:
        self.listings.close()
        self.source.close()

    # ------------------------------------------------------------------ the plan

    def go_back(self) -> None:
        """Go on with the stream that was read when the relay stopped, though the source has a newer one by now."""
        before = self.planning.before(self.stream)
        if self.plan is None and before is not None:
            log.info("source %s: going on with its stream %s first", self.source.name, before.label)
            self.listings.close()
            self._turn_to(self.source.connect(before.label))

    def go_on(self) -> bool:
        """Turn to the stream that has replaced this one, once this one is drained. Return whether that was so."""
        if self.listings.successor is None or self.plan is None or self.waits:
            return False
        ends = [
            checkpoint.updated_at if checkpoint is not None and checkpoint.state.ended else math.inf
            for checkpoint in map(self.checkpoints.get, {*self.lineage.listed, *self.checkpoints})
        ]
        # A listing from after the last end, and not the only one: it may lack a child.
        if self.lineage.listings < 2 or self.listings.listed_at < max(ends, default=0.0):
            return False
        if not self.snapshots.is_settled(self._repairs(), is_unread(self.view, self.source.name)):
            return False  # what it repairs, nobody else would
        try:
            following = self.source.connect(self.listings.successor)
        except Unavailable as error:
            self.wait(error)
            return False
        self.forget()
        self.listings.close()
        log.info("source %s: %s is drained, %s follows", self.source.name, self.stream.label, following.label)
        self._turn_to(following)
        return True

    @property
    def replaces(self) -> bool:
        """Whether the source had another stream before this one."""
        return self.planning.before(self.stream) is not None

    @property
    def waits(self) -> bool:
        return self.clock() < self._again_at

    def wait(self, error: Unavailable) -> None:
        """Try what failed again later: the other sources go on."""
        log.warning("source %s: its new stream cannot be read yet: %s", self.source.name, error)
        self._again_at = self.clock() + _PATIENCE

    def make_plan(self) -> tuple[Plan, Gap | None]:
        """Return the plan of this stream, and the gap if it replaces another. For the owner of the source's own key."""
        before = self.planning.before(self.stream)
        return self.planning.epoch(self.stream, before) if before is not None else self.planning.first(self.stream)

    def is_stranded(self) -> bool:
        """Whether, once a minute, nobody has planned this source although there are workers (I10)."""
        if self.clock() - self._told < _TELL_EVERY:
            return False
        first, self._told = not self._told, self.clock()
        return not first

    def check_plan(self) -> None:
        """Refuse to go on under a plan that the config or the table no longer agrees with. ``ConfigError``."""
        if self.plan is not None and not self._plan_checked:
            self._plan_checked = True
            self.planning.check(self.plan)
            if self.source.has_journals:
                self._met |= {table.table: table for table in self.source.tables()}

    # ------------------------------------------------------------------ shards

    def added_tables(self) -> Plan | None:
        """Return the plan with the tables that appeared since, None if it has them all."""
        if self.plan is None or not self._met:
            return None
        # Until the plan has them: what was to add them may be aborted.
        self._met = {name: table for name, table in self._met.items() if name not in self.plan.keys}
        return self.planning.added(self.plan, self._met.values())

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """See ``Planning.check_tables``."""
        if self.plan is not None:
            self.planning.check_tables(self.plan, tables)
            self._met |= {table.table: table for table in tables if table.table not in self.plan.keys}

    def discover(self) -> bool:
        """Keep the listing fresh, without waiting for it. Return whether a new one has come."""
        return self.listings.poll(self.checkpoints)

    def list_soon(self) -> None:
        """List again: what a listing that is under way brings is too old."""
        self.listings.soon()

    def planned(self, owned: set[int]) -> dict[bytes, Checkpoint]:
        """Checkpoints for listed shards that have none yet, of the partitions ``owned``."""
        plan = self.plan
        if plan is None:
            return {}
        passed = plan.passed
        return {
            key: self._checkpoint(shard, ShardState.FINISHED if shard.id in passed else ShardState.PLANNED)
            for shard in self.lineage.listed.values()
            if shard.id not in self.checkpoints
            and shard.id not in self._latest
            and partition_of(key := self.stream.checkpoint_key(shard.id)) in owned
        }

    def open_ready(self, owned: set[int]) -> None:
        """Open every shard of ``owned`` that may be read: only now, after the fence, and parents first (I2)."""
        plan = self.plan
        state = (self.view.endings, self.lineage.listings, frozenset(owned))
        if plan is None or state == self._opened_at:
            return
        self._opened_at = state
        for shard in self.lineage.ready(self.checkpoints, plan.shards, plan.passed):
            if shard.id in self.open:
                continue
            key = self.stream.checkpoint_key(shard.id)
            if partition_of(key) not in owned:
                continue
            committed = self.checkpoints.get(shard.id)
            position = committed.position if committed else None
            floor = self.lineage.floor(shard, self.checkpoints, plan.floor)
            log.info("source %s: reading shard %s after %s", self.source.name, shard.id, position or "its start")
            parents = {parent: self.checkpoints[parent] for parent in shard.parents if parent in self.checkpoints}
            until = read_until(shard, plan, committed, parents, self.clock())
            reader = self.source.open(shard, plan.start_of(shard), committed, floor, until, parents)
            self.open[shard.id] = self.pump.open(reader, key)
            self._latest[shard.id] = committed or self._checkpoint(shard, ShardState.PLANNED)

    def forget(self, lost: set[int] | None = None) -> None:
        """Close the open shards of ``lost`` partitions, or all."""
        self._opened_at = None
        for shard, reading in list(self.open.items()):
            if lost is None or partition_of(reading.key) in lost:
                self._close(shard)
        self.snapshots.forget(lost)

    def settle(self) -> None:
        """Let go of ended shards once their end is visible."""
        if self._endings == self.view.endings:
            return
        self._endings = self.view.endings
        for shard in [s for s in self.open if (c := self.checkpoints.get(s)) and c.state.ended]:
            self._close(shard)
        self.list_soon()  # whoever read it, its children may be ours

    def _close(self, shard: str) -> None:
        if shard in self.open:
            self.pump.shut(self.open.pop(shard))
        self._latest.pop(shard, None)

    def ended(self, owned: set[int]) -> tuple[dict[bytes, tuple[Checkpoint, Gap]], list[bytes]]:
        """Of the partitions ``owned``: shards that were lost, by checkpoint key, and keys to prune."""
        plan = self.plan
        if plan is None:
            return {}, []
        lost = {
            key: self.gone(shard)
            for shard in self.lineage.lost(self.checkpoints, plan.shards, plan.passed)
            # One that was read to its end here, and the view does not show it yet.
            if not ((latest := self._latest.get(shard)) is not None and latest.state.ended)
            and partition_of(key := self.stream.checkpoint_key(shard)) in owned
        }
        now = self.clock()
        ended = map(self.stream.checkpoint_key, self.lineage.prunable(self.checkpoints, now))
        prunable = [*ended, *replaced(self.view, self.stream, now)]
        return lost, [key for key in prunable if partition_of(key) in owned]

    # ------------------------------------------------------------------ pages

    def checkpoint(self, page: Page) -> Checkpoint | None:
        """What is known once ``page`` is on the topic; None if that is not worth writing down yet."""
        shard = page.shard
        before = self._latest[shard.id]
        now = self.clock()
        if not (
            page.changes
            or page.finished
            or page.gap
            or before.state is ShardState.PLANNED
            # All idle shards in the same turns, so that they share transactions.
            or now // IDLE_CHECKPOINT != before.updated_at // IDLE_CHECKPOINT
        ):
            return None
        after = self._checkpoint(
            shard,
            ShardState.FINISHED if page.finished else ShardState.READING,
            position=page.position,
            token=page.token or before.token,
            gap=page.gap.id if page.gap else before.gap,
            # What an empty page shows lags behind the change before it.
            progress=max((p for p in (page.progress, before.progress) if p is not None), default=None),
            journal=self._journal(page),
            reached=max((r for r in (page.reached, before.reached) if r is not None), default=None),
        )
        self._latest[shard.id] = after
        if page.gap is not None:
            self._gaps_told.add(page.gap.id)
        return after

    def before_gap(self, page: Page) -> Checkpoint | None:
        """Return what to write down before the loss of ``page`` is told, None if that is there.

        What was read before it may have left nothing to write down, and a loss is named by where it begins: met again
        after a restart it has to be the same one.
        """
        before = self._latest[page.shard.id]
        if not self.source.has_journals or page.gap is None or page.gap.begin in (None, before.position):
            return None
        if "transaction" in (before.position or {}):
            return None  # a part of it is on the topic, and only that position says so
        after = replace(before, state=ShardState.READING, position=page.gap.begin, updated_at=self.clock())
        self._latest[page.shard.id] = after
        return after

    def _journal(self, page: Page) -> Mapping[str, Any] | None:
        """Return what the last checkpoint of a shard says of those that follow it."""
        if page.journal is None or self.plan is None:
            return None
        record = record_of(page.journal, page.shard, self.plan, self.checkpoints)
        told = (self.source.name, page.shard.id, record["id"], list(record["targets"]))
        log.info("source %s: shard %s ended with journal %s, and goes on as %s", *told)
        return record

    def gone(self, shard: str) -> tuple[Checkpoint, Gap]:
        """The end of a shard that the source has lost before it was read to its end, or ever seen (I9)."""
        now = self.clock()
        # What was read here is newer than what the view shows of it.
        before = self._latest.get(shard) or self.checkpoints.get(shard)
        before = before or self._checkpoint(self.lineage.listed.get(shard, Shard(shard)), ShardState.PLANNED)
        begin = before.position
        if begin is None and before.start is not None and "sequence" in before.start:
            begin = before.start
        gap = Gap(self.stream.source, self.stream.label, shard, "shard lost", begin, None, now)
        self._close(shard)  # what was read of it and not published is part of the gap
        return replace(before, state=ShardState.GONE, gap=gap.id, updated_at=now), gap

    def note(self, page: Page) -> None:
        """Remember how far ``page`` shows its shard to be caught up."""
        self.caught_up.note(page)

    def snapshot_step(self) -> tuple[Checkpoint, str | None] | None:
        """See ``Snapshots.step``."""
        plan = self.plan
        if plan is None:
            return None
        last = max(plan.floor, self._known().last)
        return self.snapshots.step(self._gaps(), self._repairs(), is_unread(self.view, self.source.name), last)

    def _gaps(self) -> Set[str]:
        """Return the ids of the losses that are known of this stream, and before it."""
        before = {self.plan.gap} if self.plan is not None and self.plan.gap is not None else set()
        return self._known(exact=True).gaps | self._gaps_told | before

    def _repairs(self) -> Set[str]:
        """Return the ids of the losses that a snapshot has to repair."""
        gaps = self._gaps()
        return gaps if self.source.on_gap == "resnapshot" else gap_decisions.repairs(self.view, self.stream) & gaps

    def dealt_with(self, owned: set[int]) -> list[bytes]:
        """Return the keys, of the partitions ``owned``, of losses that were published and need no one any more."""
        if gap_decisions.records_of(self.stream) not in self.view.checkpoints:
            return []
        published = self._known(exact=True).gaps | ({self.plan.gap} if self.plan is not None else set())
        keys = gap_decisions.dealt_with(self.view, self.stream, published, self.snapshots.repaired)
        return [key for key in keys if partition_of(key) in owned]

    def resume_timestamp(self) -> int:
        return self._known().resume

    def low_watermark(self) -> float | None:
        """See ``progress.low_watermark``."""
        return low_watermark(self.checkpoints, self.lineage) if self.plan is not None else None

    def _known(self, *, exact: bool = False) -> Progress:
        """What all committed checkpoints say together; asked for often, and worked out once for each state of them."""
        now = time.monotonic()
        if self._known_at != self.view.version and (exact or now >= self._known_again_at):
            self._known_at = self.view.version
            self._known_again_at = now + _KNOWN_FOR
            self._known_is = Progress.of(self.checkpoints)
        return self._known_is

    def is_caught_up(self) -> bool:
        """Whether every shard has been read up to the command's start, and that is committed."""
        if self.plan is None or self.listings.listed_at < self.started or self.listings.successor is not None:
            return False
        if not self.snapshots.is_settled(self._repairs(), is_unread(self.view, self.source.name)):
            return False
        if any(not self.lineage.is_gone(s) and not self._has_ended(s) for s in self.lineage.absent):
            return False  # it was listed before, and may be again: one listing may be inconsistent
        listed_at = self.listings.listed_at
        return all(
            self.caught_up.has(shard, self.checkpoints.get(shard.id), listed_at)
            for shard in self.lineage.listed.values()
        )

    def _has_ended(self, shard: str) -> bool:
        checkpoint = self.checkpoints.get(shard)
        return checkpoint is not None and checkpoint.state.ended

    def _checkpoint(self, shard: Shard, state: ShardState, **fields: object) -> Checkpoint:
        plan = self.plan
        return Checkpoint(
            state=state,
            parents=shard.parents,
            children=self.lineage.children(shard.id),
            start=plan.start_of(shard) if plan else None,
            config_hash=plan.config_hash if plan else "",
            updated_at=self.clock(),
            **fields,  # type: ignore[arg-type]
        )

"""One source while it is being read: its plan, its open shards, and their checkpoints.

Decides which shards to open and what their checkpoints say; the worker decides when, and in which transaction.
Only what is committed and visible in the checkpoints topic counts here (I4).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any

from relay.kafka.checkpoints import partition_of
from relay.reading.open_shard import OpenShard
from relay.reading.reader_pool import ReaderPool
from relay.records import (
    CommittedRecords,
    Gap,
    Lineage,
    Plan,
    SegmentCheckpoint,
    ShardCheckpoint,
    ShardState,
    StreamId,
    UnplannedTable,
    has_ended,
    position_text,
)
from relay.snapshots.control import unfinished_repairs
from relay.snapshots.emptied_tables import forget_before
from relay.snapshots.lifecycle import Snapshots
from relay.source import Opening, Page, Source
from relay.stream import gap_decisions
from relay.stream.caught_up import CaughtUp
from relay.stream.discovery import JournaledShards, ListedShards
from relay.stream.late_shard import LateShard, start_of_late
from relay.stream.look import Look
from relay.stream.new_tables import NewTables
from relay.stream.planning import Planning
from relay.stream.progress import CommittedProgress, read_until
from relay.stream.pruning import replaced, unpruned
from relay.stream.shard_checkpoints import ShardCheckpoints
from relay.stream.succession import Succession
from relay.table import TableSchema

log = logging.getLogger(__name__)


class SourceState:
    """The shards of one source, which is connected to ``stream``. Used by the worker's thread."""

    def __init__(
        self,
        source: Source,
        stream: StreamId,
        view: CommittedRecords,
        readers: ReaderPool,
        *,
        until_caught_up: bool = False,
    ) -> None:
        self.source = source
        self.view = view
        self.readers = readers
        self.clock = source.clock
        self.planning = Planning(source, view)
        self.look = Look(lambda: view.versions[source.name], self._has_answers, self._next_answer, clock=readers.clock)
        self.started = self.clock()
        self._until_caught_up = until_caught_up
        self._read(stream)
        self.succession = Succession(self)

    def _read(self, stream: StreamId) -> None:
        self.stream = stream
        self.plan_key = stream.plan_key
        self.lineage = Lineage(stream)
        self.discovery: ListedShards | JournaledShards = (
            JournaledShards(
                stream, self.lineage, lambda: self.plan, lambda: self.view.endings[stream.source], clock=self.clock
            )
            if self.source.has_journals
            else ListedShards(self.source, stream, self.lineage)
        )
        self.snapshots = (
            Snapshots(self, self.source.snapshots, self.readers) if self.source.snapshots is not None else None
        )
        name, view = self.source.name, self.view
        self._progress = CommittedProgress(
            lambda: self.checkpoints, lambda: view.versions[name], lambda: view.gap_versions[name]
        )
        self.look.soon()
        # Open shards, and finished ones whose last checkpoint is not visible yet.
        self.open: dict[str, OpenShard] = {}
        self.new_tables = NewTables(self.planning, lambda: self.plan, self._all_checkpoints)
        self._open_checkpoints = ShardCheckpoints(
            self.lineage,
            lambda: self.plan,
            lambda: self.checkpoints,
            has_journals=self.source.has_journals,
            forget_before=lambda: forget_before(view.controls.get(stream), self.clock()),
            awaited=lambda: self.snapshots.awaited if self.snapshots is not None else 0.0,
            unplanned=self.new_tables.unplanned,
            clock=self.clock,
        )
        # A relay that runs for ever asks nothing of it, and keeps nothing for it (I11).
        self.caught_up = CaughtUp(self.started, has_heads=self.source.has_journals) if self._until_caught_up else None
        # `CommittedRecords.endings` when ended shards were last closed.
        self._endings = 0
        self._plan_checked = False
        # The state in which everything ready was opened.
        self._opened_in: tuple[int, int, frozenset[int]] | None = None

    def __repr__(self) -> str:
        return f"<SourceState[{self.source.name}: {len(self.open)} open]>"

    @property
    def checkpoints(self) -> Mapping[str, ShardCheckpoint]:
        """The committed checkpoints of this stream, all workers' shards."""
        return self.view.checkpoints.get(self.stream, {})

    def _all_checkpoints(self) -> list[ShardCheckpoint | SegmentCheckpoint]:
        return [*self.checkpoints.values(), *self.view.segments.get(self.stream, {}).values()]

    @property
    def plan(self) -> Plan | None:
        return self.view.plans.get(self.stream)

    def switch_to(self, stream: StreamId) -> None:
        """Read ``stream``, which the source is connected to, from here on, and forget the one before it."""
        self.close_shards()
        self._read(stream)

    def reload(self, entry: Any) -> None:
        """See ``Source.reload``."""
        self.source.reload(entry)
        self.planning.reloaded()

    def _has_answers(self) -> bool:
        """Whether a call of the source has ended, or is due."""
        if not self._plan_checked and not self.succession.is_connecting and self.plan is None:
            return not self.planning.is_making or self.planning.is_made
        return (
            self.succession.is_connected
            or self.discovery.is_due
            or (self.snapshots is not None and (self.snapshots.is_measured or self.snapshots.sees is not None))
        )

    def _next_answer(self) -> float:
        """Return the earliest time at which something may change that is not committed, by the clock of the readers."""
        if not self._plan_checked or self.succession.is_connecting or self.succession.is_waiting:
            return 0.0
        if self.discovery.successor is not None or not self._is_snapshot_settled():
            return 0.0
        return self.discovery.next_at

    # ------------------------------------------------------------------ the plan

    def check_plan(self) -> None:
        """Refuse a plan that contradicts the config or the table. Raises ``ConfigError``."""
        if self.plan is not None and not self._plan_checked:
            self._plan_checked = True
            self.planning.check(self.plan)
            self.new_tables.begin(self.plan, self.source.tables() if self.source.has_journals else ())

    def plan_with_new_tables(self) -> Plan | None:
        """Return the plan with the tables that appeared since it was made, None if it has them all."""
        return self.new_tables.added() if self.source.has_journals else None

    def unplanned_tables(self) -> Mapping[str, UnplannedTable]:
        """See ``NewTables.unplanned``."""
        return self.new_tables.unplanned()

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """See ``Planning.check_tables``."""
        if self.plan is not None:
            self.planning.check_tables(self.plan, tables)
            self.new_tables.meet(self.plan, tables)

    # ------------------------------------------------------------------ shards

    def poll_listing(self) -> bool:
        """Keep the listing fresh, without waiting for it. Return whether a new one has arrived."""
        has_arrived = self.discovery.poll(self.checkpoints, self.plan)
        if has_arrived and self.caught_up is not None:
            self.caught_up.keep(self.lineage.listed.values())
        return has_arrived

    def list_soon(self) -> None:
        """List again soon: a listing that is under way is too old."""
        self.discovery.soon()
        self.look.ask_soon()

    def first_checkpoints(self, owned: set[int]) -> dict[bytes, ShardCheckpoint]:
        """Return checkpoints for listed shards of the partitions ``owned`` that have none yet."""
        plan = self.plan
        if plan is None:
            return {}
        passed = plan.passed
        return {
            key: self._open_checkpoints.first(shard, ShardState.FINISHED if shard.id in passed else ShardState.PLANNED)
            # Another worker may have pruned some since they were listed.
            for shard in unpruned(self.lineage.listed.values(), self.checkpoints, plan, self.clock())
            if shard.id not in self.checkpoints
            and not self._open_checkpoints.has_begun(shard.id)
            and partition_of(key := self.stream.shard_key(shard.id)) in owned
        }

    def open_ready_shards(self, owned: set[int]) -> None:
        """Open every shard of ``owned`` that may be read: after the fence, and after its parents (I2)."""
        plan = self.plan
        state = (self.view.endings[self.source.name], self.lineage.listings, frozenset(owned))
        if plan is None or state == self._opened_in:
            return
        self._opened_in = state
        known = self.new_tables.known_in(plan)
        ready = self.lineage.ready(self.checkpoints, plan.shards, plan.passed)
        for shard in unpruned(ready, self.checkpoints, plan, self.clock()):
            if shard.id in self.open:
                continue
            key = self.stream.shard_key(shard.id)
            if partition_of(key) not in owned:
                continue
            committed = self.checkpoints.get(shard.id)
            parents = {parent: self.checkpoints[parent] for parent in shard.parents if parent in self.checkpoints}
            late = self.lineage.late(shard.id, self.checkpoints) if not self.source.has_journals else []
            opening = Opening(
                shard,
                start_of_late(plan, late) or plan.start_of(shard),
                committed,
                floor=self.lineage.floor(shard, self.checkpoints, plan.floor),
                read_until=read_until(shard, plan, committed, parents, self.clock()),
                parents=parents,
                keys=known.keys,
                hashed=known.hashed,
                is_awaited=self._until_caught_up,
            )
            begin = position_text(opening.position or {}) or "its start"
            log.info("source %s: reading shard %s from %s", self.source.name, shard.id, begin)
            reader = self.source.open(opening)
            if late:
                reader = LateShard(reader, self.stream, clock=self.clock)
            self.open[shard.id] = self.readers.open(reader, key, self)
            self._open_checkpoints.open(shard, committed)

    def close_shards(self, lost: set[int] | None = None) -> None:
        """Close the open shards of ``lost`` partitions, or all of them."""
        self._opened_in = None
        self.look.soon()
        for name, shard in list(self.open.items()):
            if lost is None or partition_of(shard.key) in lost:
                self._close(name)
        if self.snapshots is not None:
            self.snapshots.close_segments(lost)

    def close_ended_shards(self) -> None:
        """Close the shards whose end is committed and visible."""
        endings = self.view.endings[self.source.name]
        if self._endings == endings:
            return
        self._endings = endings
        for shard in [shard for shard in self.open if has_ended(self.checkpoints, shard)]:
            self._close(shard)
        self.list_soon()  # whichever worker read it, its children may belong to this one

    def _close(self, shard: str) -> None:
        if shard in self.open:
            self.readers.shut(self.open.pop(shard))
        self._open_checkpoints.close(shard)

    def gone_shards(self, owned: set[int]) -> dict[bytes, tuple[ShardCheckpoint, Gap]]:
        """Return, by checkpoint key, the shards of ``owned`` that the source lost before they were read to the end."""
        plan = self.plan
        if plan is None:
            return {}
        return {
            key: self._give_up(shard)
            for shard in self.lineage.lost(self.checkpoints, plan.shards, plan.passed)
            # Not one that this worker read to its end while the view does not show it yet.
            if not self._open_checkpoints.has_ended(shard)
            and not self._may_be_read(shard)
            and partition_of(key := self.stream.shard_key(shard)) in owned
        }

    def _may_be_read(self, shard: str) -> bool:
        """Whether a shard that listings lack may be there nevertheless: no read of it has said that it is unknown."""
        if shard in self.open:
            return not self.open[shard].is_unknown  # I1
        return self.lineage.is_asked_for(shard, self.checkpoints)

    def _give_up(self, shard: str) -> tuple[ShardCheckpoint, Gap]:
        last = self._open_checkpoints.gone(shard)
        self._close(shard)  # pages that are read and not published are part of the gap
        return last

    def prunable(self) -> list[bytes]:
        """Return the checkpoint keys that nobody needs any longer."""
        if self.plan is None:
            return []
        now = self.clock()
        ended = map(self.stream.shard_key, self.lineage.prunable(self.checkpoints, now))
        return [*ended, *replaced(self.view, self.stream, now)]

    # ------------------------------------------------------------------ pages

    def checkpoint(self, page: Page) -> ShardCheckpoint | None:
        return self._open_checkpoints.covering(page)

    def checkpoint_before_gap(self, page: Page) -> ShardCheckpoint | None:
        return self._open_checkpoints.before_gap(page)

    def confirm(self, page: Page) -> None:
        """``page`` is committed: note how far it shows its shard to be caught up."""
        if self.caught_up is not None:
            self.caught_up.note(page)

    # ------------------------------------------------------------------ gaps, and how far the stream is complete

    @property
    def last_timestamp(self) -> int:
        """The newest timestamp of a token that may have been published, in seconds."""
        return max(self.plan.floor if self.plan is not None else 0, self._progress.exact().last)

    def gaps(self) -> Set[str]:
        """Return the ids of the known gaps of this stream, the one it began with included."""
        return self._own_gaps() | self._inherited_gaps()

    def gaps_to_repair(self) -> Set[str]:
        """Return the ids of the gaps that a snapshot has to repair."""
        own = self._own_gaps()
        if self.source.on_gap != "resnapshot":
            own &= gap_decisions.to_repair(self.view, self.stream)
        return own | self._inherited_gaps()

    def _own_gaps(self) -> Set[str]:
        before = {self.plan.gap} if self.plan is not None and self.plan.gap is not None else set()
        return self._progress.gaps() | self._open_checkpoints.reported_gaps | before

    def _inherited_gaps(self) -> Set[str]:
        """Return the ids of the gaps that a snapshot of the stream before this one was to repair and has not finished.

        Waiting for it could take longer than this stream keeps its records (I1).
        """
        before = self.planning.before(self.stream)
        # The newest other stream follows this one if another worker has switched to it already.
        if before is None or before.label > self.stream.label:
            return set()
        return unfinished_repairs(self.view, before)

    def resolved_gaps(self) -> list[bytes]:
        """Return the keys of pending gaps that are published and need no repair."""
        if not self.view.pending_gaps.get(self.stream):
            return []
        published = self._progress.gaps() | ({self.plan.gap} if self.plan is not None else set())
        repaired = self.snapshots.repaired if self.snapshots is not None else set()
        return gap_decisions.resolved(self.view, self.stream, published, repaired)

    def _is_snapshot_settled(self) -> bool:
        return self.snapshots is None or self.snapshots.is_settled()

    def resume_timestamp(self) -> int:
        return self._progress.recent().resume

    def low_watermark(self) -> float | None:
        """See ``progress.low_watermark``."""
        return self._progress.low_watermark(self.lineage) if self.plan is not None else None

    def is_caught_up(self) -> bool:
        """Whether every shard is published and committed up to the start of the command. False unless that is asked."""
        caught_up = self.caught_up
        if caught_up is None or self.plan is None:
            return False
        if self.discovery.listed_at < self.started or self.discovery.successor is not None:
            return False
        if self.discovery.is_due:
            return False  # I1: the shards that continue an ended one may not be known yet
        if not self._is_snapshot_settled():
            return False
        if any(
            not has_ended(self.checkpoints, s) and (s in self.checkpoints or not self.lineage.is_gone(s))
            for s in self.lineage.absent
        ):
            return False  # it was listed before and may be listed again: a listing may be inconsistent
        return all(
            caught_up.has(shard, self.checkpoints.get(shard.id), self._listed_with_children(shard.id))
            for shard in self.lineage.listed.values()
        )

    def _listed_with_children(self, shard: str) -> float:
        """Return when a listing began that shows the children of ``shard``, if it has any."""
        if has_ended(self.checkpoints, shard) and not self.lineage.children(shard):
            return self.discovery.listed_before  # I1: a single one may lack them
        return self.discovery.listed_at

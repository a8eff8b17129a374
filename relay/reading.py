"""One source while it is being read: its plan, its shards, and what is written down about them.

Decides which shards to open and what their checkpoints say; the worker decides when, and in which transaction.
Only what is committed and visible in the checkpoints topic counts here (I4).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from relay.errors import ConfigError, RelayError
from relay.kafka.checkpoints import CheckpointView, partition_of
from relay.lineage import Checkpoint, Gap, Lineage, Plan, Shard, ShardState, resume_timestamp
from relay.pump import Pump, Reading
from relay.source import Page, Source

log = logging.getLogger(__name__)

IDLE_CHECKPOINT = 10.0
"""Seconds after which an idle shard's progress is written down."""

_RELIST = 60.0
_RELIST_SOON = 1.0
_EMPTY_PAGES_AT_HEAD = 5


class SourceReading:
    """The shards of one source. Used by the worker's thread."""

    def __init__(
        self, source: Source, view: CheckpointView, pump: Pump, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.source = source
        self.view = view
        self.pump = pump
        self.clock = clock
        self.stream = source.connect()
        self.plan_key = self.stream.plan_key
        self.lineage = Lineage(self.stream)
        # Open shards, and finished ones whose last checkpoint is not visible yet.
        self.open: dict[str, Reading] = {}
        # The newest checkpoint per open shard, published or about to be.
        self._latest: dict[str, Checkpoint] = {}
        # Since the command's start: consecutive empty pages, and shards with a change from after it.
        self.started = clock()
        self._empty: dict[str, int] = {}
        self._past_start: set[str] = set()
        self._listing: Future[list[Shard]] | None = None
        self._list_at = 0.0
        # Whether the listing under way, if any, may have been begun too early.
        self._list_again = False
        # The endings of the view that were seen.
        self._endings = 0
        self._plan_checked = False
        # When the listing that is in ``lineage`` was begun.
        self._listed_at = 0.0
        self._listing_begun = 0.0
        self._lister = ThreadPoolExecutor(1, thread_name_prefix=f"list-{source.name}")

    def __repr__(self) -> str:
        return f"<SourceReading[{self.source.name}: {len(self.open)} open]>"

    @property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        """The committed checkpoints of this stream, all workers' shards."""
        return self.view.checkpoints.get(self.stream, {})

    @property
    def plan(self) -> Plan | None:
        return self.view.plans.get(self.stream)

    def close(self) -> None:
        self._lister.shutdown(wait=True, cancel_futures=True)
        self.source.close()

    # ------------------------------------------------------------------ the plan

    def make_plan(self) -> Plan:
        """Decide where reading begins. Written once, by the owner of the source's own key."""
        shards = self.source.shards()
        self.source.take_heads(shards)
        now = self.clock()
        since = self.source.start_since(now)
        start = {"type": "trim_horizon"} if since is None else {"since": since}
        keys = {table.table: [[c.name, c.type] for c in table.key] for table in self.source.tables()}
        return Plan(self.source.start, now, {s.id: start for s in shards}, keys, self.source.config_hash())

    def check_plan(self) -> None:
        """Refuse to go on under a plan that the config or the table no longer agrees with."""
        plan = self.plan
        if plan is None or self._plan_checked:
            return
        self._plan_checked = True
        name = self.source.name
        if plan.requested != self.source.start:
            raise ConfigError(
                f"source {name}: start is {self.source.start!r}, but this source was begun with "
                f"{plan.requested!r} and resumes from its checkpoints. Put {plan.requested!r} back; to read it from "
                "another place, run it under another `name`."
            )
        if plan.config_hash != self.source.config_hash():
            raise ConfigError(
                f"source {name}: its checkpoints belong to another stream than the one it names now. "
                "Give the other table a source of another name."
            )
        keys = {table.table: [[c.name, c.type] for c in table.key] for table in self.source.tables()}
        if plan.keys != keys:
            raise ConfigError(
                f"source {name}: the key columns are {keys}, but its changes are keyed by {plan.keys}: "
                "they would move to other partitions. Give the new table a source of another name."
            )

    # ------------------------------------------------------------------ shards

    def discover(self) -> bool:
        """Keep the listing fresh, without waiting for it. Return whether a new one has come."""
        if self._listing is not None and self._listing.done():
            listing, self._listing = self._listing, None
            self._list_at = self.clock() + _RELIST
            try:
                shards = listing.result()
            except RelayError as error:
                log.warning("source %s: cannot list its shards: %s", self.source.name, error)
                self._list_at = self.clock() + 5.0
                return False
            self._listed_at = self._listing_begun
            self.lineage.update(shards, self.checkpoints)
            if self._list_again or self._is_uncertain():
                self._list_at = self.clock() + _RELIST_SOON
            return True
        if self._listing is None and self.clock() >= self._list_at:
            self._listing_begun = self.clock()
            self._list_again = False
            self._listing = self._lister.submit(self.source.shards)
        return False

    def list_soon(self) -> None:
        """List again: what a listing that is under way brings is too old."""
        self._list_again = True
        self._list_at = min(self._list_at, self.clock() + _RELIST_SOON)

    def _is_uncertain(self) -> bool:
        """A shard is missing for the first time, or one has ended and its children are not listed yet."""
        return any(times == 1 for times in self.lineage.absent.values()) or any(
            c.state is ShardState.FINISHED and shard in self.lineage.listed and not self.lineage.children(shard)
            for shard, c in self.checkpoints.items()
        )

    def planned(self, owned: set[int]) -> dict[bytes, Checkpoint]:
        """Checkpoints for listed shards that have none yet, of the partitions ``owned``."""
        plan = self.plan
        if plan is None:
            return {}
        return {
            key: self._checkpoint(shard, ShardState.PLANNED)
            for shard in self.lineage.listed.values()
            if shard.id not in self.checkpoints
            and shard.id not in self._latest
            and partition_of(key := self.stream.checkpoint_key(shard.id)) in owned
        }

    def open_ready(self, owned: set[int]) -> None:
        """Open every shard of ``owned`` that may be read: only now, after the fence, and parents first (I2)."""
        plan = self.plan
        if plan is None:
            return
        for shard in self.lineage.ready(self.checkpoints, plan.shards):
            if shard.id in self.open:
                continue
            key = self.stream.checkpoint_key(shard.id)
            if partition_of(key) not in owned:
                continue
            committed = self.checkpoints.get(shard.id)
            position = committed.position if committed else None
            floor = self.lineage.floor(shard, self.checkpoints)
            log.info("source %s: reading shard %s after %s", self.source.name, shard.id, position or "its start")
            reader = self.source.open(
                shard, plan.start_of(shard.id), committed, floor, self._read_until(shard, plan, committed)
            )
            self.open[shard.id] = self.pump.open(reader, key)
            self._latest[shard.id] = committed or self._checkpoint(shard, ShardState.PLANNED)

    def _read_until(self, shard: Shard, plan: Plan, committed: Checkpoint | None) -> float:
        """Seconds up to which nothing of ``shard`` is missing on the topic: its own progress, or where it began."""
        if committed is not None and committed.progress is not None:
            return committed.progress
        if shard.id in plan.shards:
            return plan.planned_at
        # It began when its parents ended, which is not before what was last read of them.
        parents = [self.checkpoints[parent] for parent in shard.parents if parent in self.checkpoints]
        known = [parent.progress for parent in parents if parent.progress is not None]
        return min(known, default=committed.updated_at if committed else self.clock())

    def forget(self, lost: set[int] | None = None) -> None:
        """Close the open shards of ``lost`` partitions, or all."""
        for shard, reading in list(self.open.items()):
            if lost is None or partition_of(reading.key) in lost:
                self._close(shard)

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
            self.open.pop(shard).closed = True
        self._latest.pop(shard, None)

    def ended(self, owned: set[int]) -> tuple[dict[bytes, tuple[Checkpoint, Gap]], list[bytes]]:
        """Of the partitions ``owned``: shards that were lost, by checkpoint key, and keys to prune."""
        plan = self.plan
        if plan is None:
            return {}, []
        lost = {
            key: self.gone(shard)
            for shard in self.lineage.lost(self.checkpoints, plan.shards)
            if partition_of(key := self.stream.checkpoint_key(shard)) in owned
        }
        prunable = map(self.stream.checkpoint_key, self.lineage.prunable(self.checkpoints, self.clock()))
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
            or now - before.updated_at >= IDLE_CHECKPOINT
        ):
            return None
        after = self._checkpoint(
            shard,
            ShardState.FINISHED if page.finished else ShardState.READING,
            position=page.position,
            token=page.token or before.token,
            gap=page.gap.id if page.gap else before.gap,
            progress=page.progress if page.progress is not None else before.progress,
        )
        self._latest[shard.id] = after
        return after

    def gone(self, shard: str) -> tuple[Checkpoint, Gap]:
        """The end of a shard that the source has lost before it was read to its end, or ever seen (I9)."""
        now = self.clock()
        before = self.checkpoints.get(shard) or self._checkpoint(Shard(shard), ShardState.PLANNED)
        gap = Gap(self.stream.source, self.stream.label, shard, "shard lost", before.position, None, now)
        self._close(shard)  # what was read of it and not published is part of the gap
        return replace(before, state=ShardState.GONE, gap=gap.id, updated_at=now), gap

    def note(self, page: Page) -> None:
        """Remember how far ``page`` shows its shard to be caught up."""
        shard = page.shard.id
        if page.records or page.gap:
            self._empty[shard] = 0
        elif page.begun >= self.started and not page.failed:
            self._empty[shard] = self._empty.get(shard, 0) + 1
        if page.changes and page.progress is not None and page.progress > self.started:
            self._past_start.add(shard)

    def resume_timestamp(self) -> int:
        return resume_timestamp(self.checkpoints.values())

    def is_caught_up(self) -> bool:
        """Whether every shard has been read up to the command's start, and that is committed."""
        if self.plan is None or self._listed_at < self.started:
            return False
        if any(not self.lineage.is_gone(s) and not self._has_ended(s) for s in self.lineage.absent):
            return False  # it was listed before, and may be again: one listing may be inconsistent
        return all(self._shard_is_caught_up(shard) for shard in self.lineage.listed.values())

    def _has_ended(self, shard: str) -> bool:
        checkpoint = self.checkpoints.get(shard)
        return checkpoint is not None and checkpoint.state.ended

    def _shard_is_caught_up(self, shard: Shard) -> bool:
        checkpoint = self.checkpoints.get(shard.id)
        if checkpoint is not None and checkpoint.state.ended:
            # Its children must have had a chance to be listed.
            return shard.id in self._past_start or self._listed_at > checkpoint.updated_at
        if shard.id in self._past_start or self._empty.get(shard.id, 0) >= _EMPTY_PAGES_AT_HEAD:
            return True
        if checkpoint is not None and checkpoint.progress is not None and checkpoint.progress > self.started:
            return True  # another worker's shard
        return bool(shard.parents) and all(parent in self._past_start for parent in shard.parents)

    def _checkpoint(self, shard: Shard, state: ShardState, **fields: object) -> Checkpoint:
        plan = self.plan
        return Checkpoint(
            state=state,
            parents=shard.parents,
            children=self.lineage.children(shard.id),
            start=plan.start_of(shard.id) if plan else None,
            config_hash=plan.config_hash if plan else "",
            updated_at=self.clock(),
            **fields,  # type: ignore[arg-type]
        )

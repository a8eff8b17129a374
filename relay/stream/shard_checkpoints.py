"""The checkpoints of the shards open in this worker, ahead of the committed ones, and how each page changes them."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relay.records import Gap, Lineage, Shard, ShardCheckpoint, ShardState, has_ended, is_inside_transaction
from relay.snapshots.emptied_tables import forget_before, noted
from relay.snapshots.lifecycle import Snapshots
from relay.source import Page, Source
from relay.stream.new_tables import NewTables

log = logging.getLogger(__name__)

IDLE_CHECKPOINT = 10.0  # seconds between two checkpoints of an idle shard


class ShardCheckpoints:
    """The newest checkpoints, for the worker's thread. ``snapshots``: those beside the stream, or None."""

    def __init__(
        self, source: Source, lineage: Lineage, new_tables: NewTables, snapshots: Snapshots | None = None
    ) -> None:
        self.lineage = lineage
        self.clock = source.clock
        self.committed = lineage.committed
        self._has_journals = source.has_journals
        self.new_tables = new_tables
        self._snapshots = snapshots
        # The newest checkpoint of each open shard, published or about to be.
        self._latest: dict[str, ShardCheckpoint] = {}
        self.reported_gaps: set[str] = set()  # gaps reported since the start, which the view may not show yet

    def has_begun(self, shard: str) -> bool:
        """Whether this worker has published, or is about to publish, a page of ``shard``."""
        latest = self._latest.get(shard)
        return latest is not None and latest.state is not ShardState.PLANNED

    def open(self, shard: Shard, committed: ShardCheckpoint | None) -> None:
        self._latest[shard.id] = committed or self.new(shard)

    def close(self, shard: str) -> None:
        self._latest.pop(shard, None)

    def has_ended(self, shard: str) -> bool:
        return has_ended(self._latest, shard)

    def covering(self, page: Page) -> ShardCheckpoint | None:
        """Return the checkpoint that covers ``page``, or None if a record is not worth its cost yet."""
        shard = page.shard
        before = self._latest[shard.id]
        now = self.clock()
        if not (
            page.has_content  # I3
            or page.finished
            or page.gap
            or before.state is ShardState.PLANNED
            # By the clock, so that all idle shards share transactions.
            or now // IDLE_CHECKPOINT != before.updated_at // IDLE_CHECKPOINT
            # A snapshot cannot end before.
            or (before.reached or 0.0) < (self._snapshots.awaited if self._snapshots else 0.0) <= (page.reached or 0.0)
        ):
            return None
        after = self.new(
            shard,
            ShardState.FINISHED if page.finished else ShardState.READING,
            position=page.position,
            token=page.token or before.token,
            gap=page.gap.id if page.gap else before.gap,
            # An empty page may report less progress than the change before it.
            progress=_later(page.progress, before.progress),
            journal=page.journal,
            reached=_later(page.reached, before.reached),
            emptied=self._emptied(page, before),
            unplanned=self.new_tables.unplanned(),
            quiet_at=before.quiet_at if self._has_journals or page.pause == 0.0 or page.counts.records else page.begun,
        )
        self._latest[shard.id] = after
        if page.journal is not None:
            source, targets = self.lineage.stream.source, ", ".join(page.journal.targets)
            said = "source %s: shard %s ended with journal %s and continues as %s"
            log.info(said, source, shard.id, page.journal.id, targets)
        if page.gap is not None:
            self.reported_gaps.add(page.gap.id)
        return after

    def before_gap(self, page: Page) -> ShardCheckpoint | None:
        """Return the checkpoint to commit before the gap of ``page``, or None if it is already committed.

        The pages before may have left none, and the beginning of a gap, part of its id, must not change in a restart.
        """
        before = self._latest[page.shard.id]
        if not self._has_journals or page.gap is None or page.gap.begin in (None, before.position):
            return None
        if is_inside_transaction(before.position):
            return None  # only this position says that part of the transaction is on the topic
        after = replace(before, state=ShardState.READING, position=page.gap.begin, updated_at=self.clock())
        self._latest[page.shard.id] = after
        return after

    def gone(self, shard: str) -> tuple[ShardCheckpoint, Gap]:
        """Return the last checkpoint of a shard that the source no longer has, and its gap (I9)."""
        now, stream = self.clock(), self.lineage.stream
        # This worker's checkpoint is newer than the committed one.
        before = self._latest.get(shard) or self.committed.checkpoints.get(shard)
        before = before or self.new(self.lineage.listed.get(shard, Shard(shard)))
        begin = before.position
        if begin is None and before.start is not None and "sequence" in before.start:
            begin = before.start
        gap = Gap(stream.source, stream.label, shard, "shard lost", begin, None, now)
        return replace(before, state=ShardState.GONE, gap=gap.id, updated_at=now), gap

    def _emptied(self, page: Page, before: ShardCheckpoint) -> Mapping[str, float]:
        """Return when tables were last emptied, including those in ``page``, while a snapshot may need it."""
        if not self._has_journals:
            return before.emptied
        now = self.clock()
        return noted(before.emptied, page, now, forget_before(self.committed.control, now))

    def new(self, shard: Shard, state: ShardState = ShardState.PLANNED, **fields: Any) -> ShardCheckpoint:
        """Return a checkpoint of ``shard`` with ``fields``; the other fields are as in its first one."""
        plan = self.committed.plan
        return ShardCheckpoint(
            state=state,
            parents=shard.parents,
            children=self.lineage.children(shard.id),
            start=plan.start_of(shard) if plan else None,
            updated_at=self.clock(),
            **fields,
        )


def _later(*seconds: float | None) -> float | None:
    return max((each for each in seconds if each is not None), default=None)

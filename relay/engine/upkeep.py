"""What the sources of a worker need beside publishing pages: plans, listings, snapshots, pruning, and their records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from relay.engine.publishing import Publishing
from relay.engine.snapshots import Show, Snapshots
from relay.engine.source_state import SourceState
from relay.errors import Unavailable
from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import partition_of

log = logging.getLogger(__name__)

_PLANS_AT_ONCE = 16
"""Each has a thread, and asks its source about every shard."""


class Upkeep:
    """Used by the worker's thread. ``show``: what shows the progress of snapshots, if anything does.

    That thread serves the group, so nothing here waits for a database: see ``slow_call``.
    """

    def __init__(self, group: Assignment, publishing: Publishing, show: Callable[[], Show | None]) -> None:
        self._group = group
        self._publishing = publishing
        self._show = show

    def serve(self, sources: Sequence[SourceState]) -> None:
        """Plan, list and open shards, with the records that this needs: listings of all sources in one transaction."""
        unplanned = [source for source in sources if source.plan is None and not source.join_planned_stream()]
        making = sum(source.is_making_plan for source in unplanned)
        for source in unplanned:
            if source.is_making_plan or making < _PLANS_AT_ONCE:
                making += not source.is_making_plan
                self._plan(source)
        planned = [source for source in sources if source.plan is not None]
        for source in planned:
            source.check_plan()  # another worker may have made it
            source.close_ended_shards()
            if (plan := source.plan_with_new_tables()) is not None and partition_of(
                source.plan_key
            ) in self._group.owned:
                self._publishing.record(source.plan_key, plan.to_json())
                self._publishing.commit_and_see()
        current = [source for source in planned if not source.advance_to_successor()]
        listed = [source for source in current if source.poll_listing()]
        if listed:
            self._publishing.commit_and_see()  # so that the view has the newest checkpoint of a shard that is gone
            for source in listed:
                self._write_listing(source)
            self._publishing.commit_and_see()
        for source in current:
            source.open_ready_shards(self._group.owned)
            if source.snapshots is not None:
                self._serve_snapshots(source, source.snapshots)
            self._remove(source.resolved_gaps(self._group.owned))

    def _plan(self, source: SourceState) -> None:
        """Have the plan of ``source`` made if this worker owns it, and commit it once it is made."""
        if partition_of(source.plan_key) not in self._group.owned:
            source.drop_plan()
            if source.warns_of_no_plan():
                log.warning(
                    "source %s: no worker has planned it yet; check that the config of every worker has this source",
                    source.source.name,
                )
            return
        if source.is_waiting:
            return
        try:
            made = source.make_plan()
        except Unavailable as error:
            if not source.replaces:
                raise
            source.retry_later(error)
            return
        if made is None:
            return
        plan, gap = made
        if gap is not None:
            self._publishing.gap(source.source, gap)
        self._publishing.record(source.plan_key, plan.to_json())
        self._publishing.commit_and_see()

    def _write_listing(self, source: SourceState) -> None:
        owned = self._group.owned
        for key, (checkpoint, gap) in source.gone_shards(owned).items():
            self._publishing.gap(source.source, gap)
            self._publishing.record(key, checkpoint.to_json())
        for key in source.prunable(owned):
            self._publishing.record(key, None)
        for key, checkpoint in source.first_checkpoints(owned).items():
            self._publishing.record(key, checkpoint.to_json())

    def _serve_snapshots(self, source: SourceState, snapshots: Snapshots) -> None:
        owned = self._group.owned
        if partition_of(snapshots.control_key) in owned and (step := snapshots.next_step()) is not None:
            control, mark = step
            if mark is not None:
                for change in snapshots.mark(control, mark):
                    self._publishing.everywhere(change, source.resume_timestamp())
            self._publishing.record(snapshots.control_key, control.to_json())
            self._publishing.commit_and_see()
        self._remove(snapshots.prunable(owned))
        snapshots.open_ready_segments(owned)
        snapshots.report_progress(self._show())

    def _remove(self, keys: Sequence[bytes]) -> None:
        """Remove records of ``checkpoints``."""
        if keys:
            for key in keys:
                self._publishing.record(key, None)
            self._publishing.commit_and_see()

"""Everything that sources need besides publishing pages: plans, listings, snapshots, pruning, and their records."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from relay.engine.config_reload import ReloadedConfig
from relay.engine.publishing import Publishing
from relay.engine.same_sources import SameSources
from relay.errors import RelayError, Unavailable, fault_of
from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Abandoned
from relay.observe.bars import SnapshotBars
from relay.reading.set_aside import GapPending
from relay.records import Plan, ShardState
from relay.snapshots.control import WriteControl
from relay.snapshots.lifecycle import Snapshots
from relay.stream.source_state import SourceState
from relay.stream.topic_partitions import end_of_partitions, with_partitions

log = logging.getLogger(__name__)

_PLANS_AT_ONCE = 16  # plans made at once: each has a thread, and asks its source about every shard


class Upkeep:
    """The upkeep of a worker's sources, in its thread: nothing here may wait for a database (``process.slow_call``)."""

    def __init__(self, group: Assignment, publishing: Publishing, same: SameSources, config: ReloadedConfig) -> None:
        self._group = group
        self._same = same
        self._config = config
        self._publishing = publishing
        self._bars = SnapshotBars.for_terminal()  # the progress of snapshots, if stderr is a terminal
        self._owned: frozenset[int] = frozenset()  # the partitions owned at the last look
        self._counted: dict[str, Plan] = {}  # by source, the plan that has the partitions of all its topics
        self._is_alone = False  # whether nothing is left to do when the only source cannot be planned

    def serve(self, sources: Sequence[SourceState]) -> None:
        """Make plans, list and open shards, and write the records for that, where anything has changed."""
        self._config.serve(sources)
        self._is_alone = len(sources) == 1
        self._same.serve(self._publishing, self._close_waiting(sources))
        owned = frozenset(self._group.owned)
        everything = owned != self._owned
        if changed := self._group.view.changed:
            for source in sources:
                if source.source.name in changed:
                    source.look.ask_soon()
            changed.clear()
        now = sources[0].look.clock() if sources else 0.0  # all sources have the same clock
        asked = sources if everything else [source for source in sources if source.look.ask_at <= now]
        due = [source for source in asked if source.begin_look() or everything]
        if due:
            making = sum(source.planning.is_making for source in sources)
            self._serve(due, making)
        for source in due:
            source.end_look()
        self._owned = owned

    def close(self) -> None:
        if self._bars is not None:
            self._bars.close()

    def _serve(self, sources: Sequence[SourceState], making: int) -> None:
        """Serve ``sources``, with common transactions. ``making``: the number of plans being made."""
        planned_now = False
        for source in sources:
            if source.plan is not None:
                source.planning.drop()  # another worker may have made it first
                planned_now |= self._owns(source.stream.plan_key) and self._put_into_force(source, source.plan)
                continue
            if source.join_planned():
                continue
            if source.planning.is_making or making < _PLANS_AT_ONCE:
                was_making = source.planning.is_making
                planned_now |= self._plan(source)
                making += source.planning.is_making - was_making  # I12: a source that waits does not count
        if planned_now:
            self._publishing.commit_and_see()
        planned = [source for source in sources if source.plan is not None]
        for source in planned:
            source.check_plan()  # another worker may have made it
            source.set_aside.forget(source.stream.plan_key)
            source.try_again()
            if source.shards.close_ended():
                source.list_soon()  # whichever worker read it, its children may belong to this worker
            if self._owns(source.stream.plan_key):
                self._spread(source)
            is_owner = self._owns(source.stream.plan_key) and self._reads(source)
            if is_owner and (plan := source.new_tables.added()) is not None:
                self._publishing.record(source.stream.plan_key, plan.to_json())
                self._publishing.commit_and_see()
            # I8: another worker may publish a new table to the topic of another source's table. That ends both workers:
            # each would continue with the source whose table it met first.
            for table in source.new_tables.take_added():
                self._publishing.writers.claim(source.source.name, table)
        current = [source for source in planned if not source.advance()]
        owned = self._group.owned
        gained = owned - self._owned
        # A listing that arrived before this worker owned these partitions includes their shards, too.
        listed = [source for source in current if source.poll_listing(owned) or (gained and source.discovery.listed_at)]
        if listed:
            self._publishing.commit_and_see()  # so that the view has the newest checkpoint of a shard that is gone
            for source in listed:
                self._write_listing(source)
            self._publishing.commit_and_see()
        for source in filter(self._reads, current):
            source.shards.open_ready(owned)
            if source.snapshots is not None:
                self._serve_snapshots(source, source.snapshots)
            if self._record_removal(source.resolved_gaps()):
                self._publishing.commit_and_see()

    def _plan(self, source: SourceState) -> bool:
        """Make the plan of ``source`` if this worker owns it, and write the plan. Return whether it is written."""
        if not self._owns(source.stream.plan_key):
            source.planning.drop()
            return False
        if source.switching.is_waiting or source.stream.plan_key in source.set_aside.waiting():
            return False
        try:
            made = source.planning.make(source.stream)
        except RelayError as error:
            if isinstance(error, Unavailable) and source.planning.before(source.stream) is not None:
                source.switching.retry_later(error)
            elif self._is_alone:
                raise
            else:  # I12
                source.set_aside.add(source.stream.plan_key, None, error)
            return False
        if made is None:
            return False
        plan, gap = made
        if gap is not None:
            try:
                self._publishing.gap(source.source, gap)
            except GapPending as error:
                source.set_aside.add(source.stream.plan_key, None, error)
                return False
        if not self._put_into_force(source, plan):
            self._publishing.record(source.stream.plan_key, plan.to_json())
        return True

    def _put_into_force(self, source: SourceState, plan: Plan) -> bool:
        """Write ``plan`` with this worker's config in force, if that is new and allowed. Return whether."""
        name = source.source.name
        requested = self._group.view.requested_of(name)
        counted = plan if self._counted.get(name) is plan else with_partitions(plan, self._config.config, requested)
        if counted is plan:
            self._counted[name] = plan
        changed = self._same.put_into_force(name, counted)
        if changed is None and counted is not plan and self._same.is_in_force(name, plan):
            changed = counted  # a table has appeared
        if changed is not None:
            self._publishing.record(source.stream.plan_key, changed.to_json())
        return changed is not None

    def _close_waiting(self, sources: Sequence[SourceState]) -> Mapping[str, int]:
        """Close the sources whose topics wait for more partitions. Return these topics, with the requested numbers."""
        view, waiting = self._group.view, dict[str, int]()
        for name in view.requested_partitions:
            if not (topics := view.waiting_partitions(name)):
                continue
            waiting |= topics
            for source in (each for each in sources if each.source.name == name and each.is_open):
                log.info("source %s: waiting for the new partitions of %s", name, ", ".join(topics))
                self._publishing.commit()
                view.require_end(self._group.owned, self._group.barrier_timeout)  # I3: they are opened again soon
                source.close_shards()
        return waiting

    def _spread(self, source: SourceState) -> None:
        """Use the requested partitions of topics once no worker publishes there (I2)."""
        name, plan, publishing = source.source.name, source.plan, self._publishing
        waiting = self._group.view.waiting_partitions(name)
        if plan is None or self._group.view.newest(name) is not source.committed or not waiting:
            return
        if not all(self._same.are_ready(topic, number) for topic, number in waiting.items()):
            return
        resume, snapshots, topic_of = source.resume_timestamp(), source.snapshots, self._config.config.topic
        tables = [each for each in source.source.tables() if topic_of(each.table) in waiting]
        with fault_of(name):  # I12
            publishing.writers.use([each for each in tables if (each.source, each.table) not in publishing.writers])
        former = {each.table: range(plan.partitions[topic_of(each.table)]) for each in tables}
        for each in tables:
            mark = end_of_partitions(each, source.stream.label, waiting[topic_of(each.table)], source.source.clock())
            publishing.everywhere(mark, resume, former[each.table])
        if snapshots is not None and (control := snapshots.control) and control.state is not ShardState.PLANNED:
            kinds = ("begin",) if control.state is ShardState.READING else ("begin", "end")
            for mark in (mark for kind in kinds for mark in snapshots.marked.marks(control, kind)):
                if mark.table in former:  # I9: a copy counts an end only once it has met it in all partitions
                    new = range(len(former[mark.table]), waiting[topic_of(mark.table)])
                    publishing.everywhere(mark, resume, new)
        # I7: a later token than any before, so that tokens tell the order of an item's changes in two partitions.
        spread = replace(plan, partitions={**plan.partitions, **waiting}, floor=source.committed.floor + 1)
        publishing.record(source.stream.plan_key, spread.to_json())
        publishing.commit_and_see()
        for topic, number in waiting.items():
            log.info("source %s: the changes of topic %s go to %d partitions from here on", name, topic, number)

    def _reads(self, source: SourceState) -> bool:
        """Whether this worker's config is in force, and its topics have all requested partitions.

        Raises ``Abandoned`` if the config no longer is.
        """
        name, plan = source.source.name, source.plan
        if self._group.view.waiting_partitions(name):  # I2
            return False
        if plan is not None and self._same.is_in_force(name, plan):
            return True
        if source.is_open:
            raise Abandoned(f"source {name}: the other workers have switched to another config")  # I1
        return False

    def _write_listing(self, source: SourceState) -> None:
        owned = self._group.owned
        if (listing := source.discovery.untold) is not None:
            self._publishing.tell(source.stream.listing_key, listing)
        for key, (checkpoint, gap) in source.shards.gone(owned).items():
            try:
                self._publishing.gap(source.source, gap)
            except GapPending as error:
                source.set_aside.add(key, gap.shard, error)
                continue
            source.set_aside.forget(key)
            self._publishing.record(key, checkpoint.to_json())
        for key in filter(self._owns, source.prunable()):
            self._publishing.forget(key)
        for key, checkpoint in source.shards.first_checkpoints(owned).items():
            self._publishing.record(key, checkpoint.to_json())

    def _serve_snapshots(self, source: SourceState, snapshots: Snapshots) -> None:
        """Do the next steps of snapshots. Changes go on while the view does not show these records yet."""
        snapshots.marked.look()
        if snapshots.is_watching:
            return
        if (step := self._next_step(source, snapshots)) is not None:
            if step.mark is not None:
                for change in snapshots.marked.marks(step.control, step.mark):
                    self._publishing.everywhere(change, source.resume_timestamp())
            self._publishing.record(snapshots.stream.snapshot_key, step.control.to_json())
            snapshots.sees = self._publishing.commit_and_watch()
            return
        if self._record_removal([*snapshots.prunable(), *snapshots.fulfilled()]):
            snapshots.sees = self._publishing.commit_and_watch()
            return
        snapshots.close_stopped()
        if snapshots.unseen:
            # I3: the next to open them has to see how far they were published.
            snapshots.sees = self._publishing.commit_and_watch(snapshots.unseen)
            snapshots.unseen.clear()
            return
        snapshots.open_ready_segments(self._group.owned)
        snapshots.report_progress(self._bars.show if self._bars is not None else None)

    def _next_step(self, source: SourceState, snapshots: Snapshots) -> WriteControl | None:
        """Return what this worker has to write next for a snapshot. A stuck snapshot is set aside."""
        key = snapshots.stream.snapshot_key
        if not self._owns(key) or (key in source.set_aside.waiting() and not snapshots.is_stopped):
            return None
        try:
            step = snapshots.next_step()
            if step is not None and step.mark is not None:
                writers, tables = self._publishing.writers, snapshots.marked.of(step.control)
                writers.use([each for each in tables if (each.source, each.table) not in writers])
        except RelayError as error:  # I12: changes are published without the snapshot
            name = source.source.name
            stop = f"If it was requested, `relay snapshot CONFIG {name} --stop` stops it"
            source.set_aside.add(key, None, RelayError(f"source {name}: a snapshot cannot continue: {error}. {stop}"))
            return None
        if step is not None or snapshots.is_stopped:
            source.set_aside.forget(key)
        return step

    def _record_removal(self, keys: Sequence[bytes]) -> bool:
        """Remove this worker's records among ``keys`` with the next commit. Return whether there are any."""
        owned = list(filter(self._owns, keys))
        for key in owned:
            self._publishing.record(key, None)
        return bool(owned)

    def _owns(self, key: bytes) -> bool:
        return partition_of(key) in self._group.owned

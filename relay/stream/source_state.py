"""One source while it is being read: its stream, and all state of that stream that is committed and visible (I4)."""

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from relay.config.topic_routes import TopicClaims
from relay.errors import NoAnswer, RelayError, Unavailable, fault_of
from relay.kafka.checkpoints import partition_of
from relay.reading.reader_pool import OpenShard, ReaderPool
from relay.reading.set_aside import GapPending, Refusal, SetAside
from relay.records import (
    CommittedRecords,
    Lineage,
    Plan,
    ReshardJournal,
    SegmentCheckpoint,
    Shard,
    ShardCheckpoint,
    ShardState,
    StreamId,
    has_ended,
)
from relay.snapshots.control import repaired_by, unfinished_repairs
from relay.snapshots.lifecycle import Snapshots
from relay.source import Page, Source
from relay.stream import gap_decisions
from relay.stream.caught_up import CaughtUp
from relay.stream.discovery import JournaledShards, ListedShards
from relay.stream.journals import check_participants
from relay.stream.new_tables import NewTables
from relay.stream.open_shards import OpenShards
from relay.stream.planning import Planning
from relay.stream.progress import CommittedProgress
from relay.stream.pruning import replaced
from relay.stream.shard_checkpoints import ShardCheckpoints
from relay.stream.switching import Switching
from relay.stream.when_to_look import Look
from relay.table import TableSchema


class SourceState:
    """One source, which is connected to ``stream``. ``until_caught_up``: whether somebody asks if it is caught up.

    ``claims``: the topics of tables, which may not change.
    """

    def __init__(
        self,
        source: Source,
        stream: StreamId,
        view: CommittedRecords,
        readers: ReaderPool,
        claims: TopicClaims,
        *,
        until_caught_up: bool = False,
    ) -> None:
        self.source = source
        self.view = view
        self.readers = readers
        self.planning = Planning(source, view, claims)
        self._claims = claims
        self.switching = Switching(source, self.planning)
        self.look = Look(source.name, view, clock=readers.clock)
        # A relay that runs for ever never asks, and keeps nothing for the answer (I11).
        self.caught_up = CaughtUp(source.clock(), has_heads=source.has_journals) if until_caught_up else None
        self._read(stream)

    def _read(self, stream: StreamId) -> None:
        source = self.source
        self.committed = committed = self.view.of(stream)
        self.lineage = lineage = Lineage(committed)
        self.discovery: ListedShards | JournaledShards = (
            JournaledShards(lineage, clock=source.clock)
            if source.has_journals
            else ListedShards(source, lineage, since=self.caught_up.started if self.caught_up is not None else 0.0)
        )
        self.snapshots = Snapshots(self, source.snapshots, self.readers) if source.snapshots is not None else None
        self.set_aside = SetAside(committed, clock=self.readers.clock)
        self._progress = CommittedProgress(committed)
        self.new_tables = NewTables(source, committed, self._claims)
        latest = ShardCheckpoints(source, lineage, self.new_tables, self.snapshots)
        self.shards = OpenShards(source, latest, self.readers, self.set_aside, is_awaited=self.caught_up is not None)
        self._checked: Plan | None = None  # the plan that was checked last
        self._on_their_topics: set[str] = set()  # tables that have the topic of that plan
        self.look.soon()

    @property
    def stream(self) -> StreamId:
        return self.committed.stream

    @property
    def plan(self) -> Plan | None:
        return self.committed.plan

    def reload(self, entry: Any) -> None:
        self.source.reload(entry)
        self.planning.reloaded()

    # ------------------------------------------------------------------ which stream is read, and when it is looked at

    def choose_stream(self, *, is_alone: bool) -> None:
        """See ``Switching.choose``. Unless it ``is_alone``, a source whose stream is refused waits (I12)."""
        try:
            self._switch_to(self.switching.choose(self.committed))
        except Unavailable as error:
            if is_alone:
                raise NoAnswer(str(error)) from error  # it may answer later, when it is not alone
            self.switching.unchosen = error
            self.switching.retry_later(error)
            self._note_unchosen()

    def join_planned(self) -> bool:
        """See ``Switching.join_planned``. Return whether the source switches, or will."""
        if self.planning.is_asking and self.switching.chosen_elsewhere(self.committed) is not None:
            return True  # the source is still being asked
        if self._switch_to(self.switching.join_planned(self.committed)):
            return True
        self._note_unchosen()
        return False

    def _note_unchosen(self) -> None:
        """Report why no stream could be chosen, also after a rebalance, which clears what is set aside (I12)."""
        error, noted = self.switching.unchosen, self.set_aside.refusals.get(self.stream.plan_key)
        if error is not None and (noted is None or str(noted.error) != str(error)):
            self.set_aside.add(self.stream.plan_key, None, error)

    def advance(self) -> bool:
        """See ``Switching.advance``. Return whether the source switches."""
        return self._switch_to(self.switching.advance(self.committed, self.discovery, self.snapshots))

    def _switch_to(self, stream: StreamId | None) -> bool:
        """Read ``stream``, to which the source is connected, from now on. Return whether it does, or will."""
        if stream is not None:
            self.close_shards()
            if self.caught_up is not None:
                self.caught_up.keep(())
            self._read(stream)
        return stream is not None or self.switching.is_connecting

    @property
    def is_open(self) -> bool:
        return bool(self.shards.open or (self.snapshots is not None and self.snapshots.open))

    def begin_look(self) -> bool:
        if self._checked is None and not self.switching.is_connecting and self.plan is None:
            has_answers = not self.planning.is_asking
        else:
            snapshots = self.snapshots
            has_answers = (
                self.switching.is_connected
                or self.discovery.is_due
                or self.set_aside.has_news
                or (snapshots is not None and (snapshots.is_measured or snapshots.sees is not None))
            )
        return self.look.begin(has_answers=has_answers)

    def end_look(self) -> None:
        is_unsettled = (
            self._checked is None
            or self.switching.is_connecting
            or self.switching.is_waiting
            or self.discovery.successor is not None
            or not self._is_snapshot_settled()
        )
        next_answer = min(self.discovery.next_at, self.set_aside.next_try)
        self.look.end(next_answer=0.0 if is_unsettled else next_answer)

    # ------------------------------------------------------------------ the plan

    def check_plan(self) -> None:
        """Refuse a plan that contradicts the config or the table. Raises ``ConfigError``."""
        if (plan := self.plan) is None or plan is self._checked:
            return
        is_first, self._checked = self._checked is None, plan
        self._on_their_topics.clear()  # I2: `relay reset --moved` may have been run while this worker hung
        if is_first:
            tables = self.source.tables()
            with fault_of(self.source.name):
                self.planning.check(plan)
                self.planning.check_topics(self.new_tables.known_in(plan), (each.table for each in tables))
            self.new_tables.begin(plan, tables if self.source.has_journals else ())

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        if self.plan is not None:
            self.planning.check_tables(self.plan, tables)
            names = {each.table for each in tables} - self._on_their_topics
            if names:
                self.planning.check_topics(self.new_tables.known_in(self.plan), sorted(names))  # I2
                self._on_their_topics |= names
            self.new_tables.meet(self.plan, tables)

    def check_journal(self, shard: Shard, journal: ReshardJournal) -> None:
        if self.plan is not None:
            check_participants(journal, shard, self.plan, self.committed.checkpoints)

    # ------------------------------------------------------------------ shards and their pages

    def poll_listing(self, owned: set[int]) -> bool:
        """Keep the listing fresh, without waiting. Return whether a new one has arrived."""
        self.discovery.is_owner = partition_of(self.stream.listing_key) in owned
        with fault_of(self.source.name):  # I12: two journals may announce one shard
            has_arrived = self.discovery.poll()
        if has_arrived and self.caught_up is not None:
            self.caught_up.keep(self.lineage.listed.values())
        return has_arrived

    def list_soon(self) -> None:
        self.discovery.soon()
        self.look.ask_soon()

    def close_shards(self, lost: set[int] | None = None) -> None:
        """Close what is open in the ``lost`` partitions, or everything."""
        self.look.soon()
        self.shards.close(lost)
        if self.snapshots is not None:
            self.snapshots.close_segments(lost)
        self.set_aside.lose(lost)

    # ------------------------------------------------------------------ what is set aside

    def put_aside(self, shard: OpenShard, why: RelayError) -> None:
        name = shard.reader.shard.id
        self.set_aside.add(shard.key, name, why)
        if not shard.yields:
            self.shards.close_one(name)
        elif self.snapshots is not None:
            self.snapshots.close(name)
        self.look.soon()

    def try_again(self) -> None:
        """Retry what is due, except segments that are no longer read, and list again for a shard that listings lack."""
        current = self.snapshots.to_read if self.snapshots is not None else ()
        for key, each in self.set_aside.refusals.items():
            if each.name is not None and key == self.stream.segment_key(each.name) and each.name not in current:
                self.set_aside.forget(key)
        released, listed = self.set_aside.released(), self.lineage.listed
        if any(self._is_shard(key, each) and each.name not in listed for key, each in released.items()):
            self.list_soon()

    @property
    def refusal(self) -> Refusal | None:
        """Why no plan can be made for the stream, unless the plan waits for a decision about a gap."""
        found = self.set_aside.refusals.get(self.stream.plan_key)
        return None if found is None or isinstance(found.error, GapPending) else found

    def prunable(self) -> list[bytes]:
        """Return the checkpoint keys that nobody needs any longer."""
        if self.plan is None:
            return []
        now = self.source.clock()
        ended = map(self.stream.shard_key, self.lineage.prunable(now))
        return [*ended, *replaced(self.view, self.stream, now)]

    def checkpoint(self, shard: OpenShard, page: Page) -> ShardCheckpoint | SegmentCheckpoint | None:
        self.set_aside.read(shard.key, has_passed=page.gap is not None or page.has_content or page.finished)
        if shard.yields and self.snapshots is not None:
            return self.snapshots.checkpoint(page, self.new_tables.unplanned())
        return self.shards.latest.covering(page)

    def checkpoint_before_gap(self, page: Page) -> ShardCheckpoint | None:
        return self.shards.latest.before_gap(page)

    def confirm(self, page: Page) -> None:
        """Note how far ``page``, which is committed, shows its shard to be caught up."""
        if self.caught_up is not None:
            self.caught_up.note(page)

    # ------------------------------------------------------------------ gaps, and how far the stream is complete

    def gaps(self) -> Set[str]:
        """Return the ids of the known gaps of this stream, including the one it began with."""
        return self._own_gaps() | self._inherited_gaps()

    def gaps_to_repair(self) -> Set[str]:
        own = self._own_gaps()
        if self.source.on_gap != "resnapshot":
            own &= self.committed.decided_repairs
        return own | self._inherited_gaps()

    def _own_gaps(self) -> Set[str]:
        before = {self.plan.gap} if self.plan is not None and self.plan.gap is not None else set()
        return self._progress.gaps() | self.shards.latest.reported_gaps | before

    def _inherited_gaps(self) -> Set[str]:
        """Return the ids of gaps that the previous stream's snapshot was to repair but has not (I1: nobody waits)."""
        before = self.planning.before(self.stream)
        # The newest other stream is this one's successor if another worker has already switched to it.
        if before is None or before.stream.label > self.stream.label:
            return set()
        return unfinished_repairs(before)

    def resolved_gaps(self) -> list[bytes]:
        """Return the keys of pending gaps that are published and need no repair."""
        if not self.committed.pending_gaps:
            return []
        published = self._progress.gaps() | ({self.plan.gap} if self.plan is not None else set())
        return gap_decisions.resolved(self.committed, published, repaired_by(self.committed.control))

    def _is_snapshot_settled(self) -> bool:
        return self.snapshots is None or self.snapshots.is_settled()

    def resume_timestamp(self) -> int:
        return self._progress.resume_timestamp()

    def low_watermark(self) -> float | None:
        return self._progress.low_watermark(self.lineage) if self.plan is not None else None

    def is_caught_up(self) -> bool:
        """Whether every shard is published and committed up to the start of the command. False unless somebody asks."""
        if self.discovery.successor is not None or not self._is_snapshot_settled():
            return False
        if not all(self._is_over(shard) for shard in self.lineage.absent):
            return False  # it, or a child that the same listing lacks, may be listed again
        return self._is_read(self.lineage.listed)

    def is_stuck(self, owned: Set[int]) -> bool:
        """Whether this worker, which owns ``owned``, can read no more here: all else is set aside, or follows that."""
        checkpoints, lineage = self.committed.checkpoints, self.lineage
        if self.plan is None:
            return self.stream.plan_key in self.set_aside.refusals or partition_of(self.stream.plan_key) not in owned
        if self.switching.is_connecting or not self._is_snapshot_stuck(owned):
            return False
        if self.discovery.successor is not None and all(
            has_ended(checkpoints, name) for name in {*lineage.listed, *checkpoints}
        ):
            return False  # its successor is read next
        refused = {each.name for each in self.set_aside.refusals.values()}
        reached = {shard.id for shard in lineage.ready()} - refused
        if any(
            name in reached or not (has_ended(checkpoints, name) or lineage.is_gone(name))
            for name in self._owned(owned, lineage.absent)
        ):
            return False  # it will be read, or found to be gone
        return self._is_read(
            name for name in self._owned(owned, lineage.listed) if name in reached or has_ended(checkpoints, name)
        )

    def _is_snapshot_stuck(self, owned: Set[int]) -> bool:
        """Whether this worker can do nothing more for a snapshot, or has to wait for what is set aside."""
        snapshots = self.snapshots
        if snapshots is None:
            return True
        refused = self.set_aside.refusals
        if snapshots.sees is not None or snapshots.open or not refused.keys() >= set(snapshots.unread(owned)):
            return False
        if snapshots.is_settled():
            return True
        if self.stream.snapshot_key in refused or partition_of(self.stream.snapshot_key) not in owned:
            return True
        # It begins and ends only once the stream is published up to a certain time.
        is_held_up = any(self._is_shard(key, each) for key, each in refused.items()) or any(
            not has_ended(self.committed.checkpoints, name) and partition_of(self.stream.shard_key(name)) not in owned
            for name in self.lineage.listed
        )
        if snapshots.control is not None and snapshots.control.state is ShardState.READING:
            return is_held_up or not snapshots.is_read
        return is_held_up and self.source.has_journals and not snapshots.is_measured

    def _is_shard(self, key: bytes, refusal: Refusal) -> bool:
        """Whether the refusal concerns a shard of the stream, not a segment or the whole stream."""
        return refusal.name is not None and key == self.stream.shard_key(refusal.name)

    def _owned(self, owned: Set[int], shards: Iterable[str]) -> Iterator[str]:
        return (name for name in shards if partition_of(self.stream.shard_key(name)) in owned)

    def _is_read(self, shards: Iterable[str]) -> bool:
        """Whether the listed ``shards`` are published and committed up to the start of the command."""
        caught_up, checkpoints = self.caught_up, self.committed.checkpoints
        if caught_up is None or self.plan is None or self.discovery.listed_at < caught_up.started:
            return False
        if self.discovery.is_due:
            return False  # I1: the shards that continue an ended one may be unknown yet
        return all(
            caught_up.has(self.lineage.listed[name], checkpoints.get(name), self._listed_with_children(name))
            for name in shards
        )

    def _is_over(self, shard: str) -> bool:
        """Whether nothing of ``shard``, which listings lack, or of a child that they lack, too, is left to read."""
        checkpoint = self.committed.checkpoints.get(shard)
        is_read = checkpoint is None or (
            # I1: a single listing after its end may lack its children
            checkpoint.state.ended and self.discovery.listed_before > checkpoint.updated_at
        )
        return self.lineage.is_gone(shard) and is_read  # I1

    def _listed_with_children(self, shard: str) -> float:
        """Return when a listing began that would show the children of ``shard``."""
        if has_ended(self.committed.checkpoints, shard) and not self.lineage.children(shard):
            return self.discovery.listed_before  # I1: a single listing may lack them
        return self.discovery.listed_at

"""Turns pages into transactions: their changes, the checkpoints with them, and the recovery after an abort.

A page stays here, unconfirmed, until the commit that covers it. After an abort the pages of shards that are still open
are published again, in the same order (I1, I2).
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count, groupby
from typing import TYPE_CHECKING

from relay.change import Change, ChangeParts, SchemaChange
from relay.engine.altered_tables import AlteredTables
from relay.engine.repeated_aborts import RepeatedAborts
from relay.engine.topic_writers import TopicWriters
from relay.errors import RelayError
from relay.kafka.assignment import Assignment, NotAMember
from relay.kafka.checkpoints import partition_of
from relay.kafka.limits import record_size
from relay.kafka.producers import Producers
from relay.kafka.publisher import Aborted, TooSlow
from relay.kafka.schema_changes import statement_record
from relay.kafka.settings import KafkaSettings
from relay.kafka.topic_writer import TopicWriter
from relay.kafka.transaction import OpenTransaction
from relay.observe.observer import Observer
from relay.reading.reader_pool import OpenShard
from relay.reading.set_aside import GapPending
from relay.records import Gap, SegmentCheckpoint, ShardCheckpoint, ShardListing, SnapshotRequest, StreamId
from relay.snapshots.emptied_tables import EMPTYING
from relay.source import Page, Source
from relay.stream import gap_decisions
from relay.stream.source_state import SourceState
from relay.stream.watermark_records import WatermarkRecords, key_beside

if TYPE_CHECKING:
    from relay.native._core import ChangeBlock

log = logging.getLogger(__name__)

_LARGEST_LISTING = 1 << 20  # bytes, as many as a large page has. A shard takes about 120
_STATEMENT = 500  # characters of a statement in the gap that it makes; its own record has all


@dataclass(eq=False, slots=True)
class _Sent:
    """A page in the open transaction. ``before``: the checkpoint to commit before its gap, if it has one."""

    shard: OpenShard
    page: Page
    before: ShardCheckpoint | None = None
    checkpoint: ShardCheckpoint | SegmentCheckpoint | None = None
    is_covered: bool = False


class Publishing:
    """The open transaction and its pages. ``sources``: sources by name. ``producers``: the transactions' producers."""

    def __init__(
        self,
        settings: KafkaSettings,
        group: Assignment,
        sources: Mapping[str, SourceState],
        writers: TopicWriters,
        producers: Producers,
        *,
        observer: Observer,
    ) -> None:
        self.settings = settings
        self.writers = writers
        self.producers = producers
        self._group = group
        self._view = group.view
        self._sources = sources
        self._metrics, self._liveness = observer.metrics, observer.liveness
        # Published in the open transaction, in order.
        self._unconfirmed: list[_Sent] = []
        self._altered = AlteredTables(group.view)
        self._watermarks = WatermarkRecords()
        self._aborts = RepeatedAborts(settings, lambda: {*settings.limits, *writers.topics}, observer.liveness)
        producers.tell = self._aborts.unanswered
        producers.open()
        self.transaction = OpenTransaction(producers, group, timeout=settings.transaction_timeout)

    @property
    def waits(self) -> bool:
        """Whether anything waits for its commit (I10)."""
        return self.transaction.open or bool(self._unconfirmed)

    def page(self, shard: OpenShard, page: Page) -> None:
        """Publish ``page`` with its checkpoint, or put its shard aside if a person has to decide about a gap (I12)."""
        sent = _Sent(shard, page)
        try:
            if page.gap is not None:
                sent.before = self._sources[shard.source].checkpoint_before_gap(page)
                self._commit_before_gap(sent)
        finally:  # I1: also if that commit was aborted; otherwise nobody would publish the page again
            self._unconfirmed.append(sent)
        self._send(sent)

    def _commit_before_gap(self, sent: _Sent) -> None:
        """Commit the changes before a gap, whatever is decided about the gap."""
        if sent.before is not None:
            self.record(sent.shard.key, sent.before.to_json())
        self.commit()
        sent.before = None

    def put_aside(self, shard: OpenShard, why: RelayError) -> None:
        """Commit earlier pages, and close ``shard`` once they are visible: nobody may read them again (I3)."""
        self.commit()
        self._view.require_end({partition_of(shard.key)}, self._group.barrier_timeout)
        self._sources[shard.source].put_aside(shard, why)

    def gap(self, source: Source, gap: Gap) -> None:
        """Publish a gap once (I9). Raises ``GapPending`` with the policy ``fail``, until a person accepts the gap."""
        known = gap_decisions.find(self._view, gap)
        policy: str = known.decision if known is not None and known.decision is not None else source.on_gap
        if policy == "fail":
            decision = gap_decisions.decision_about(self.settings, self._view, gap, self._group.barrier_timeout)
            if decision is None:
                raise GapPending(gap)
            policy = decision
        said = "source %s: gap %s: %s; policy: %s"
        log.warning(said, source.name, gap.id, gap, policy, extra={"event": "gap"})
        self.transaction.begin()
        self.transaction.publisher.send(self.settings.gaps, gap.to_json(), gap.id.encode(), 0)
        self._metrics.count_gap(source.name, gap.reason)

    def watermarks(self, streams: Callable[[], Iterable[tuple[StreamId, float | None]]]) -> None:
        """Publish the low watermarks that are due. ``streams``: see ``WatermarkRecords.low``."""
        for key, value in self._watermarks.low(streams, self._group.owned):
            self.transaction.begin()
            self.transaction.require_owned(key)
            self.transaction.publisher.send(self.settings.watermarks, value, key, 0)

    def everywhere(self, change: Change, resume_timestamp: int, partitions: range | None = None) -> None:
        """Publish a change that concerns no single item to every partition of its topic, or to some."""
        self.transaction.begin()
        writer = self._writer(change.source, change.table)
        writer.send_to_all_partitions(self.transaction.publisher, change, resume_timestamp, partitions)

    def _writer(self, source: str, table: str) -> TopicWriter:
        writer = self.writers[source, table]
        if writer.topic in self._view.requested_of(source):
            # I2: not as many as the topic has or the config says: other workers may not use the new ones yet
            writer.spread(self._view.partitions_of(source).get(writer.topic, writer.partitions))
        return writer

    def record(self, key: bytes, value: bytes | None) -> None:
        self.transaction.record(key, value)

    def tell(self, key: bytes, listing: ShardListing) -> None:
        """Write ``listing`` in the open transaction, unless it is too large: then each worker lists shards (I10)."""
        value, allowed = listing.to_json(), self.settings.limits.get(self.settings.checkpoints, _LARGEST_LISTING)
        if record_size(value, key, []) <= min(allowed, _LARGEST_LISTING):
            self.record(key, value)

    def forget(self, key: bytes) -> None:
        """Remove a checkpoint or plan, and its watermark, in the open transaction."""
        self.record(key, None)
        if (watermark := key_beside(key)) is not None:
            self.transaction.publisher.send(self.settings.watermarks, None, watermark, 0)  # I11

    def commit(self) -> set[int]:
        """Commit what is open; return the checkpoint partitions written. Raises ``Aborted`` and similar errors."""
        was_open, begun = self.transaction.open, time.monotonic()
        written = self.transaction.commit()
        if was_open:
            self._metrics.count_commit(time.monotonic() - begun)
            if self._unconfirmed or not self._liveness.failures:  # I10: a listing may be written when no page can
                self._liveness.committed()
        # Includes pages without a checkpoint of their own, which share the position of the pages before.
        for sent in self._unconfirmed:
            self._sources[sent.shard.source].confirm(sent.page)
        self._unconfirmed.clear()
        self._altered.committed()
        self._watermarks.committed()
        return written

    def commit_and_watch(self, earlier: Set[int] = frozenset()) -> Callable[[], bool]:
        """Commit, and return a function that says whether the view shows that, and what ``earlier`` partitions had."""
        return self._view.watch(self.commit() | earlier)

    def commit_and_see(self) -> None:
        """Commit, and wait until the view shows the records, so that they are not written twice."""
        if written := self.commit():
            self._view.require_end(written, self._group.barrier_timeout)

    def again(self, why: Exception) -> None:
        """After an abort, publish the pages of open shards again. Raises ``Fenced`` and ``Unavailable``."""
        while True:
            try:
                was_open = self.transaction.open
                try:
                    self.transaction.abort()
                finally:  # a producer whose topic is gone may claim to be fenced, time after time
                    if not self._is_stopping:
                        self._aborts.aborted(str(why), slow=isinstance(why, TooSlow))
                if was_open:
                    self._metrics.count_abort()
                self._send_again([each for each in self._unconfirmed if not each.shard.closed])
                return
            except Aborted as error:
                why = error
                log.info("aborted again (%s)", error)
                if self._is_stopping or isinstance(error, TooSlow):
                    return  # the next commit fails again, and the group is served in between

    def _send_again(self, left: list[_Sent]) -> None:
        self._unconfirmed = []
        self._altered.aborted()
        self._watermarks.aborted()
        try:
            while left:
                sent = left[0]
                if sent.shard.closed:  # I1: an earlier page put its shard aside, which later pages must not overtake
                    del left[0]
                    continue
                self._metrics.count_retry(sent.shard.source)
                if sent.page.gap is not None:  # I9: its id contains its beginning, the same after a restart
                    self._commit_before_gap(sent)
                del left[0]
                self._unconfirmed.append(sent)
                self._send(sent)
                # I10: the pages may have been too many for one transaction.
                if left and not self.transaction.has_room_for(left[0].page.counts.size):
                    self.commit()
        finally:
            self._unconfirmed += left

    @property
    def _is_stopping(self) -> bool:
        return self.producers.stop_by() < math.inf

    def start_over(self, *, under_a_new_name: bool) -> None:
        """Drop everything uncommitted. Under the old name, this aborts an open transaction at once."""
        self._metrics.count_fencing()
        self._altered.start_over()
        self._watermarks.aborted()
        self._unconfirmed.clear()
        self.transaction.forget()
        self.producers.start_over(under_a_new_name=under_a_new_name)

    def close(self) -> None:
        """Abort an open transaction. Raises ``Aborted`` or ``Fenced``."""
        try:
            if self.transaction.open:
                self._metrics.count_abort()
            self.transaction.abort()
        finally:
            self.producers.close()
            self.producers.release()

    def _send(self, sent: _Sent) -> None:
        shard, page, owner = sent.shard, sent.page, self._sources[sent.shard.source]
        if (why := self._reason_to_wait(owner, page)) is not None:
            self._refuse(sent, why)
            return
        if page.changes:
            self._send_changes(owner, page, yields=shard.yields)
        if page.schema_changes:
            self._send_schema_changes(owner, page.schema_changes, partition_of(shard.key))
        if not sent.is_covered:  # I4: later, the checkpoint would also cover the pages sent after this one
            sent.checkpoint, sent.is_covered = owner.checkpoint(shard, page), True
        if (checkpoint := sent.checkpoint) is not None:
            self.record(shard.key, checkpoint.to_json())
            if isinstance(checkpoint, ShardCheckpoint):
                record = self._watermarks.of_shard(owner.stream, page.shard.id, checkpoint)
                if record is not None:
                    self.transaction.publisher.send(self.settings.watermarks, record[1], record[0], 0)

    def _reason_to_wait(self, owner: SourceState, page: Page) -> RelayError | None:
        """Return why nothing of ``page`` may be sent now. Otherwise send its gap, if it has one."""
        try:
            if page.changes and page.tables:
                owner.check_tables(page.tables)
            if page.journal is not None:
                owner.check_journal(page.shard, page.journal)
        except RelayError as error:  # I12
            return error
        if page.gap is not None and not self._is_reported(owner.stream, page.gap):
            try:
                self.gap(owner.source, page.gap)
            except GapPending as error:
                return error
        return None

    def _refuse(self, sent: _Sent, why: RelayError) -> None:
        """Put aside the shard of a page that was not sent at all."""
        self._unconfirmed.remove(sent)
        try:
            self.put_aside(sent.shard, why)
        except (Aborted, NotAMember):
            self._unconfirmed.append(sent)  # I1: the shard is still open, and its next page may have been read already
            raise

    def _send_changes(self, owner: SourceState, page: Page, *, yields: bool) -> None:
        self.transaction.begin()
        resume = owner.resume_timestamp()
        publisher, size, tables = self.transaction.publisher, 0, Counter[tuple[str, str]]()
        if page.tables:
            self.writers.use(page.tables)
        for (source, table, is_of_item), run in _runs(page.changes):
            writer = self._writer(source, table)
            tables[source, table] += len(run)
            if not is_of_item:
                for change in run:
                    writer.send_to_all_partitions(publisher, change, resume)
                continue
            kept = writer.dead_lettered
            size += writer.send_page(publisher, run, resume)
            for _ in range(writer.dead_lettered - kept):
                self._metrics.count_dead_letter(source)
        self.transaction.sent(size, yields=yields)
        if not yields:
            self.transaction.lag = time.time() - page.changes[-1].committed_at / 1_000_000
        self._metrics.count_page(owner.source.name, page, size, tables)

    def _send_schema_changes(self, owner: SourceState, changes: Sequence[SchemaChange], place: int) -> None:
        """Publish statements, and a gap of each table whose rows they may have changed without logging it.

        Request snapshots of these tables, or note that they need one. ``place``: the checkpoint partition of their
        shard. Only its owner does so, and only once (I3).
        """
        self.transaction.begin()
        topic, resume, relayed_at = self.settings.ddl, owner.resume_timestamp(), time.time_ns() // 1000
        largest = self.settings.limits.get(topic, math.inf)
        for change in changes:
            said = "source %s: %s in shard %s, transaction %s"
            log.info(said, change.source, change.kind, change.token.shard, change.transaction, extra={"event": "DDL"})
            value, key, headers = statement_record(change, resume, relayed_at, topic, largest)
            self.transaction.publisher.send(topic, value, key, 0, headers)
            self.transaction.sent(len(value), yields=False)
            at, after = change.committed_at / 1_000_000, change.token.timestamp
            names = (f"{after}-{change.event_id[:8]}{number:x}" for number in count())
            for each in change.tables:
                is_gone = each.renamed_to or change.kind in EMPTYING  # I10: perhaps no snapshot can read it any more
                if is_gone and each.table not in change.unseen:  # I12: or another has its name and rows now
                    for key in self._altered.forget(change.source, each.table, place):
                        self.record(key, None)
            for table, why in change.unseen.items():
                reason, found_at = f"table {table} {why}, which no change shows", float(after + 1)
                begin, text = {"gtid": change.transaction}, (change.shown or change.kind)[:_STATEMENT]
                gap = Gap(change.source, owner.stream.label, None, reason, begin, None, found_at, table, text)
                self.transaction.publisher.send(self.settings.gaps, gap.to_json(), gap.id.encode(), 0)  # I9
                noted = None if table in change.reread else gap
                made = (
                    SnapshotRequest(change.source, name, (table,), at, updated_at=at, after=after, gap=noted)
                    for name in names
                )
                request = next(each for each in made if partition_of(each.key) == place)
                self.record(request.key, request.to_json())
                if noted is not None:
                    for key in self._altered.add(change.source, table, place, request.key):
                        self.record(key, None)  # I11: the first says since when

    def _is_reported(self, stream: StreamId, gap: Gap) -> bool:
        """Whether ``gap`` is the last one of its shard, found again because nothing has been read there since then."""
        committed = self._view.of(stream).checkpoints.get(gap.shard or "")
        return committed is not None and committed.gap == gap.id


def _runs(changes: Sequence[Change]) -> Iterator[tuple[tuple[str, str, bool], list[Change] | ChangeBlock]]:
    """Return runs of changes to the same destination: source, table, and whether they are about items."""
    for part in changes.parts if isinstance(changes, ChangeParts) else [list(changes)]:
        if isinstance(part, list):
            # All changes that are not about items concern the table.
            for destination, run in groupby(part, lambda each: (each.source, each.table, each.key is not None)):
                yield destination, list(run)
        else:
            yield (part.source, part.table, True), part

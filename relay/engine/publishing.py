"""Pages become transactions: what is published, what is written down with it, and what happens after an abort.

A page stays here, unconfirmed, from its first record until the commit that covers it; after an abort the pages of the
shards that are still ours are published again, in the same order (I1, I2). Used by the worker's thread.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from relay.change import Change, Operation
from relay.engine import gap_decisions
from relay.engine.reader_pool import OpenShard
from relay.engine.snapshots import is_snapshot
from relay.engine.topic_writers import TopicWriters
from relay.engine.watermarks import Watermarks
from relay.errors import RelayError, Unavailable
from relay.kafka.assignment import Assignment
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.identity import Identity
from relay.kafka.publisher import Aborted, Fenced, Probe, Publisher
from relay.kafka.settings import KafkaSettings
from relay.kafka.transaction import OpenTransaction
from relay.lineage import Checkpoint, Gap, StreamId
from relay.observe.metrics import Metrics
from relay.source import Page, Source
from relay.table import TableSchema

log = logging.getLogger(__name__)

_BETWEEN_ABORTS = 0.05


class Reads(Protocol):
    """What pages are published for: the shards of a source, or the segments of its snapshots."""

    source: Source
    stream: StreamId
    open: dict[str, OpenShard]

    def checkpoint(self, page: Page) -> Checkpoint | None: ...
    def resume_timestamp(self) -> int: ...
    def note(self, page: Page) -> None: ...
    def before_gap(self, page: Page) -> Checkpoint | None: ...
    def check_tables(self, tables: Sequence[TableSchema]) -> None: ...
    def list_soon(self) -> None: ...


class Publishing:
    """The open transaction and what is in it. ``outboxes``: where the changes of (source, table) go.

    ``stop_by``: see ``Publisher``. ``probe``: called between the steps of a commit.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: Assignment,
        view: CheckpointView,
        outboxes: TopicWriters,
        *,
        metrics: Metrics,
        probe: Probe | None = None,
        stop_by: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.settings = settings
        self.outboxes = outboxes
        self._group = group
        self._view = view
        self._metrics = metrics
        self._probe = probe
        self._stop_by = stop_by
        # Published in the open transaction, in order.
        self._unconfirmed: list[tuple[Reads, OpenShard, Page]] = []
        # When the first of them was first published, by the monotonic clock.
        self._unconfirmed_since = 0.0
        self._watermarks = Watermarks()
        self._identity = Identity(settings.name)
        self._transaction = self._new_transaction()

    def __repr__(self) -> str:
        return f"<Publishing[{self._identity.transactional_id}: {len(self._unconfirmed)} pages unconfirmed]>"

    @property
    def open(self) -> bool:
        return self._transaction.open

    @property
    def unconfirmed_since(self) -> float | None:
        """Since when there are pages that are published and not committed, by the monotonic clock (I10)."""
        return self._unconfirmed_since if self._unconfirmed else None

    @property
    def is_long(self) -> bool:
        return self._transaction.is_long

    @property
    def linger(self) -> float:
        return self._transaction.linger if self.open else 0.0

    def page(self, reads: Reads, reading: OpenShard, page: Page) -> None:
        """Publish ``page`` and what is to be written down with it."""
        try:
            if page.gap is not None:
                # What came before the loss is kept, whatever is decided about it.
                if (before := reads.before_gap(page)) is not None:
                    self.record(reads.stream.checkpoint_key(page.shard.id), before.to_json())
                self.commit()
        finally:  # I1: also where that was aborted, or nobody would publish the page again
            if not self._unconfirmed:
                self._unconfirmed_since = time.monotonic()
            self._unconfirmed.append((reads, reading, page))
        self._send(reads, page)

    def gap(self, source: Source, gap: Gap) -> None:
        """Report lost changes once (I9), or write them down as pending and stop: they are for a person to accept."""
        known = gap_decisions.find(self._view, gap)
        policy: str = known.decision if known is not None and known.decision is not None else source.on_gap
        if policy == "fail":
            decision = gap_decisions.decided(self.settings, self._view, gap, self._group.barrier_timeout)
            if decision is None:
                raise RelayError(
                    f"source {source.name}: changes are lost: {gap.reason} at shard {gap.shard} of stream {gap.label} "
                    f"after {gap.begin or 'its start'} (gap {gap.id}). Nothing was skipped. "
                    f"`relay gaps accept CONFIG {gap.id} skip|resnapshot`: skip records the loss and goes on, "
                    "resnapshot also reads the table again. `on_gap` on the source decides for all losses to come."
                )
            policy = decision
        log.warning("source %s: gap %s: %s at shard %s: %s", source.name, gap.id, gap.reason, gap.shard, policy)
        self._transaction.begin()
        self._transaction.publisher.send(self.settings.gaps, gap.to_json(), gap.id.encode(), 0)
        self._metrics.gap(source.name, gap.reason)

    def watermarks(self, streams: Callable[[], Iterable[tuple[StreamId, float | None]]]) -> None:
        """Publish the low watermarks that are due. ``streams``: see ``Watermarks.low``."""
        for key, value in self._watermarks.low(streams, self._group.owned):
            self._transaction.begin()
            self._transaction.fence(key)
            self._transaction.publisher.send(self.settings.watermarks, value, key, 0)

    def everywhere(self, change: Change, resume_timestamp: int) -> None:
        """Publish a change that concerns no single item to every partition of its topic."""
        self._transaction.begin()
        self.outboxes[change.source, change.table].send_everywhere(
            self._transaction.publisher, change, resume_timestamp
        )

    def record(self, key: bytes, value: bytes | None) -> None:
        """Write a record of ``checkpoints`` in the open transaction."""
        self._transaction.record(key, value)

    def commit(self) -> set[int]:
        """Commit what is open; return the checkpoint partitions written. Raises ``Aborted`` and such."""
        was_open, begun = self.open, time.monotonic()
        written = self._transaction.commit()
        if was_open:
            self._metrics.committed(time.monotonic() - begun)
        # Pages that left nothing to write down are confirmed too: their position is that of the pages before.
        for reads, _, page in self._unconfirmed:
            reads.note(page)
        self._unconfirmed.clear()
        return written

    def commit_and_see(self) -> None:
        """Commit, and wait until the view shows it, so that it is not written twice."""
        written = self.commit()
        if written and not self._view.read_to_end(written, self._group.barrier_timeout):
            raise Unavailable(f"{self.settings.checkpoints} cannot be read to its end")

    def again(self) -> None:
        """After an abort: publish the pages of the shards that are still ours. Raises ``Fenced``."""
        while True:
            try:
                was_open = self.open
                self._transaction.abort()
                if was_open:
                    self._metrics.aborted()
                self._unconfirmed = [u for u in self._unconfirmed if u[0].open.get(u[2].shard.id) is u[1]]
                for reads, _, page in self._unconfirmed:
                    self._metrics.retried(reads.source.name)
                    self._send(reads, page)
                return
            except Aborted as error:
                log.info("aborted again (%s)", error)
                if self._stop_by() < math.inf:
                    return
                time.sleep(_BETWEEN_ABORTS)

    def start_over(self, *, under_a_new_name: bool) -> None:
        """Forget all that is not committed. Under the old name, what was left open is ended at once."""
        self._metrics.fenced()
        self._unconfirmed.clear()
        self._transaction.close()
        if under_a_new_name:
            self._identity.renew()
        self._transaction = self._new_transaction()

    def close(self) -> None:
        """Abort what a failure left open. Raises ``Aborted`` or ``Fenced``."""
        try:
            self._transaction.abort()
        finally:
            self._transaction.close()
            self._identity.release()

    def _send(self, reads: Reads, page: Page) -> None:
        if page.gap is not None and not self._was_told(reads.stream, page.gap):
            self.gap(reads.source, page.gap)
        if page.changes:
            self._transaction.begin()
            resume = reads.resume_timestamp()
            publisher, size = self._transaction.publisher, 0
            if page.tables:
                reads.check_tables(page.tables)
                self.outboxes.turn_to(page.tables)
            for change in page.changes:
                outbox = self.outboxes[change.source, change.table]
                if change.operation is Operation.TRUNCATE:
                    outbox.send_everywhere(publisher, change, resume)
                    continue
                kept = outbox.kept
                size += outbox.send(publisher, change, resume)
                if outbox.kept > kept:
                    self._metrics.dead_letter(change.source)
            self._transaction.size += size
            self._transaction.lag = time.time() - page.changes[-1].committed_at / 1_000_000
            self._metrics.page(reads.source.name, page, size)
        checkpoint = reads.checkpoint(page)
        if checkpoint is not None:
            self.record(reads.stream.checkpoint_key(page.shard.id), checkpoint.to_json())
            if not is_snapshot(reads.stream):
                record = self._watermarks.of_shard(reads.stream, page.shard.id, checkpoint)
                if record is not None:
                    self._transaction.publisher.send(self.settings.watermarks, record[1], record[0], 0)

    def _was_told(self, stream: StreamId, gap: Gap) -> bool:
        """Whether a loss is the last one of its shard, found again since nothing has been read there after it."""
        committed = self._view.checkpoints.get(stream, {}).get(gap.shard or "")
        return committed is not None and committed.gap == gap.id

    def _new_transaction(self) -> OpenTransaction:
        for _ in range(3):
            publishers: list[Publisher] = []
            try:
                publishers.extend(map(self._open_publisher, self._identity.transactional_ids))
                return OpenTransaction(publishers, self._group, self.settings.checkpoints)
            except (Aborted, Fenced) as error:
                log.info("%s is in use (%s)", self._identity.transactional_id, error)
                for publisher in publishers:
                    publisher.close()
                self._identity.renew()
        raise Unavailable(f"no transactional id can be had from {self.settings.client['bootstrap.servers']}")

    def _open_publisher(self, transactional_id: str) -> Publisher:
        return Publisher(self.settings.producer, transactional_id, probe=self._probe, stop_by=self._stop_by)

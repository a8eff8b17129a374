"""The worker: pages from the shards it owns become transactions on Kafka.

One thread does everything here, in one loop: serve the group, fence what was gained, open shards, publish
pages, commit. Reads happen in the pump's threads.
"""

from __future__ import annotations

import gc
import logging
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial

from relay.avro.registry import open_schemas
from relay.config import Config
from relay.engine.open_source import open_sources
from relay.engine.publishing import Publishing
from relay.engine.reader_pool import OpenShard, ReaderPool
from relay.engine.source_state import SourceState
from relay.engine.status import take
from relay.engine.topic_writers import TopicWriters, open_topic_writers
from relay.errors import RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.assignment import Assignment, NotAMember
from relay.kafka.checkpoints import CheckpointView, partition_of
from relay.kafka.limits import Limits
from relay.kafka.publisher import Abandoned, Aborted, Fenced, Probe
from relay.kafka.settings import KafkaSettings
from relay.observe.bars import SnapshotBars
from relay.observe.observer import Observer
from relay.observe.server import observing
from relay.observe.status import WorkerStatus
from relay.process.signals import Signals
from relay.source import Page, Source

log = logging.getLogger(__name__)

STOP_PATIENCE = 8.0
"""Seconds for which a stop waits for a broker that does not answer."""

_TURN = 0.05
_LOOK_EVERY = 0.01
"""Seconds between two looks at the group, the checkpoints and the sources while pages keep coming."""

# Failures in a row of one shard that are told of: not each, and not only the first.
_TELLING_FAILURES = {3, 10, 100, 1000, 10_000}


class Worker:
    """Relays ``sources`` until stopped or, if asked to, until caught up.

    ``outboxes``: where the changes of (source, table) go. ``observer``: is told what happens.
    ``probe``: called between the steps of a commit.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        sources: Sequence[Source],
        outboxes: TopicWriters,
        *,
        observer: Observer,
        until_caught_up: bool = False,
        probe: Probe | None = None,
    ) -> None:
        self.settings = settings
        self._observer = observer
        for source in sources:
            observer.metrics.source(source.name)
        self.until_caught_up = until_caught_up
        self.stopping: int | None = None
        self._reload: Callable[[], Config] | None = None
        self._stop_by = math.inf
        self._looked_at = 0.0
        self._is_done = False
        # Taken from the pump and not published yet.
        self._inbox: deque[tuple[OpenShard, Page]] = deque()
        self._pump = ReaderPool()
        self._view = CheckpointView(settings.client, settings.checkpoints)
        self._sources = [SourceState(source, self._view, self._pump) for source in sources]
        self._group = Assignment(
            settings.client, settings.group, self._view, transaction_timeout=settings.transaction_timeout
        )
        self._publishing = Publishing(
            settings,
            self._group,
            self._view,
            outboxes,
            metrics=observer.metrics,
            probe=probe,
            stop_by=lambda: self._stop_by,
        )

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End after the open transaction. Safe to call from a signal handler."""
        self._stop_by = time.monotonic() + STOP_PATIENCE
        self.stopping = signum

    def reload(self, read: Callable[[], Config]) -> None:
        """Take in the config that ``read`` gives, as far as sources can. Safe to call from a signal handler."""
        self._reload = read

    def run(self) -> None:
        """Relay. Raises ``RelayError`` on what is final; what is not committed is read again next time."""
        try:
            self._check_plans()
            while self.stopping is None:
                self._turn()
                if self._is_done and not self._publishing.open:
                    break
            self._commit_what_is_whole()
        finally:
            self._close()

    def _turn(self) -> None:
        self._observer.turn(self._status, fencing=bool(self._group.gained))
        try:
            if (now := time.monotonic()) - self._looked_at >= _LOOK_EVERY:
                self._looked_at = now
                self._look()
            # While a transaction is open its records are waited for: wait for no more, unless much comes.
            if not self._inbox:  # I11: what is taken no longer counts against the pump's budget
                self._inbox.extend(self._take(self._publishing.linger if self._publishing.open else _TURN))
            idle = not self._inbox
            while self._inbox and not self._publishing.is_long:
                self._publish(*self._inbox.popleft())
            # As long as the work waiting: at once when nothing more waits, up to a bound under load.
            if idle or not self._publishing.open or self._publishing.is_long:
                self._publishing.commit()
        except (Aborted, NotAMember) as error:
            log.info("the transaction was aborted (%s); its pages are published again", error)
            for source in self._sources:
                source.list_soon()  # the records of a listing may have been in it
            self._publish_again()
        except Fenced as error:
            for source in self._sources:
                source.list_soon()
            self._start_over(error)

    def _status(self, fencing_since: float | None) -> WorkerStatus:
        return take(self._group, self._sources, fencing_since, self._publishing.unconfirmed_since)

    def _take(self, timeout: float) -> list[tuple[OpenShard, Page]]:
        """Take what was read. Raises what a reader raised, once what it gave before is committed.

        A statement that is refused is passed by a reset to what follows it: what came before it must be out by then.
        """
        try:
            return self._pump.take(timeout)
        except RelayError:
            self._commit_what_is_whole()
            raise

    def _commit_what_is_whole(self) -> None:
        """Commit before the end, if that can be done: what is aborted is read again by whoever starts next."""
        with suppress(Aborted, Fenced, NotAMember):
            self._publishing.commit()

    def _look(self) -> None:
        self._serve_group()
        if self._reload is not None:
            read, self._reload = self._reload, None
            self._take_in(read)
        self._view.poll()
        self._look_after_sources()
        self._publishing.watermarks(lambda: [(s.stream, s.low_watermark()) for s in self._sources])
        self._is_done = self.until_caught_up and all(source.is_caught_up() for source in self._sources)

    def _take_in(self, read: Callable[[], Config]) -> None:
        """Hand each source its entry of a config that was read again; a config that is wrong changes nothing."""
        try:
            entries = {entry.name: entry for entry in read().sources}
        except RelayError as error:
            log.error("the config is wrong, so it stays as it was: %s", error)
            return
        for source in self._sources:
            if (entry := entries.pop(source.source.name, None)) is None:
                log.warning("source %s is no longer in the config: restart the relay", source.source.name)
                continue
            try:
                source.source.reload(entry)
            except RelayError as error:
                log.error("source %s stays as it was: %s", source.source.name, error)
        for name in entries:
            log.warning("source %s is new in the config: restart the relay", name)

    # ------------------------------------------------------------------ ownership

    def _check_plans(self) -> None:
        """Refuse a config that its own checkpoints contradict, before anything is read."""
        everything = range(topics.CHECKPOINT_PARTITIONS)
        if not self._view.read_to_end(everything, self._group.barrier_timeout):
            raise Unavailable(f"{self.settings.checkpoints} cannot be read to its end")
        for source in self._sources:
            source.go_back()
            source.check_plan()

    def _serve_group(self) -> None:
        lost = self._group.poll()
        if lost:
            log.info("gave up %d partitions", len(lost))
            for source in self._sources:
                source.forget(lost)
            if self._publishing.open:
                # In a rebalance every member's open transaction fails; this one may also hold what was lost.
                raise Aborted("partitions were taken away")
        if self._group.gained:
            self._publishing.commit()
            gained = self._group.fence()  # I3: barrier, then read; only after it are shards opened
            # What is known of a segment means something only beside its snapshot's control record.
            controls = {partition_of(source.snapshots.control_key) for source in self._sources}
            if gained and not self._view.read_to_end(controls, self._group.barrier_timeout):
                raise Unavailable(f"{self.settings.checkpoints} cannot be read to its end")
            log.info("took over %d partitions", len(gained))

    def _look_after_sources(self) -> None:
        """Plan, discover and open shards, and write down what that brings: for all sources in one transaction."""
        unplanned = [source for source in self._sources if source.plan is None]
        if sum(map(self._plan, unplanned)):
            self._publishing.commit_and_see()
        planned = [source for source in self._sources if source.plan is not None]
        for source in planned:
            source.check_plan()  # it may have been another worker's
            source.settle()
            if (plan := source.added_tables()) is not None and partition_of(source.plan_key) in self._group.owned:
                self._publishing.record(source.plan_key, plan.to_json())
                self._publishing.commit_and_see()
        going = [source for source in planned if not source.go_on()]
        listed = [source for source in going if source.discover()]
        if listed:
            self._publishing.commit_and_see()  # what a lost shard's checkpoint says is then the newest
            for source in listed:
                self._write_listing(source)
            self._publishing.commit_and_see()
        for source in going:
            source.open_ready(self._group.owned)
            self._look_after_snapshots(source)

    def _plan(self, source: SourceState) -> bool:
        """Write the plan of ``source``, if that is this worker's to do; return whether it did."""
        if partition_of(source.plan_key) not in self._group.owned:
            if source.is_stranded():
                log.warning(
                    "source %s: no worker has planned it: does the config of each one have it?", source.source.name
                )
            return False
        if source.waits:
            return False
        try:
            plan, gap = source.make_plan()
        except Unavailable as error:
            if not source.replaces:
                raise
            source.wait(error)
            return False
        if gap is not None:
            self._publishing.gap(source.source, gap)
        self._publishing.record(source.plan_key, plan.to_json())
        return True

    def _write_listing(self, source: SourceState) -> None:
        lost, prunable = source.ended(self._group.owned)
        for key, (checkpoint, gap) in lost.items():
            self._publishing.gap(source.source, gap)
            self._publishing.record(key, checkpoint.to_json())
        for key in prunable:
            self._publishing.record(key, None)
        for key, checkpoint in source.planned(self._group.owned).items():
            self._publishing.record(key, checkpoint.to_json())

    def _look_after_snapshots(self, source: SourceState) -> None:
        snapshots, owned = source.snapshots, self._group.owned
        if partition_of(snapshots.control_key) in owned and (step := source.snapshot_step()) is not None:
            control, mark = step
            if mark is not None:
                for change in snapshots.mark(control, mark):
                    self._publishing.everywhere(change, source.resume_timestamp())
            self._publishing.record(snapshots.control_key, control.to_json())
            self._publishing.commit_and_see()
        if prunable := snapshots.prunable(owned):
            for key in prunable:
                self._publishing.record(key, None)
            self._publishing.commit_and_see()
        if dealt_with := source.dealt_with(owned):
            for key in dealt_with:
                self._publishing.record(key, None)
            self._publishing.commit_and_see()
        snapshots.open_ready(owned)
        snapshots.tell(self._observer.bars.show if self._observer.bars else None)

    def _publish_again(self) -> None:
        try:
            self._publishing.again()
        except Fenced as error:
            self._start_over(error)

    def _start_over(self, reason: Fenced) -> None:
        """Forget all that is not committed: the fate of the last transaction must be read from Kafka."""
        log.warning("fenced (%s); starting over from the committed checkpoints", reason)
        for source in self._sources:
            source.forget()
        self._inbox.clear()
        self._group.refence()
        self._publishing.start_over(under_a_new_name=not isinstance(reason, Abandoned))

    def _publish(self, reading: OpenShard, page: Page) -> None:
        reads = (each for source in self._sources for each in (source, source.snapshots))
        source = next((each for each in reads if each.open.get(page.shard.id) is reading), None)
        if source is None:
            return  # closed since it was read
        self._observer.metrics.read(source.source.name, page)
        if page.gone:
            if source.source.has_journals:
                self._commit_what_is_whole()
                raise RelayError(
                    f"source {source.source.name}: shard {page.shard.id} is no longer there, and no journal told what "
                    "follows it: it was resharded and removed before it was read to its end. `relay reset CONFIG "
                    f"{source.source.name} --to ...` begins with the shards that there are, and records what is skipped"
                )
            source.list_soon()  # lost for good once two listings lack it
            self._pump.again(reading, 1.0)
            return
        if page.failed is not None:
            again = reading.wait_after(page)
            log.log(
                logging.WARNING if reading.failures in _TELLING_FAILURES else logging.DEBUG,
                "source %s: shard %s cannot be read, %d times in a row: %s; trying again in %.1f s",
                source.source.name,
                page.shard.id,
                reading.failures,
                page.failed,
                again,
            )
            self._pump.again(reading, again)
            return
        if not page.finished:
            self._pump.again(reading, reading.wait_after(page, self._pump.longest_wait))
        self._publishing.page(source, reading, page)

    def _close(self) -> None:
        with suppress(Aborted, Fenced, RelayError):
            self._publishing.close()
        self._group.close()  # at once, for whoever takes over: reads under way may take long to end
        self._view.close()
        self._pump.close()
        for source in self._sources:
            source.close()


def run(
    config: Config,
    *,
    until_caught_up: bool = False,
    settings: KafkaSettings | None = None,
    probe: Probe | None = None,
    reload: Callable[[], Config] | None = None,
) -> None:
    """Relay what ``config`` says, until SIGTERM (returns) or SIGINT (raises ``KeyboardInterrupt``).

    ``settings``: of the Kafka clients, those of the config unless given. ``reload``: reads the config again, on
    SIGHUP. Raises ``RelayError``. Call it from the main thread, for the signals' sake.
    """
    with Signals() as signals, observing(config) as observer, ExitStack() as opened:
        sources = open_sources(config)
        admin = topics.connect(config)
        for source in sources:
            source.connect()
        found = topics.ensure(admin, config, [table.table for source in sources for table in source.tables()])
        settings = settings or KafkaSettings.of(config)
        limits = Limits.of(found, settings.producer)
        settings = replace(settings, producer=limits.producer(settings.producer))
        # Open for as long as tables may change.
        schemas = opened.enter_context(closing(open_schemas(config)))
        tables = [table for source in sources for table in source.tables()]
        outboxes = open_topic_writers(config, admin, limits, settings, schemas, tables)
        worker = Worker(
            settings,
            sources,
            outboxes,
            observer=observer,
            until_caught_up=until_caught_up,
            probe=probe,
        )
        signals.stop = worker.stop
        if reload is not None:
            signals.reload = partial(worker.reload, reload)
        observer.bars = SnapshotBars.of_terminal()
        # What is made from here on lives for the time of a page and has hardly any cycles.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        try:
            worker.run()
        finally:
            if observer.bars is not None:
                observer.bars.close()
    if worker.stopping == signal.SIGINT:
        raise KeyboardInterrupt

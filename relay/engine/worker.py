"""The worker: publishes the pages of the shards it owns in Kafka transactions.

One thread serves the group, fences gained partitions, opens shards, publishes pages and commits, in one loop. Reads and
other slow calls happen in other threads, because the group expels a worker that does not serve it in time.
"""

import logging
import math
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress

from relay.engine.awaited_schemas import AwaitedSchemas
from relay.engine.config_reload import ReloadedConfig
from relay.engine.connected_sources import ConnectedSources
from relay.engine.publishing import Publishing
from relay.engine.same_sources import SameSources
from relay.engine.status import take
from relay.engine.topic_writers import TopicWriters
from relay.engine.upkeep import Upkeep
from relay.errors import ConfigError, NotDrained, RelayError, fault_of
from relay.kafka import topics
from relay.kafka.assignment import Assignment, NotAMember
from relay.kafka.checkpoints import CheckpointView, StopRequested, partition_of
from relay.kafka.producers import Producers
from relay.kafka.publisher import Abandoned, Aborted, Fenced, Probe
from relay.kafka.settings import KafkaSettings
from relay.observe.observer import Observer
from relay.observe.status import WorkerStatus
from relay.process.lost_often import ADVICE as LOST_OFTEN
from relay.process.supervisor import WORKER_NUMBER
from relay.reading.reader_pool import WARN_AT_FAILURES, OpenShard, ReaderPool, ReadOutcome
from relay.records import PartitionOwner, StreamId, partitions_key
from relay.source import Page, Source, UnknownShard, Unreadable
from relay.stream.lost_state import LostState
from relay.stream.source_state import SourceState

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""Seconds that a stop retries calls without an answer. The last call, and leaving the group, take up to 4 s more."""

_ASK_DONE_SHARE = 20  # the check whether all is caught up may take one part in this many of the time between two
_TURN_SECONDS = 0.05
_ASK_UNKNOWN_AGAIN = 1.0  # seconds
_SERVE_EVERY = 0.01  # seconds between two turns for the group, the checkpoints and the sources while pages arrive


class Worker:
    """Relays ``sources``, by their streams, until stopped, caught up if asked to, or one of ``connections`` is back."""

    def __init__(
        self,
        settings: KafkaSettings,
        sources: Mapping[StreamId, Source],
        writers: TopicWriters,
        *,
        observer: Observer,
        config: ReloadedConfig,
        connections: ConnectedSources,
        until_caught_up: bool = False,
        probe: Probe | None = None,
    ) -> None:
        self._observer = observer
        for source in sources.values():
            observer.metrics.add_source(source.name)
        self.stopping: int | None = None
        self._stop_by = math.inf
        self._served_at = 0.0
        self._is_serving = False
        self._connections = connections
        # Taken from the reader pool and not published yet.
        self._inbox: deque[tuple[OpenShard, ReadOutcome]] = deque()
        self._readers = ReaderPool()
        view = CheckpointView(settings.client, settings.checkpoints, stopping=lambda: self.stopping is not None)
        self._sources = {
            source.name: SourceState(
                source, stream, view, self._readers, config.config.claims, until_caught_up=until_caught_up
            )
            for stream, source in sources.items()
        }
        self._group = Assignment(
            settings.client, settings.group, view, transaction_timeout=settings.transaction_timeout
        )
        self._same_sources = SameSources(self._group, PartitionOwner(observer.process, config.config.hashes()))
        self._publishing = Publishing(
            settings,
            self._group,
            self._sources,
            writers,
            Producers(settings, probe=probe, stop_by=lambda: self._stop_by),
            observer=observer,
        )
        # The monotonic time at which to check next whether everything is caught up.
        self._ask_done_at = 0.0 if until_caught_up else math.inf
        self._is_done = self._is_back = False
        self._schemas = AwaitedSchemas(writers)
        self._upkeep = Upkeep(self._group, self._publishing, self._same_sources, config)
        self._debezium = {each.name for each in config.config.sources if each.is_debezium}

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End after the open transaction. Safe to call from a signal handler."""
        self._stop_by = time.monotonic() + STOP_SECONDS
        self.stopping = signum

    def run(self, lost: LostState | None = None) -> bool:
        """Relay until stopped. Return True unless the worker only ended because another source is back.

        ``lost``: refuses sources whose checkpoints are lost. Raises ``RelayError`` for what a retry cannot repair.
        """
        try:
            with suppress(StopRequested):  # while it waited for Kafka
                self._check_plans(lost)
                self._group.join()
                while self.stopping is None:
                    self._turn()
                    if self._is_back:
                        with suppress(Aborted, Fenced, NotAMember):
                            self._publishing.commit()
                        return False
                    if self._is_done and not self._publishing.transaction.open:
                        break
            self._drain()
        finally:
            self._close()
        return True

    def _turn(self) -> None:
        transaction = self._publishing.transaction
        self._observer.begin_turn(self._status, waits=self._publishing.waits or bool(self._group.gained))
        try:
            if self._is_serving:  # and was interrupted: errors of readers count even while each commit is aborted
                self._is_serving = False
            elif (now := time.monotonic()) - self._served_at >= _SERVE_EVERY:
                self._served_at = now
                self._is_serving = True
                self._serve()
                self._is_serving = False
            # Do not hold back the records of an open transaction to wait for more, unless much arrives.
            if not self._inbox:  # I11: taken pages no longer count against the pool's budget
                backlog = self._readers.has_backlog
                wait = transaction.linger(backlog=backlog) if transaction.open else _TURN_SECONDS
                self._receive(wait, snapshots=transaction.takes_rows)
            idle = not self._inbox
            while self._inbox and transaction.has_room_for(_size_of(self._inbox[0][1])):
                self._publish(*self._inbox.popleft())
            # Commit at once when nothing more waits; under load, the transaction grows up to a limit.
            if idle or self._inbox or not transaction.open or transaction.is_long:
                self._publishing.commit()
        except (Aborted, NotAMember) as error:
            log.info("the transaction was aborted (%s); publishing its pages again", error)
            for source in self._sources.values():
                source.list_soon()  # the transaction may have contained the records of a listing
            try:
                self._publishing.again(error)
            except (Fenced, NotAMember) as fenced:
                self._start_over(fenced)
        except Fenced as error:
            self._observer.liveness.failed(f"fenced: {error}")
            for source in self._sources.values():
                source.list_soon()
            self._start_over(error)

    def _status(self) -> WorkerStatus:
        absent = self._connections.refusals.values()
        topics = {table: writer.topic for table, writer in self._publishing.writers.items()}
        sources, delay = self._sources.values(), self._readers.delay
        return take(self._group, sources, self._same_sources, absent, delay, topics, self._debezium)

    def _receive(self, timeout: float, *, snapshots: bool) -> None:
        """Put results that may be published now into the inbox. Raises ``ConfigError``."""
        try:
            self._inbox.extend(self._schemas.let_through(self._readers.take(timeout, snapshots=snapshots)))
        except ConfigError:
            # The way past the error may be a reset to a later position: earlier changes must be published first.
            with suppress(Aborted, Fenced, NotAMember):
                self._publishing.commit()
            raise

    def _drain(self) -> None:
        """Commit what is open, and retry after an abort. Raises ``NotDrained`` if that takes too long."""
        reason: Exception | None = None
        while time.monotonic() <= self._stop_by:
            try:
                if reason is not None:
                    self._close_lost(self._group.poll(_TURN_SECONDS))
                    self._publishing.again(reason)
                self._publishing.commit()
                return
            except (Aborted, NotAMember) as error:
                reason = error
            except (Fenced, StopRequested) as error:
                reason = error
                break
        raise NotDrained(f"the open transaction was aborted ({reason}); the next start publishes it again") from reason

    def _serve(self) -> None:
        self._serve_group()
        self._group.view.poll()
        self._upkeep.serve(list(self._sources.values()))
        self._publishing.watermarks(self._low_watermarks)
        self._look_for_end()

    def _look_for_end(self) -> None:
        """Note whether all is caught up, or a source is back. Raises why nothing is left to do (I12)."""
        self._is_back = self._connections.is_one_back()
        if all(source.refusal is not None for source in self._sources.values()):
            self._publishing.commit()
            raise next(each.error for source in self._sources.values() if (each := source.refusal) is not None)
        if (now := time.monotonic()) >= self._ask_done_at:
            self._is_done = self._is_everything_read()
            self._ask_done_at = now + _ASK_DONE_SHARE * (time.monotonic() - now)

    def _is_everything_read(self) -> bool:
        """Whether everything is caught up. Raises the reason for what is set aside once nothing else is left."""
        if self._connections.is_connecting:
            return False
        refusals = [each for source in self._sources.values() for each in source.set_aside.refusals.values()]
        refusals += self._connections.refusals.values()
        is_caught_up = all(source.is_caught_up() for source in self._sources.values())
        if is_caught_up and not refusals:
            return True
        if self._inbox or not (refusals and (is_caught_up or self._is_stuck())):
            return False
        self._publishing.commit()
        error = min(refusals, key=lambda each: each.since).error
        # A supervisor restarts a worker that lacks something; after this error, it lets the other workers finish.
        raise RelayError(str(error)) if WORKER_NUMBER in os.environ else error

    def _is_stuck(self) -> bool:
        """Whether nothing is left that this worker can read."""
        group = self._group
        return group.joined and not group.gained and all(each.is_stuck(group.owned) for each in self._sources.values())

    def _low_watermarks(self) -> Iterator[tuple[StreamId, float | None]]:
        for source in self._sources.values():
            yield source.stream, source.low_watermark()
        # I1: nothing is known of all streams while one cannot be read.
        yield from ((StreamId(name, ""), None) for name in self._connections.refusals)

    # ------------------------------------------------------------------ ownership

    def _check_plans(self, lost: LostState | None) -> None:
        """Refuse a config that contradicts its checkpoints, and lost checkpoints, before anything is read."""
        view = self._group.view
        if lost is not None:
            lost.require_checkpoints(view, [each.source for each in self._sources.values()])
            for source in self._sources.values():
                source.planning.cluster = lost.cluster
        else:
            view.require_end(range(topics.CHECKPOINT_PARTITIONS), self._group.barrier_timeout)
        for name, source in self._sources.items():
            with fault_of(name):
                source.choose_stream(is_alone=len(self._sources) == 1)
                source.check_plan()
                newest = view.newest(name)
                if lost is not None and newest is not None and newest.plan is not None:
                    lost.require_partitions(newest.plan, view.requested_of(name))
        self._same_sources.warn_of_unread()

    def _serve_group(self) -> None:
        if self._group.gives_up:
            # Who takes over waits for the end of this transaction. If it fails, what is lost is not published again.
            with suppress(Aborted, NotAMember):
                self._publishing.commit()
        lost = self._group.poll()
        self._close_lost(lost)
        if lost and self._publishing.transaction.open:
            # A rebalance fails the open transaction of every member, and this one may contain lost shards.
            raise Aborted("partitions were taken away")
        if self._group.gained:
            self._publishing.commit()
            gained = self._group.fence()  # I3: barrier, then read; only then are shards opened
            # A segment's record means nothing without the control record of its snapshot.
            snapshots = [each.snapshots for each in self._sources.values() if each.snapshots is not None]
            controls = {partition_of(each.stream.snapshot_key) for each in snapshots}
            published = [(name, topic) for name in self._sources for topic in self._group.view.partitions_of(name)]
            # I2: the former owner may have said that it publishes nothing until a topic has more partitions.
            controls |= {partition_of(partitions_key(*each)) for each in published}
            # I2: a table may have moved to another topic while this worker hung.
            controls |= {partition_of(each.stream.plan_key) for each in self._sources.values()}
            if gained:
                self._group.view.require_end(controls, self._group.barrier_timeout)
            log.info("took over %d partitions", len(gained), extra={"event": "rebalance"})

    def _close_lost(self, lost: set[int]) -> None:
        if lost:
            log.info("gave up %d partitions", len(lost), extra={"event": "rebalance"})
            for source in self._sources.values():
                source.close_shards(lost)

    def _start_over(self, reason: Fenced | NotAMember) -> None:
        """Drop everything uncommitted: only Kafka knows whether the last transaction was committed."""
        log.warning("fenced (%s); starting over from the committed checkpoints", reason)
        for source in self._sources.values():
            source.close_shards()
        self._inbox.clear()
        self._schemas.forget()
        self._group.refence()
        self._publishing.start_over(under_a_new_name=not isinstance(reason, Abandoned | NotAMember))

    def _publish(self, shard: OpenShard, result: ReadOutcome) -> None:
        if shard.closed:
            return  # since the page was read
        state = self._sources[shard.source]
        source = state.source
        self._observer.metrics.count_read(source.name, result)
        match result:
            case RelayError():
                self._put_aside(shard, result)
            case Page():
                if not result.finished:
                    wait = shard.wait_after(result, self._readers.longest_wait)
                    self._readers.again(shard, wait, has_backlog=shard.has_backlog_after(result))
                self._publishing.page(shard, result)
            case Unreadable():
                wait = shard.wait_after(result)
                level = logging.WARNING if shard.failures in WARN_AT_FAILURES else logging.DEBUG
                said = "source %s: shard %s cannot be read, failure %d in a row: %s; retrying in %.1f s"
                log.log(level, said, source.name, result.shard.id, shard.failures, result.reason, wait)
                if shard.lost_often:
                    log.warning(LOST_OFTEN, source.name, result.shard.id, result.reason)
                self._readers.again(shard, wait)
            case UnknownShard():
                if not source.has_journals:
                    state.list_soon()  # two listings without the shard mean that it is gone
                    self._readers.again(shard, _ASK_UNKNOWN_AGAIN)
                    return
                why = (
                    f"source {source.name}: shard {result.shard.id} no longer exists, and no journal says which shards "
                    "continue it: it was resharded and removed before it was read to its end. Run `relay reset CONFIG "
                    f"{source.name} --to ...` to begin with the existing shards and record what that skips"
                )
                self._put_aside(shard, RelayError(why))

    def _put_aside(self, shard: OpenShard, why: RelayError) -> None:
        try:
            self._publishing.put_aside(shard, why)
        except (Aborted, NotAMember):
            shard.error = str(why)
            self._inbox.appendleft((shard, why))  # nothing else says that the shard is no longer read
            raise

    def _close(self) -> None:
        self._upkeep.close()
        with suppress(Aborted, Fenced, RelayError):
            self._publishing.close()
        self._group.close()  # first, so that others take over at once: reads under way may take long
        self._group.view.close()
        self._readers.close()
        for source in self._sources.values():
            source.source.close()


def _size_of(result: ReadOutcome) -> int:
    return result.counts.size if isinstance(result, Page) else 0

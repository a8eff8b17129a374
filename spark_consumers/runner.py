"""Runs one consumer: its batches, its retries and its stop.

Spark's checkpoint advances only after a batch, so one that failed is applied again; the sinks make that harmless.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from relay.avro.registry import open_schemas
from relay.config import Config
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import GroupOffsets, Offsets, up_to
from relay.observe.consumers import ConsumerWatch
from spark_consumers import kafka_source
from spark_consumers.applied_notes import Start, holes
from spark_consumers.causes import cause, with_full_disk
from spark_consumers.checkpoint import SWAP, ConsumerCheckpoint
from spark_consumers.consumer import Consumer
from spark_consumers.dead_letters import DeadLetterTopic, UnknownSchemas
from spark_consumers.decode import Decoder
from spark_consumers.kept_schemas import KeptSchemas
from spark_consumers.locations import Lock, lock_of
from spark_consumers.running import RETRY_DELAYS, log_event, pause
from spark_consumers.schema_wait import SchemaWait

_DRAIN_TIMEOUT = 60.0  # seconds for the running batch to end after a signal
_POLL = 0.1  # seconds
_LOOK = 15.0  # seconds between two looks for topics that were created again
_RESTART = 30.0  # seconds until a consumer that failed beside others is started again


class SparkEnded(RelayError):
    """Spark's JVM is gone, and without it this process can do nothing."""


class Stopped(Exception):
    """A signal came before this batch started."""


@dataclass(eq=False, repr=False)
class Runner:
    """Runs in one thread, except ``_apply_batch``, which Spark calls in a separate thread, batch after batch.

    Other threads see the attributes marked so. Each is one assignment of one reference, so none needs a lock.
    """

    consumer: Consumer
    config: Config
    checkpoint: ConsumerCheckpoint
    until_caught_up: bool
    watch: ConsumerWatch  # shared: has its own lock

    def __post_init__(self) -> None:
        # Shared: the signal that asked to stop, or 0. Set by the signal handler in the main thread.
        self.stopping = 0
        # Shared: the error that ended `keep_running`. Its thread sets this last.
        self.failure: BaseException | None = None
        # Shared, and set by the batches' thread. The runner changes the last three, too, but only while no query runs.
        self._is_applying = False
        self._applied_to: Offsets | None = None  # the end of the last applied batch
        self._batch_failure: BaseException | None = None  # the last batch's: Spark only reports its text
        self._attempts = 0  # failed ones at the current batch

    def stop(self, signum: int) -> None:
        """End after the running batch. Safe to call from a signal handler."""
        self.stopping = signum

    @cached_property
    def _kept(self) -> KeptSchemas:
        return KeptSchemas(self.checkpoint.folder, self.config)

    def refuse_start(self, start: str | None) -> None:
        if start is not None and self.checkpoint.exists:
            raise ConfigError(
                f"--from {start} only applies to a new checkpoint, but {self.checkpoint.location} already holds one: "
                "omit --from to resume it, or name another folder with --checkpoint"
            )

    def connect(self, stack: ExitStack) -> None:
        """Open everything except Spark's session and the Kafka group. ``stack``: closes it."""
        self._admin = topics.connect(self.config)  # raises a clear error if no broker can be reached
        self.schemas = stack.enter_context(contextlib.closing(open_schemas(self.config, lambda: self._kept.read())))
        self.schemas.refresh()
        # The cache makes up for a change that it cannot read, and later changes must not wait.
        waits = self.consumer.continuity is None
        self.schema_wait = SchemaWait(self.schemas, self.consumer.name, waits=waits)
        self.dead_letters = DeadLetterTopic(self.config, self.consumer.name, self.schemas)

    def begin(self, start: str | None, stack: ExitStack) -> None:
        """Store where a new checkpoint starts. Raises ``ConfigError`` if the checkpoint does not match its target."""
        if self.checkpoint.folder.read(SWAP) is not None:
            raise ConfigError(
                f"{self.checkpoint.location}: `relay replay {self.consumer.name} --swap` did not finish, so the "
                f"checkpoint may not match the target: run that command again first"
            )
        wanted = self._wanted_topics()
        # Shared from here on: Kafka's clients may be used by any thread.
        cache, http = self.consumer.cache, self.watch.address
        self.group = GroupOffsets(self.config, self.consumer.name, wanted, admin=self._admin, cache=cache, http=http)
        stack.callback(self.group.close)
        if not self.checkpoint.exists:
            wanted_offsets = self.group.resolve(start or "earliest", makes_up=self._makes_up)
            self.checkpoint.begin(self.group.locate(wanted_offsets)[0])
        if not self._makes_up:  # it handles missed changes
            self._ids = self.group.topic_ids()
            self.checkpoint.note_topics(self._ids)

    def run(self, session: SparkSession) -> None:
        self._attempts = 0
        self._applied_to = None  # the one of an earlier run may concern topics that are gone
        first, begins_at = self._begin(session)
        if not self.stopping:
            self._run_queries(session, json.dumps(first), begins_at)
        self.watch.stop()
        self._log_event("stopped")

    def _run_queries(self, session: SparkSession, starting: str, begins_at: Offsets) -> None:
        if self.group.http:
            self._report(begins_at)
        self.watch.start_at(begins_at)
        self._log_event("started", topics=self.group.topics, checkpoint=self.checkpoint.location)
        while not self.stopping and not self._run_query(session, starting):
            pass
        has_address, self.group.http = bool(self.group.http), ""  # nothing answers there any more
        if self._applied_to is not None:
            self._report(self._applied_to, wait=True)
        elif has_address:
            with contextlib.suppress(Unavailable):  # nothing else depends on it
                self._report(begins_at, wait=True)

    def keep_running(self, session: SparkSession) -> None:
        """Run, and restart after a failure unless a new start cannot help; that failure is kept in ``failure``."""
        # Otherwise a small batch of one consumer waits for all tasks of another one's large batch.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", self.consumer.name)
        while True:
            try:
                return self.run(session)
            except RelayError as error:
                if self.stopping or self.until_caught_up or isinstance(error, (ConfigError, SparkEnded)):
                    self.failure = error
                    self._log_event("failed", error=str(error))
                    self.watch.fail(str(error), for_good=True)
                    return None
                self._log_event("failed", error=str(error), wait=_RESTART)
                self.watch.fail(str(error))
                pause(_RESTART, lambda: self.stopping)
            except BaseException as error:
                self.failure = error
                self.watch.fail(repr(error), for_good=True)
                return None

    def take_locks(self, stack: ExitStack) -> list[Lock]:
        """Take the locks of the checkpoint and the sink, if they are on this machine. Raises ``Unavailable``."""
        folder = self.checkpoint.local
        own = None if folder is None else Lock(folder / "lock", f"the checkpoint {folder}")
        return [stack.enter_context(lock) for lock in (own, lock_of(self.consumer.location)) if lock is not None]

    def _begin(self, session: SparkSession) -> tuple[Offsets, Offsets]:
        """Let the consumer make up for changes that Kafka or its target shows it missed.

        Return where a new checkpoint begins, and where this one continues.
        """
        while True:
            try:  # I12: a checkpoint that cannot be read for a while ends neither this consumer nor others
                if self._makes_up:
                    self.group.topics = self._wanted_topics()  # one may have been deleted while it ran
                    self._ids = self.group.topic_ids()
                start = self._start()
                self.consumer.begin(session, start)
                begins_at = start.resume
                if start.removed or holes(start.first, start.resume) or start.resume.keys() - start.first.keys():
                    self.checkpoint.begin_anew(start.first)  # I6, I10: Spark only continues at its own offsets
                    begins_at = start.first
                break
            except (Unavailable, PySparkException, Py4JError, OSError) as error:
                self._retry_later(error, error)
                if self.stopping:
                    return {}, {}
        self._attempts = 0
        return start.first, begins_at

    @property
    def _makes_up(self) -> bool:
        return self.consumer.continuity is not None

    def _wanted_topics(self) -> list[str]:
        there = topics.list_topics(self._admin, self.config)
        return self.checkpoint.topics(self.consumer.topics, there, makes_up=self._makes_up)

    def _start(self) -> Start:
        resume = self.checkpoint.resume()
        first, ends = self.group.locate(resume)
        if self._makes_up:
            first = up_to(first, ends)  # I6: up to this point, a topic that was created again gets records
        refusal = self.group.other_cache() if self.consumer.cache else None
        return Start(resume, first, ends, self._ids, self.checkpoint.location, self.checkpoint.is_new, refusal)

    # ------------------------------------------------------------------ queries

    def _run_query(self, session: SparkSession, starting: str) -> bool:
        """Run a query until it ends; return False if another query must follow."""
        self._batch_failure = None
        query = None
        again: Mapping[str, str] = {}
        looked_at = -math.inf  # also after a failure, for example if a topic was missing for a moment
        try:
            query = self._start_query(session, starting)
            while not query.awaitTermination(_POLL):  # type: ignore[arg-type]
                if self.stopping:
                    self._drain(query)
                    return True
                if time.monotonic() - looked_at > _LOOK:
                    if again := self._created_again():  # I1, I6
                        query.stop()
                        break
                    looked_at = time.monotonic()
        except (PySparkException, Py4JError, OSError) as error:
            # A query that only lost its watcher would conflict with the next one at its checkpoint.
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                if query is not None and query.isActive:
                    query.stop()
            self._handle_failure(error)
            return bool(self.stopping)
        if again:  # an error of this request is not one of Spark's
            self._refuse(again)
        return True

    def _created_again(self) -> dict[str, str]:
        """Return the new ids of topics that were created again."""
        with contextlib.suppress(Unavailable):  # the answer is read again
            return created_again(self._ids, self.group.topic_ids())
        return {}

    def _refuse(self, again: Mapping[str, str]) -> None:
        """Raise ``RelayError`` for topics that were created again: Spark would continue at the old ones' offsets."""
        if self.consumer.continuity is None:
            self.checkpoint.note_topics(again)
        raise RelayError(
            f"{self.consumer.name}: topic {next(iter(again))} was deleted and created again, so some of its records "
            "may have been skipped: restart the consumer, which then invalidates the namespace"
        )

    def _start_query(self, session: SparkSession, starting: str) -> StreamingQuery:
        known = self.schemas.all()
        decoder = Decoder.of(self.config, known, self.schema_wait.given_up)
        with contextlib.suppress(OSError):  # such as a full disk, which Spark reports if it matters
            self._kept.note(known)
        # Until it has caught up, batches do not wait: to Spark, a waiting batch would look like the end.
        apply_every = None if self.until_caught_up else self.consumer.apply_every
        records = kafka_source.read(
            session, self.config, self.consumer.name, self.group.topics, starting, self.consumer.at_most, apply_every
        )
        found = self.consumer.stream(records, decoder)
        writer = found.writeStream.foreachBatch(self._apply_batch)
        writer = writer.option("checkpointLocation", self.checkpoint.spark)
        if self.until_caught_up:
            writer = writer.trigger(availableNow=True)
        elif self.consumer.interval:
            writer = writer.trigger(processingTime=self.consumer.interval)
        return writer.start()

    def _apply_batch(self, batch: DataFrame, number: int) -> None:
        self._is_applying = True
        begun = time.monotonic()
        try:
            if self.stopping:
                # The only safe place to stop: the checkpoint contains the batch before, and this one has not started.
                raise Stopped
            before, end = self.checkpoint.end_offsets(number - 1), self.checkpoint.end_offsets(number)
            if self.consumer.continuity is not None:
                self.consumer.continuity.start_at(before, lambda: self.group.locate({})[1])
            counts = self.consumer.apply(batch, number, self.dead_letters, before, end)
            applied_at = time.time()
            if self.consumer.continuity is not None:
                self.consumer.continuity.advance(end)  # before Spark's checkpoint or the group says so
            self._applied_to = end
            self._report(end)
            seconds = round(time.monotonic() - begun, 3)
            self._log_event("batch", batch=number, **counts, applied_at=applied_at, seconds=seconds, end_offsets=end)
            self.watch.count_batch(counts, seconds)
            self.watch.reach(end)
            self._attempts = 0
        except BaseException as error:
            self._batch_failure = error
            raise
        finally:
            self._is_applying = False

    def _report(self, end: Offsets, *, wait: bool = False) -> None:
        self.group.commit(end, ids=self._ids, wait=wait)  # I1: --from committed refuses them for other topics

    def _drain(self, query: StreamingQuery) -> None:
        """Stop a query between two batches. Exits with 143 if the running batch does not end in time."""
        deadline = time.monotonic() + _DRAIN_TIMEOUT
        # A running query ends at its next batch. An idle one has to be stopped.
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            while query.isActive:
                if time.monotonic() > deadline:
                    self._log_event("not drained", seconds=_DRAIN_TIMEOUT)
                    # An exception would run clean-up code that waits for the batch.
                    os._exit(143)
                if not query.status["isTriggerActive"] and not self._is_applying:
                    query.stop()
                time.sleep(_POLL / 5)

    # ------------------------------------------------------------------ failures

    def _handle_failure(self, error: Exception) -> None:
        """Return if the query may be restarted; otherwise raise."""
        failure = self._batch_failure
        if isinstance(failure, Stopped) or self.stopping:
            return
        if isinstance(error, (Py4JNetworkError, OSError)):
            raise SparkEnded(
                f"{self.consumer.name}: Spark's JVM ended unexpectedly ({cause(error)}): restart the consumer; "
                "it resumes from its checkpoint"
            ) from error
        if isinstance(failure, UnknownSchemas):
            try:
                self.schema_wait.wait(failure, lambda: self.stopping)
                return
            except Unavailable as unavailable:
                failure = unavailable  # the reason why they are not known
        if isinstance(failure, ConfigError):
            raise failure
        with contextlib.suppress(Unavailable, PySparkException, Py4JError, OSError):
            if removed := self._start().removed:  # no attempt can succeed
                raise RelayError(
                    f"{self.consumer.name}: {removed[0]} was removed from Kafka before it was applied: restart the "
                    "consumer, which then repairs the loss or says what to do. Also give the topic a longer retention"
                )
        self._retry_later(failure or error, error)

    def _retry_later(self, failure: BaseException, error: Exception) -> None:
        said = with_full_disk(cause(failure), self.checkpoint.location)
        if self._attempts == len(RETRY_DELAYS):
            if isinstance(failure, RelayError):
                raise failure
            raise RelayError(f"{self.consumer.name}: gave up after {self._attempts + 1} attempts: {said}") from error
        delay = RETRY_DELAYS[self._attempts]
        self._attempts += 1
        self._log_event("retry", attempt=self._attempts, wait=delay, error=said)
        self.watch.fail(said)
        pause(delay, lambda: self.stopping)

    def _log_event(self, event: str, **fields: Any) -> None:
        log_event(event, self.consumer.name, **fields)

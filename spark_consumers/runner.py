"""Running a consumer: start, batches, retries, stop.

Spark's checkpoint moves on only after a batch was applied, so a batch that failed, or that a crash cut off, is
applied again; the sinks make that harmless. How often a batch is tried and how long a stop may take is said here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from relay.avro.registry import open_schemas
from relay.config import Config
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from spark_consumers import kafka_source
from spark_consumers.dead_letters import UndecodableRecords, UnknownSchemas
from spark_consumers.decode import Decoder
from spark_consumers.locks import Lock
from spark_consumers.offsets import EARLIEST, ConsumerCheckpoint, Offsets, Positions, distance
from spark_consumers.session import close_session, open_session

_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between attempts at one batch
_DRAIN = 60.0  # seconds for the batch under way when told to stop
_POLL = 0.1
_GIST = 500  # characters of an error's gist


class Consumer(Protocol):
    """What a consumer is to the runner.

    ``at_most``: records a batch. ``interval``: Spark's processing time between batches, None for none.
    ``delta``: whether it writes Delta tables.
    """

    @property
    def name(self) -> str: ...
    @property
    def at_most(self) -> int: ...
    @property
    def interval(self) -> str | None: ...
    @property
    def delta(self) -> bool: ...
    @property
    def topics(self) -> Sequence[str]: ...

    def lock(self) -> Lock | None:
        """Return the lock that keeps a second driver out, None where the sink itself takes several."""

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        """Return what the consumer wants to know of each record."""

    def apply(self, frame: DataFrame, letters: UndecodableRecords, expected: int) -> dict[str, int]:
        """Apply one batch of at most ``expected`` records; return its counts, ``rows`` among them.

        May be given the same batch again.
        """

    def close(self) -> None: ...


class Stopped(Exception):
    """Told to stop before this batch began."""


def state_folder(config: Config, consumer: str) -> Path:
    """Return where a consumer keeps its checkpoint unless told otherwise."""
    base = os.environ.get("RELAY_STATE")
    return (Path(base) if base else Path.home() / ".local" / "state" / "relay") / config.name / consumer


def run(
    consumer: Consumer, config: Config, *, until_caught_up: bool, start: str | None, checkpoint: Path | None
) -> None:
    """Run until SIGTERM (returns), SIGINT (raises ``KeyboardInterrupt``), or, if asked, until caught up.

    Raises ``RelayError``. Call it from the main thread, for the signals' sake.
    """
    point = ConsumerCheckpoint((checkpoint or state_folder(config, consumer.name)).absolute())
    if start is not None and point.exists:
        raise ConfigError(
            f"--from {start} is for a new checkpoint, and {point.folder} has one: it says where to go on. "
            "Name another folder with --checkpoint, or leave out --from"
        )
    with ExitStack() as stack:
        runner = _Runner(consumer, config, point, until_caught_up, stack)
        with _signals(runner.stop):
            runner.run(start)
    if runner.stopping == signal.SIGINT:
        raise KeyboardInterrupt


class _Runner:
    def __init__(
        self, consumer: Consumer, config: Config, point: ConsumerCheckpoint, until_caught_up: bool, stack: ExitStack
    ) -> None:
        self.consumer = consumer
        self.config = config
        self.point = point
        self.until_caught_up = until_caught_up
        self.stack = stack
        self.stopping = 0
        # The exception of the last batch, which Spark hands on as text only.
        self._failure: BaseException | None = None
        self._busy = threading.Lock()
        self._attempts = 0
        self._end: Offsets | None = None

    def stop(self, signum: int) -> None:
        """End after the batch under way. Safe to call from a signal handler."""
        self.stopping = signum

    def run(self, start: str | None) -> None:
        locks = self._locked()
        topics.connect(self.config)  # which says why, if no broker can be reached
        self.positions = Positions(self.config, self.consumer.name, self.consumer.topics)
        self.stack.callback(self.positions.close)
        starting = self._begin(start)
        self.schemas = self.stack.enter_context(contextlib.closing(open_schemas(self.config)))
        self.schemas.refresh()
        self.letters = self.stack.enter_context(UndecodableRecords(self.config, self.consumer.name))
        self.stack.callback(self.consumer.close)
        session = open_session(
            f"relay {self.consumer.name}", delta=self.consumer.delta, keep_open=[lock.descriptor for lock in locks]
        )
        self.stack.callback(close_session, session)
        self._say("started", topics=list(self.consumer.topics), checkpoint=str(self.point.folder))
        while not self.stopping and not self._query(session, starting):
            pass
        if self._end is not None:
            self.positions.commit(self._end, wait=True)
        self._say("stopped")

    def _locked(self) -> list[Lock]:
        """Take the locks. The JVM is given them, too: it may outlive us by a moment, writing."""
        wanted = [Lock(self.point.folder / "lock", f"the checkpoint {self.point.folder}"), self.consumer.lock()]
        locks = [lock for lock in wanted if lock is not None]
        for lock in locks:
            lock.acquire()
            self.stack.callback(lock.release)
        return locks

    def _begin(self, start: str | None) -> str:
        """Return the starting offsets, writing them down if this is the first start."""
        partitions = self.positions.partitions()
        if not self.point.exists:
            self.point.begin(self.positions.resolve(start or "earliest"))
        offsets = self.point.start()
        for p in partitions:
            # Spark wants all partitions named, also those that have been added since.
            offsets.setdefault(p.topic, {}).setdefault(str(p.partition), EARLIEST)
        return json.dumps(offsets)

    # ------------------------------------------------------------------ one query after the other

    def _query(self, session: SparkSession, starting: str) -> bool:
        """Run a query until it ends; return whether that was the end of it all, or it has to be started again."""
        self._failure = None
        try:
            query = self._start(session, starting)
            while not query.awaitTermination(_POLL):  # type: ignore[arg-type]
                if self.stopping:
                    self._drain(query)
                    return True
        except (PySparkException, Py4JError, OSError) as error:
            self._after(error)
            return bool(self.stopping)
        return True

    def _start(self, session: SparkSession, starting: str) -> StreamingQuery:
        gaps = self.config.internal("gaps")
        registry = self.config.schema_registry is not None
        decoder = Decoder(self.schemas.all(), registry=registry, gaps=gaps)
        records = kafka_source.read(
            session, self.config, self.consumer.name, self.consumer.topics, starting, self.consumer.at_most
        )
        writer = self.consumer.stream(records, decoder).writeStream.foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", self.point.spark.as_uri())
        if self.until_caught_up:
            writer = writer.trigger(availableNow=True)
        elif self.consumer.interval:
            writer = writer.trigger(processingTime=self.consumer.interval)
        return writer.start()

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Apply one batch; called by Spark, in a thread of its own."""
        with self._busy:
            try:
                if self.stopping:
                    # Between two batches, the only place to stop: the one before is in the checkpoint by now.
                    raise Stopped
                before, end = self.point.end_offsets(number - 1), self.point.end_offsets(number)
                counts = self.consumer.apply(frame, self.letters, distance(before, end))
                applied_at = time.time()
                self._end = end
                self.positions.commit(self._end)
                self._say("batch", batch=number, **counts, applied_at=applied_at, end_offsets=self._end)
                self._attempts = 0
            except BaseException as error:
                self._failure = error
                raise

    def _drain(self, query: StreamingQuery) -> None:
        """Stop a query between two batches. Exit code 143 if the one under way does not end."""
        deadline = time.monotonic() + _DRAIN
        # A running query ends itself at its next batch. An idle one has none.
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            while query.isActive:
                if time.monotonic() > deadline:
                    self._say("not drained", seconds=_DRAIN)
                    # Not an exception: nothing may wait for the batch any more.
                    os._exit(143)
                if not query.status["isTriggerActive"] and not self._busy.locked():
                    query.stop()
                time.sleep(_POLL / 5)

    # ------------------------------------------------------------------ failures

    def _after(self, error: Exception) -> None:
        """Return if the query may be started again, else raise."""
        failure = self._failure
        if isinstance(failure, Stopped) or self.stopping:
            return
        if isinstance(error, (Py4JNetworkError, OSError)):
            raise RelayError(f"Spark's JVM ended: {_gist(error)}") from error
        if isinstance(failure, UnknownSchemas):
            try:
                # Looked up again, to the end of what is published.
                if all(self.schemas.lookup(header) is not None for header in failure.headers):
                    return
            except Unavailable as unavailable:
                failure = unavailable  # that is why they are not known
        if isinstance(failure, ConfigError):
            raise failure
        if self._attempts == len(_WAITS):
            if isinstance(failure, RelayError):
                raise failure
            raise RelayError(f"{self.consumer.name}: {_gist(failure or error)}") from error
        wait = _WAITS[self._attempts]
        self._attempts += 1
        self._say("retry", attempt=self._attempts, wait=wait, error=_gist(failure or error))
        self._sleep(wait)

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _say(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "consumer": self.consumer.name, **fields})
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _gist(error: BaseException) -> str:
    """Return one line of an error: Spark's go on for pages, with what happened at the end of them."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # PySpark asks the JVM for the text, and the JVM may be gone
        lines = []
    if not lines:
        return type(error).__name__
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if causes:
        return causes[-1][:_GIST]
    if len(lines) > 1 and isinstance(error, Py4JError):
        return lines[1].lstrip(": ")[:_GIST]
    return lines[0][:_GIST]


@contextmanager
def _signals(stop: Any) -> Iterator[None]:
    def handler(signum: int, frame: FrameType | None) -> None:
        stop(signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, previous in before.items():
            signal.signal(signum, previous)

"""The cache consumer without Spark: one plain process that reads all partitions of its topics.

The Kafka group's offsets are its checkpoint, committed only after a batch was applied. So any number of such processes
may run, also beside Spark. While a batch is applied, which partly means waiting for the store, the next is decoded.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from relay.avro.registry import open_schemas
from relay.cache.continuity import Continuity
from relay.cache.keys import ReducedChange
from relay.config import CacheConfig, Config
from relay.config.topic_names import topics_of_cache
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.committed import open_reader
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import GroupOffsets, Offsets, own_name, up_to
from relay.observe.consumers import ConsumerWatch
from relay.process.folders import state_folder
from spark_consumers.applied_notes import holes
from spark_consumers.cache_batches import CHUNK, CHUNK_BYTES, CacheWork, LagAlarm
from spark_consumers.consumer_http import served
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.kept_schemas import KeptSchemas
from spark_consumers.locations import LocalFolder
from spark_consumers.running import RETRY_DELAYS, log_event, no_garbage_collection, pause, signals
from spark_consumers.value_reader import KafkaRecord

_NAME = "cache"
_QUEUE_KILOBYTES = 32 << 10  # bytes that librdkafka fetches ahead
_MESSAGES = 512  # records taken from librdkafka at once
_FEW = 16  # bytes; a batch can hold the largest record
_POLL = 0.1  # seconds
_PATIENCE = 60.0  # seconds without progress after which --until-caught-up fails
_LOOK = 15.0  # seconds between two looks for new partitions, and for topics that were created again


def run(
    config: Config, cache: CacheConfig, *, until_caught_up: bool, start: str | None, http: str | None = None
) -> None:
    """Run the cache as `spark_consumers.run` does. ``start``: where a group without committed offsets starts."""
    with ExitStack() as stack:
        (watch,) = stack.enter_context(served(config, [(_NAME, topics_of_cache(config, cache))], http))
        consumer = _PythonConsumer(config, cache, watch)
        with signals(consumer.stop):
            consumer.run(stack, start, until_caught_up=until_caught_up)
    if consumer.stopping == signal.SIGINT:
        raise KeyboardInterrupt


@dataclass
class _Batch:
    """Records, the offsets up to which they reach, and what was ``decoded`` of them; None if that is to be repeated."""

    number: int
    records: Sequence[KafkaRecord]
    reached: Offsets
    decoded: tuple[list[ReducedChange], list[NonChangeRecord]] | None = None


class _PythonConsumer:
    """Runs in the thread that calls ``run``, except ``_apply_batch``, which a separate thread calls."""

    def __init__(self, config: Config, cache: CacheConfig, watch: ConsumerWatch) -> None:
        self._config = config
        self._work = CacheWork.of(config, cache)
        self._watch = watch
        self._continuity = Continuity(self._work.invalidator, config.name, self._work.rules.keys)
        self._alarm = LagAlarm(cache.tombstone_ttl)
        # The offsets up to which records were read, and up to which they were applied. The latter is one reference,
        # which only the other thread sets while there is a batch to apply.
        self._reached: Offsets = {}
        self._applied: Offsets = {}
        self._is_cut_off = False
        # The signal that asked to stop, or 0. Set by the signal handler.
        self.stopping = 0

    def stop(self, signum: int) -> None:
        """End after the running batch. Safe to call from a signal handler."""
        self.stopping = signum

    def run(self, stack: ExitStack, start: str | None, *, until_caught_up: bool) -> None:
        admin = topics.connect(self._config)  # raises a clear error if no broker can be reached
        cache, http = self._work.cache.place, self._watch.address
        self._group = GroupOffsets(self._config, _NAME, self._watch.topics, admin=admin, cache=cache, http=http)
        stack.callback(self._group.close)
        refusal = self._group.other_cache()
        first, ends = self._group.locate(self._first_offsets(start))
        # I6: not past the end; `Continuity.begin` makes up for that.
        self._reached = up_to(first, ends)
        kept = _kept_schemas(self._config)
        schemas = stack.enter_context(contextlib.closing(open_schemas(self._config, kept.read)))
        schemas.refresh()
        self._keep_schemas: Callable[[], None] = lambda: kept.note(schemas.all())
        self._reader = self._work.reader(schemas)
        self._dead_letters = DeadLetterTopic(self._config, _NAME, schemas)
        self._ids = self._group.topic_ids()
        if self._repeat(lambda: self._continuity.begin(self._ids, self._reached, ends, refusal)):
            self._group.commit(self._reached, ids=self._ids, wait=True)  # so that --from counts only once
            self._messages = self._open_reader()
            stack.callback(self._messages.close)
            self._watch.start_at(self._applied)
            log_event("started", _NAME, topics=self._group.topics, group=self._group.group)
            self._consume(ends if until_caught_up else None)
            self._group.http = ""  # nothing answers there any more
            self._group.commit(self._applied, ids=self._ids, wait=True)  # I1: for --from committed:GROUP
        self._watch.stop()
        log_event("stopped", _NAME)

    def _first_offsets(self, start: str | None) -> Offsets:
        """Return the group's offsets, or if it has none, ``start``'s."""
        committed = self._group.committed()
        if committed is None:
            return self._group.resolve(start or "earliest")
        if start not in (None, "committed"):
            raise ConfigError(
                f"--from {start} only applies to a group without committed offsets, but {self._group.group} has some: "
                "omit --from to resume there, or delete them with `kafka-consumer-groups --delete-offsets`"
            )
        return committed

    def _open_reader(self) -> Consumer:
        settings = {
            "auto.offset.reset": "error",  # removed records are missed invalidations
            "queued.max.messages.kbytes": _QUEUE_KILOBYTES,
            "error_cb": self._note_error,
        }
        reader = open_reader(self._config, _NAME, self._group.group, settings)
        self._assign(reader)
        return reader

    def _assign(self, reader: Consumer) -> None:
        """Continue after the applied offsets. Records that were removed unread are then an error, and not skipped."""
        self._applied = {topic: dict(offsets) for topic, offsets in self._reached.items()}
        reader.assign(
            [TopicPartition(t, int(p), offset) for t, offsets in self._reached.items() for p, offset in offsets.items()]
        )

    # ------------------------------------------------------------------ batches

    def _consume(self, ends: Offsets | None) -> None:
        number, advanced_at, looked_at = 0, time.monotonic(), time.monotonic()
        submitted = self._applied
        with ThreadPoolExecutor(1, "apply") as applying:
            running: Future[bool] = applying.submit(lambda: True)
            while not self.stopping and (ends is None or holes(self._applied, ends)):
                batch = self._read_batch(number)
                now = time.monotonic()
                if batch.reached != submitted:
                    advanced_at = now
                    # Errors here occur again where this is repeated.
                    with contextlib.suppress(RelayError), no_garbage_collection():
                        batch.decoded = self._reader.read(batch.records)
                    if not running.result():
                        return
                    running = applying.submit(self._repeat, partial(self._apply_batch, batch))
                    submitted = batch.reached
                    number += bool(batch.records)
                elif ends is not None and now - advanced_at > _PATIENCE:
                    raise Unavailable(
                        f"{_NAME}: cannot read the topics to their ends: nothing arrived for {_PATIENCE:g} s"
                    )
                is_due = now - looked_at > _LOOK
                is_last = ends is not None and not holes(submitted, ends)
                # I1: with new partitions, what was read would count as applied.
                if (is_due or running.done() or is_last) and not running.result():
                    return
                if is_due:
                    looked_at = now
                    self._look_for_partitions()
                    submitted = self._applied
            running.result()

    def _read_batch(self, number: int) -> _Batch:
        """Return the records that have arrived, about a batch at most, and advance the reached offsets."""
        records: list[KafkaRecord] = []
        ends: dict[tuple[str, int], int] = {}
        size = 0
        messages = self._messages.consume(1, _POLL)
        while messages:
            self._is_cut_off = False
            for message in messages:
                error = message.error()
                topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
                if error is None:
                    records.append((topic, partition, offset, message.value()))
                    size += len(message)
                    offset += 1
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise self._failure(message, error)
                # The end of a partition lies behind the marker of its last transaction, which is never delivered.
                ends[topic, partition] = offset
            if len(records) >= CHUNK or size > CHUNK_BYTES:
                break
            messages = self._messages.consume(_at_most(len(records), size), 0)
        for (topic, partition), end in ends.items():
            self._reached[topic][str(partition)] = end
        return _Batch(number, records, {topic: dict(offsets) for topic, offsets in self._reached.items()})

    def _failure(self, message: Message, error: KafkaError) -> RelayError:
        where = f"{message.topic()}[{message.partition()}]" if message.topic() else "the topics"
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return RelayError(
                f"{_NAME}: records of {where} were removed before they were applied: restart the consumer, which then "
                "invalidates the namespace, and give the topic a longer retention"
            )
        return Unavailable(f"{_NAME}: cannot read {where}: {error.str()}")

    def _apply_batch(self, batch: _Batch) -> None:
        counts, begun = None, time.monotonic()
        if batch.records:
            self._continuity.start_at(self._applied, lambda: self._group.locate({})[1])
            with no_garbage_collection():
                changes, others = batch.decoded or self._reader.read(batch.records)
                batch.decoded = None  # an unknown schema may be known at the next attempt
                outcome = self._work.apply(changes, others, len(batch.records), self._continuity.published_since)
                counts = self._work.conclude(outcome, self._dead_letters, self._alarm)
        applied_at = time.time()
        with contextlib.suppress(OSError):  # such as a file system that is read-only
            self._keep_schemas()
        self._continuity.advance(batch.reached)  # before the group says so
        self._applied = batch.reached
        self._group.commit(batch.reached, ids=self._ids)
        if counts is not None:
            times = {"applied_at": applied_at, "seconds": round(time.monotonic() - begun, 3)}
            log_event("batch", _NAME, batch=batch.number, **counts, **times, end_offsets=batch.reached)
            self._watch.count_batch(counts, times["seconds"])
        self._watch.reach(batch.reached)

    def _repeat(self, attempt: Callable[[], object]) -> bool:
        """Call ``attempt`` until it succeeds; return False if a signal came first. Raises its last failure."""
        for number, delay in enumerate(RETRY_DELAYS, 1):
            try:
                attempt()
                return True
            except ConfigError:
                raise
            except RelayError as failure:
                log_event("retry", _NAME, attempt=number, wait=delay, error=str(failure))
                self._watch.fail(str(failure))
            if pause(delay, lambda: self.stopping):
                return False
        attempt()
        return True

    # ------------------------------------------------------------------ offsets

    def _look_for_partitions(self) -> None:
        with contextlib.suppress(Unavailable):  # it has the same effect later
            if again := created_again(self._ids, self._group.topic_ids()):  # I6: the offsets are of other records
                raise RelayError(
                    f"{_NAME}: topic {next(iter(again))} was deleted and created again, so some of its records may "
                    "have been skipped: restart the consumer, which then invalidates the namespace"
                )
            found = self._group.partitions()
            if len(found) != sum(map(len, self._reached.values())):
                for each in found:
                    self._reached[each.topic].setdefault(str(each.partition), 0)  # I9: not where it begins by now
                self._assign(self._messages)

    def _note_error(self, error: KafkaError) -> None:
        """Log once that the brokers are gone. The client calls this while it is polled."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._is_cut_off:
            self._is_cut_off = True
            log_event("unreachable", _NAME, error=f"{self._config.kafka.bootstrap_servers}: {error.str()}")


def _kept_schemas(config: Config) -> KeptSchemas:
    """Return the stored schemas in the folder that a Spark checkpoint would have, or in none without a home folder."""
    with contextlib.suppress(Unavailable):
        return KeptSchemas(LocalFolder((state_folder() / config.name / own_name(config, _NAME)).absolute()), config)
    return KeptSchemas(LocalFolder(Path(os.devnull)), config)


def _at_most(count: int, size: int) -> int:
    """Return how many messages to take next if they are as large as the last ``count`` of ``size`` bytes."""
    if not size:
        return _FEW
    return max(1, min(_MESSAGES, (CHUNK_BYTES - size) * count // size))  # I11

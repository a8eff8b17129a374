"""Reads ``<name>.checkpoints``: the murmur2 hash of a key gives a record's partition, and the owner of its shard."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import lru_cache, partial
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from relay.config import Config
from relay.errors import RelayError, Unavailable, checkpoints_deleted, group_refused
from relay.kafka.freshness import Freshness, Moment
from relay.kafka.keys import partition
from relay.kafka.partition_offsets import refresh_metadata
from relay.kafka.topics import CHECKPOINT_PARTITIONS, connect, list_topics
from relay.kafka.transient_errors import is_transient
from relay.records import CommittedRecords, owner_key

log = logging.getLogger(__name__)

_READ_PATIENCE = 60.0  # seconds without progress after which a command stops waiting
TELL_AFTER = 2.0  # seconds without progress
_ASK_TIMEOUT = 5.0  # seconds, for the end offsets


@lru_cache(maxsize=1 << 16)
def partition_of(key: bytes) -> int:
    return partition(key, CHECKPOINT_PARTITIONS)


OWNER_KEYS = {partition_of(key): key for key in map(owner_key, range(512))}
"""The key of the record that names the owner of each partition."""


def read_checkpoints(client: Mapping[str, Any], topic: str, patience: float = _READ_PATIENCE) -> CheckpointView:
    """Return a closed view that has read ``topic`` to its end. Raises as ``require_end`` does."""
    with closing(CheckpointView(client, topic)) as view:
        view.require_end(range(CHECKPOINT_PARTITIONS), patience)
        return view


def committed_records(config: Config, admin: AdminClient | None = None) -> CommittedRecords:
    """Return what the relay of ``config`` has committed: nothing before its first run. Raises ``Unavailable``."""
    topic = config.internal("checkpoints")
    if topic not in list_topics(admin or connect(config), config):
        return CommittedRecords()
    return read_checkpoints(config.kafka.client(), topic)


def requested_partitions(config: Config, admin: AdminClient) -> Mapping[str, int]:
    """Return, by topic, the numbers that `relay repartition` has requested. Raises ``Unavailable``."""
    requested = committed_records(config, admin).requested_partitions.values()
    return {topic: each.partitions for of_source in requested for topic, each in of_source.items()}


class StopRequested(Exception):
    """The relay was asked to stop while it waited for Kafka. Nothing was written during that wait."""


class CheckpointView(CommittedRecords):
    """A read_committed copy of all partitions of the checkpoints topic, whoever owns them. Used by one thread.

    Reading raises ``MissedDeletions`` if the view has to be rebuilt, and ``StopRequested`` once ``stopping`` is true.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        *,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.group = f"{topic}.view"  # the group is never joined or committed to
        self.stopping = stopping
        self.clock = clock
        self.records = 0  # the number of records read
        # The next offset to read, per partition; also moves past transaction markers.
        self.positions = dict.fromkeys(range(CHECKPOINT_PARTITIONS), 0)
        # The last record read of each key, not yet applied: later records replace most of the earlier ones.
        self._unapplied: dict[bytes, tuple[int, int, bytes | None]] = {}
        self._admin = AdminClient(dict(client))
        self.freshness = Freshness(
            topic, self.positions, partial(self._ask_ends, list(self.positions)), clock=clock, wall=wall
        )
        self._consumer = Consumer(
            {
                **client,
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                # Fetch in batches: otherwise the broker would look at all partitions for every transaction.
                "fetch.wait.max.ms": 100,
                "fetch.min.bytes": 1 << 20,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, 0) for p in self.positions])

    def close(self) -> None:
        self._consumer.close()

    def poll(self, timeout: float = 0.0) -> None:
        """Apply the records that have arrived; wait up to ``timeout`` seconds for the first."""
        self._take(timeout)
        self.freshness.poll()
        self._apply()

    def read_to_end(self, partitions: Collection[int], timeout: float) -> bool:
        """Read ``partitions`` to their present ends; return False if that takes longer than ``timeout`` seconds.

        The end is the high watermark, not the last stable offset: the markers of a just committed transaction may reach
        this topic later than the group's offsets, and until then a reader would miss its records (I3).
        """
        asked_at, deadline = self.freshness.now(), self.clock() + timeout
        ends = self._ends(partitions, deadline)
        if ends is None:
            return False
        while self._missing(ends) and self.clock() <= deadline:
            self.check_stop()
            self._take(0.02)
        return self._finish(ends, asked_at)

    def require_end(self, partitions: Collection[int], patience: float) -> None:
        """Read ``partitions`` like `read_to_end`. Raises ``Unavailable`` if ``patience`` seconds bring no progress."""
        asked_at = self.freshness.now()
        ends = self._ends(partitions, self.clock() + patience)
        if ends is None:
            raise Unavailable(f"cannot read topic {self.topic}: no answer about its end offsets for {patience:.0f} s")
        advanced_at = self.clock()
        before: dict[int, int] = {}
        is_told = False
        # Only the missing partitions count as progress: others may grow for ever.
        while missing := self._missing(ends):
            waited = self.clock() - advanced_at
            if missing != before:
                advanced_at, before = self.clock(), missing
            elif waited > patience:
                what = f"no progress for {patience:.0f} s in {_listed(missing, ends)}"
                raise Unavailable(f"cannot read topic {self.topic} to its end: {what}")
            elif waited > TELL_AFTER and not is_told:
                is_told = True
                said = "topic %s: waiting up to %.0f s for the transaction of another worker to end in %s"
                log.info(said, self.topic, patience, _listed(missing, ends))
            self.check_stop()
            self._take(0.02)
        self._finish(ends, asked_at)

    def require_topic(self) -> None:
        asked = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=1.0)
        try:
            asked[self.topic].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise checkpoints_deleted(self.topic) from error

    def watch(self, partitions: Collection[int]) -> Callable[[], bool]:
        """Return a function that says, without waiting, whether the view has all that is in ``partitions`` now."""
        asked = self._ask_ends(partitions, _ASK_TIMEOUT)
        ends: dict[int, int] | None = None

        def is_seen() -> bool:
            nonlocal asked, ends
            if ends is None and all(future.done() for future in asked.values()):
                ends = self._answered(asked)
                if ends is None:
                    asked = self._ask_ends(partitions, _ASK_TIMEOUT)
            return ends is not None and not self._missing(ends) and not self._unapplied  # I3

        return is_seen

    def _finish(self, ends: Mapping[int, int], asked_at: Moment) -> bool:
        """Apply the records read so far; return whether they include everything before ``ends``."""
        missing = self._missing(ends)
        for p in ends.keys() - missing.keys():
            self.freshness.reached(p, asked_at)
        self._apply()
        return not missing

    def _missing(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return the partitions not yet read to ``ends``, with the next offset of each."""
        return {p: at for p, end in ends.items() if (at := self.positions[p]) < end}

    def _ends(self, partitions: Collection[int], deadline: float) -> dict[int, int] | None:
        """Return the high watermarks, or None if the broker does not answer in time."""
        timeout = 1.0
        while True:
            if (ends := self._answered(self._ask_ends(partitions, timeout))) is not None:
                return ends
            if self.clock() > deadline:
                return None
            self.check_stop()
            refresh_metadata(self._admin)
            timeout = min(2 * timeout, 5.0)
            time.sleep(0.1)

    def _answered(self, asked: Mapping[TopicPartition, Future[Any]]) -> dict[int, int] | None:
        """Wait for the answers; return the ends, or None if the broker has to be asked again."""
        try:
            ends = {where.partition: future.result().offset for where, future in asked.items()}
        except KafkaException as error:
            # Leaders move, and not every broker immediately knows the leaders of a new topic.
            if not is_transient(error.args[0]):
                raise Unavailable(f"topic {self.topic}: cannot look up its end offsets: {error}") from error
            return None
        # I3: a timed-out request gives offset -1001 without an error.
        return ends if all(end >= 0 for end in ends.values()) else None

    def _ask_ends(self, partitions: Collection[int], timeout: float) -> Mapping[TopicPartition, Future[Any]]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._admin.list_offsets(
            {TopicPartition(self.topic, p): latest for p in partitions},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=timeout,
        )

    def check_stop(self) -> None:
        if self.stopping():
            raise StopRequested

    def _take(self, timeout: float) -> None:
        first = self._consumer.poll(timeout)  # consume() would wait for a thousand
        if first is not None:
            self._keep(first)
            for message in self._consumer.consume(1000, 0.0):
                self._keep(message)

    def _keep(self, message: Message) -> None:
        error = message.error()
        where, offset = message.partition(), message.offset()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF and where is not None and offset is not None:
                self.positions[where] = max(self.positions[where], offset)
                return
            if is_transient(error):
                return
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise group_refused(self.group)
            raise Unavailable(f"cannot read topic {self.topic}: {error.str()}")
        key = message.key()
        if where is None or offset is None or key is None:
            raise RelayError(
                f"{self.topic}[{where}] offset {offset}: the record has no key; the relay did not write it"
            )
        self.freshness.require_same(where, self.positions[where], offset)  # a new topic is read from its start
        self.positions[where] = offset + 1
        self.records += 1
        self._unapplied[key] = where, offset, message.value()

    def _apply(self) -> None:
        """Apply the records taken: only the last of each key, because it replaces earlier ones."""
        unapplied, self._unapplied = self._unapplied, {}
        for key, (where, offset, value) in unapplied.items():
            try:
                self.apply(key, value)
            except ValueError as bad:
                what = f"this version of the relay cannot read the record: {bad}"
                raise RelayError(f"{self.topic}[{where}] offset {offset}: {what}") from bad


def _listed(positions: Mapping[int, int], ends: Mapping[int, int]) -> str:
    shown = [f"partition {p} (at offset {at} of {ends[p]})" for p, at in sorted(positions.items())]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return ", ".join(shown[:3]) + more

"""Where a consumer begins, how far it is, and telling Kafka's tools.

Spark's checkpoint is the truth about progress. The Kafka group ``<name>.<consumer>`` only reports it, so that lag
shows in ordinary tools, and lets a fresh checkpoint begin exactly there (``--from committed``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from relay.config import Config
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka.topics import SILENT_LOG

EARLIEST, LATEST = -2, -1
"""Spark's numbers for the beginning and the end of a partition."""

Offsets = dict[str, dict[str, int]]
"""By topic and partition; JSON of Spark, of the batch lines and of ``--from``."""

_TIMEOUT = 15.0
_START = "start.json"


def group(config: Config, consumer: str) -> str:
    return f"{config.name}.{consumer}"


def distance(begin: Offsets, end: Offsets) -> int:
    """Return how many records there are at most from ``begin`` to ``end``."""
    return sum(
        offset - max(0, begin.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


class Positions:
    """The offsets of a consumer's topics, and its Kafka group."""

    def __init__(self, config: Config, consumer: str, topics: Sequence[str]) -> None:
        self._servers = config.kafka.bootstrap_servers
        self._topics = topics
        self.group = group(config, consumer)
        self._consumer = Consumer(
            {
                **config.client(consumer),
                "group.id": self.group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
            },
            logger=SILENT_LOG,
        )

    def close(self) -> None:
        self._consumer.close()

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions. Raises ``Unavailable`` if a topic is missing: a stream would wait in silence."""
        try:
            there = self._consumer.list_topics(timeout=_TIMEOUT).topics
        except KafkaException as error:
            raise Unavailable(f"no Kafka broker answers at {self._servers}: {error.args[0].str()}") from error
        missing = [topic for topic in self._topics if topic not in there or not there[topic].partitions]
        if missing:
            raise Unavailable(f"there is no topic {missing[0]!r} at {self._servers} yet: `relay run` creates it")
        return [TopicPartition(topic, number) for topic in self._topics for number in sorted(there[topic].partitions)]

    def resolve(self, start: str) -> Offsets:
        """Return the offsets that ``start`` means now: earliest, latest, committed, an ISO time, or offsets as JSON.

        Resolved once and for all, so that a consumer killed before its first batch begins there again. Raises
        ``ConfigError`` for anything else.
        """
        partitions = self.partitions()
        if start == "earliest":
            return self._found(TopicPartition(p.topic, p.partition, EARLIEST) for p in partitions)
        if start == "latest":
            return self._found(map(self._end, partitions))
        if start == "committed":
            return self._committed(partitions)
        if start.lstrip().startswith("{"):
            return _given(start, partitions)
        try:
            time = datetime.fromisoformat(start)
        except ValueError:
            raise ConfigError(
                f"--from {start}: is none of earliest, latest, committed, an ISO time, or offsets as JSON"
            ) from None
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return self._at(partitions, int(time.timestamp() * 1000))

    def commit(self, offsets: Mapping[str, Mapping[str, int]], *, wait: bool = False) -> None:
        """Report the group's offsets. Raises ``Unavailable`` only when asked to ``wait``."""
        wanted = [TopicPartition(t, int(p), o) for t, ps in offsets.items() for p, o in ps.items() if o >= 0]
        try:
            if wait:
                self._consumer.commit(offsets=wanted, asynchronous=False)
            else:
                self._consumer.commit(offsets=wanted, asynchronous=True)
        except KafkaException as error:
            if wait:
                raise Unavailable(
                    f"the offsets of the group {self.group} cannot be committed: {error.args[0].str()}"
                ) from error

    def _end(self, partition: TopicPartition) -> TopicPartition:
        _, end = self._asked(self._consumer.get_watermark_offsets, partition, timeout=_TIMEOUT)
        return TopicPartition(partition.topic, partition.partition, end)

    def _committed(self, partitions: list[TopicPartition]) -> Offsets:
        found = self._asked(self._consumer.committed, partitions, timeout=_TIMEOUT)
        if all(p.offset < 0 for p in found):
            raise ConfigError(f"--from committed: the group {self.group} has committed no offsets")
        # A partition that is newer than the commit has been read by nobody.
        return self._found(TopicPartition(p.topic, p.partition, p.offset if p.offset >= 0 else EARLIEST) for p in found)

    def _at(self, partitions: list[TopicPartition], milliseconds: int) -> Offsets:
        asked = [TopicPartition(p.topic, p.partition, milliseconds) for p in partitions]
        found = self._asked(self._consumer.offsets_for_times, asked, timeout=_TIMEOUT)
        # Negative: nothing is that young yet.
        return self._found(p if p.offset >= 0 else self._end(p) for p in found)

    def _asked(self, call: Any, *arguments: Any, timeout: float) -> Any:
        try:
            return call(*arguments, timeout=timeout)
        except KafkaException as error:
            raise Unavailable(f"Kafka at {self._servers} does not tell offsets: {error.args[0].str()}") from error

    @staticmethod
    def _found(partitions: Any) -> Offsets:
        offsets: Offsets = {}
        for p in partitions:
            if p.error is not None:
                raise Unavailable(f"{p.topic}[{p.partition}]: {p.error.str()}")
            offsets.setdefault(p.topic, {})[str(p.partition)] = p.offset
        return offsets


def _given(text: str, partitions: Sequence[TopicPartition]) -> Offsets:
    """Read offsets of Spark's JSON. Partitions that are not named begin at the beginning."""
    wanted: Offsets = {}
    for p in partitions:
        wanted.setdefault(p.topic, {})[str(p.partition)] = EARLIEST
    try:
        given = json.loads(text)
        named = [(str(t), str(p), o) for t, ps in given.items() for p, o in ps.items()]
    except (ValueError, AttributeError):
        raise ConfigError('--from: offsets are JSON such as {"shop.orders": {"0": 17, "1": -2}}') from None
    for topic, partition, offset in named:
        if partition not in wanted.get(topic, {}):
            raise ConfigError(f"--from: {topic}[{partition}] is no partition that this consumer reads")
        if type(offset) is not int or offset < EARLIEST:
            raise ConfigError(
                f"--from: the offset {offset!r} of {topic}[{partition}] is no offset (-2: beginning, -1: end)"
            )
        wanted[topic][partition] = offset
    return wanted


class ConsumerCheckpoint:
    """The folder of a consumer's checkpoint: Spark's, and beside it where the consumer began."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spark = folder / "spark"

    @property
    def exists(self) -> bool:
        return (self.folder / _START).exists()

    def start(self) -> Offsets:
        """Return where the consumer began."""
        offsets: Offsets = json.loads((self.folder / _START).read_text())
        return offsets

    def begin(self, start: Offsets) -> None:
        """Write down, durably, where the consumer begins."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{_START}.draft"
        with draft.open("w") as file:
            json.dump(start, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.folder / _START)

    def end_offsets(self, batch: int) -> Offsets:
        """Return up to where batch ``batch`` reads. Spark writes that down before it runs the batch.

        Before the first one: where the consumer began.
        """
        if batch < 0:
            return self.start()
        path = self.spark / "offsets" / str(batch)
        try:
            # A version, Spark's settings, and a line for each source.
            _, _, line = path.read_text().splitlines()
            found: Offsets = json.loads(line)
        except (OSError, ValueError) as error:
            raise RelayError(f"{path} is not what Spark 4.0 writes there: {error}") from error
        return found

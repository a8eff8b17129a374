"""A consumer of one's own: batches of changes, with the progress, retries and dead letters of the relay's consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay.config import Config
from relay.config.topic_names import topics_of_changes
from relay.errors import ConfigError
from relay.kafka.group_offsets import Offsets
from spark_consumers import launch
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder
from spark_consumers.frames import NOT_SHOWN
from spark_consumers.locks import Lock
from spark_consumers.records import DecodeStatus
from spark_consumers.table_consumer import collect_non_changes

Apply = Callable[[DataFrame, int], object]
"""What is done with a batch of changes, and its number. Called again with the same batch after a crash."""

_RESERVED = ("cache", "log", "copy")


def changes(
    config: Config,
    topics: Sequence[str] = (),
    *,
    name: str,
    start: str | None = None,
    checkpoint: Path | None = None,
    at_most: int = 20_000,
    interval: str | None = None,
    delta: bool = False,
) -> ChangeStream:
    """Return the changes on ``topics`` in batches, which may be named by table; by default those of all tables.

    ``name``: of the consumer. Its Kafka group ``<relay>.<name>`` shows the lag, its dead letters name it, and
    ``checkpoint``, the folder of its progress, has a default made of it. ``start``: where a new checkpoint starts, as
    `spark_consumers.run` takes it. ``at_most``: records a batch. ``interval``: the time between two batches, such as
    ``2 seconds``. ``delta``: whether the batches write Delta tables. Raises ``ConfigError``.
    """
    if name in _RESERVED:
        raise ConfigError(f"name: {name!r} is a consumer of the relay: choose another one")
    return ChangeStream(config, topics_of_changes(config, topics), name, start, checkpoint, at_most, interval, delta)


class ChangeStream:
    """Batches of changes, as `changes` returns it."""

    def __init__(
        self,
        config: Config,
        topics: Sequence[str],
        name: str,
        start: str | None,
        checkpoint: Path | None,
        at_most: int,
        interval: str | None,
        delta: bool,
    ) -> None:
        self._config = config
        self._start = start
        self._checkpoint = checkpoint
        self._consumer = _BatchConsumer(name, topics, at_most, interval, delta)

    def foreach_batch(self, apply: Apply, *, until_caught_up: bool = False) -> None:
        """Call ``apply`` with each batch, until SIGTERM (returns), SIGINT (raises ``KeyboardInterrupt``).

        A batch has the columns of `read_changes`; schemas that are published later are learnt on the way. If ``apply``
        raises, the batch is tried again a few times. ``until_caught_up``: return once everything that was on Kafka at
        the start is applied. Raises ``RelayError``. Call it from the main thread.
        """
        self._consumer.apply_batch = apply
        launch.run(
            [self._consumer],
            self._config,
            until_caught_up=until_caught_up,
            start=self._start,
            checkpoint=self._checkpoint,
        )


class _BatchConsumer:
    """Passes batches on."""

    continuity = None

    def __init__(self, name: str, topics: Sequence[str], at_most: int, interval: str | None, delta: bool) -> None:
        self.name = name
        self.topics = topics
        self.at_most = at_most
        self.interval = interval
        self.delta = delta
        self.apply_batch: Apply | None = None

    def lock(self) -> Lock | None:
        """Return None: what the batches write to is not known here."""

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        return decoder.changes(records)

    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Pass a batch on. Raises ``UnknownSchemas`` before that, ``Unavailable``, and what ``apply_batch`` raises."""
        assert self.apply_batch is not None
        batch = batch.persist()
        try:
            statuses: dict[str, int] = dict(batch.groupBy("status").count().collect())
            non_changes = collect_non_changes(batch)
            dead_letters.refuse_unknown_schemas(non_changes)
            self.apply_batch(batch.where(F.col("status") == DecodeStatus.CHANGE).drop(*NOT_SHOWN), number)
            return {
                "rows": sum(statuses.values()),
                "changes": statuses.get(DecodeStatus.CHANGE, 0),
                "dead_letters": dead_letters.send(non_changes),
            }
        finally:
            batch.unpersist()

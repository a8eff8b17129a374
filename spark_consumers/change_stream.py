"""A consumer of one's own: batches of changes, with the progress, retries and dead letters of the relay's consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from relay.config import Config
from relay.config.config import is_topic
from relay.config.topic_names import topics_of_changes
from relay.errors import ConfigError
from relay.kafka.group_offsets import Offsets
from spark_consumers import launch
from spark_consumers.frames import NOT_SHOWN
from spark_consumers.gaps import LostChanges
from spark_consumers.records import DecodeStatus
from spark_consumers.running import log_event
from spark_consumers.table_consumer import BatchPlan, TableBatch, TableConsumer, TableRule

Apply = Callable[[DataFrame, int], object]
"""What is done with a batch of changes, and its number. Called again with the same batch after a crash."""

OnGap = Callable[[Mapping[str, Any]], object]
"""What is done with a gap, given ``id``, ``source``, ``reason``, ``found_at``, and ``record``, its complete JSON."""

_RESERVED = ("cache", "log", "copy")


def changes(
    config: Config,
    topics: Sequence[str] = (),
    *,
    name: str,
    start: str | None = None,
    checkpoint: Path | str | None = None,
    spark: SparkSession | None = None,
    at_most: int = 20_000,
    interval: str | None = None,
    delta: bool = False,
    on_gap: OnGap | None = None,
) -> ChangeStream:
    """Return the changes on ``topics`` in batches. Topics may be named by table; by default they are all tables'.

    ``name``: the consumer's. Its Kafka group ``<relay>.<name>`` shows the lag, its dead letters name it, and
    ``checkpoint``, the folder of its progress or its URI, has a default made of it. ``start``: where a new checkpoint
    starts, as `spark_consumers.run` takes it; one that exists goes on where it is. ``spark``: as there. ``at_most``:
    records a batch. ``interval``: the time between two batches, such as ``2 seconds``. ``delta``: whether the batches
    write Delta tables. ``on_gap`` is called with each gap, before the batch that it came with: changes are lost, and
    the receiver has to do what is right without them (I9). By default the log has an event `gap`. Raises
    ``ConfigError``.
    """
    if name in _RESERVED or name.startswith("cache."):
        raise ConfigError(f"name: {name!r} is a consumer of the relay: choose another one")
    if not is_topic(name):
        raise ConfigError(f"name: {name!r} would be part of a folder: use letters a-z and A-Z, digits, dots, _ and -")
    names = [*topics_of_changes(config, topics), config.internal("gaps")]
    noted = on_gap or (lambda gap: log_event("gap", name, **gap))
    consumer = _BatchConsumer(config, name, names, at_most, noted, is_selective=bool(topics))
    consumer.interval, consumer.delta = interval, delta
    return ChangeStream(config, consumer, start, checkpoint, spark)


@dataclass(eq=False, repr=False)
class ChangeStream:
    """Batches of changes, as `changes` returns it."""

    _config: Config
    _consumer: _BatchConsumer
    _start: str | None
    _checkpoint: Path | str | None
    _session: SparkSession | None

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
            session=self._session,
            is_program=True,
        )


class _BatchConsumer(TableConsumer, TableRule):
    """Passes batches of any size on. What they write to is not known here."""

    def __init__(
        self, config: Config, name: str, topics: Sequence[str], at_most: int, on_gap: OnGap, *, is_selective: bool
    ) -> None:
        super().__init__(name, config, self, at_most=at_most, bytes_at_most=None)
        self.topics = topics
        self.apply_batch: Apply | None = None
        self._on_gap = on_gap
        self._is_selective = is_selective

    def plan(self, given: TableBatch) -> BatchPlan:
        self._refuse_others(given.end)
        statuses: dict[str, int] = dict(given.records.groupBy("status").count().collect())
        return BatchPlan(statuses, partial(self._pass_on, given, statuses.get(DecodeStatus.CHANGE, 0)))

    def _pass_on(self, part: TableBatch, changes: int, gaps: Sequence[LostChanges]) -> dict[str, int]:
        """Raise what ``apply_batch`` raises."""
        assert self.apply_batch is not None
        for gap in gaps:
            self._on_gap(asdict(gap))
        self.apply_batch(part.records.where(F.col("status") == DecodeStatus.CHANGE).drop(*NOT_SHOWN), part.number)
        return {"changes": changes}

    def _refuse_others(self, end: Offsets) -> None:
        """Raise ``ConfigError`` if the checkpoint goes on in topics that the program has left out since."""
        others = sorted(end.keys() - set(self.topics))
        if others and self._is_selective:  # I1: if they are asked for again, what was passed over would be missing
            raise ConfigError(
                f"{self.name}: topic {others[0]} is no longer asked for, but the checkpoint has offsets of it: give "
                'another `checkpoint`, with start="committed" to go on there'
            )

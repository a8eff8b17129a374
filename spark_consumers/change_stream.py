"""Your own consumers: batches of changes, with the progress, retries and dead letters of the relay's consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from relay.config import Config
from relay.config.config import is_topic, loaded
from relay.config.topic_names import only_tables, topics_of_changes
from relay.errors import ConfigError
from spark_consumers import launch
from spark_consumers.frames import NOT_SHOWN
from spark_consumers.gaps import LostChanges
from spark_consumers.records import DecodeStatus
from spark_consumers.running import log_event
from spark_consumers.table_consumer import BatchPlan, TableBatch, TableConsumer, TableRule

Apply = Callable[[DataFrame, int], object]
"""Handles a batch of changes, given the batch's number. Called again with the same batch after a crash."""

OnGap = Callable[[Mapping[str, Any]], object]
"""Handles a gap, given ``id``, ``source``, ``reason``, ``found_at``, and ``record``, its complete JSON."""


def changes(
    config: Config | Path | str,
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
    """Return the changes on ``topics`` in batches. Topics may be named by table, if it has its topic for itself; by
    default, all tables are read.

    ``config``: the relay's config, or its file. ``name``: the consumer's name. Its Kafka group ``<relay>.<name>`` shows
    the lag, its dead letters name it, and the default ``checkpoint``, the folder or URI of its progress, contains it.
    ``start``: where a new checkpoint starts, as for `spark_consumers.run`; an existing one continues where it is.
    ``spark``: as for `run`. ``at_most``: records per batch. ``interval``: such as ``2 seconds``, the time between two
    batches. ``delta``: whether the batches write Delta tables. ``on_gap`` is called with each gap, before the batch
    that it came with: changes are lost, and the receiver has to cope without them (I9). By default the log has an event
    `gap`. Raises ``ConfigError``.
    """
    config = loaded(config)
    if name.partition(".")[0] in ("cache", "log", "copy"):
        raise ConfigError(f"name: {name!r} is one of the relay's own consumers: choose another name")
    if not is_topic(name):
        raise ConfigError(f"name: {name!r} is used in a folder name: use letters a-z and A-Z, digits, dots, _ and -")
    for topic in only_tables(config, topics):  # I1: the offsets of a checkpoint cannot say whose changes were skipped
        raise ConfigError(f"name topic {topic} in full, since it has several tables, and filter by the column `table`")
    names = [*topics_of_changes(config, topics), config.internal("gaps")]
    noted = on_gap or (lambda gap: log_event("gap", name, **gap))
    consumer = _BatchConsumer(config, name, names, at_most, noted, is_selective=bool(topics))
    consumer.interval, consumer.delta = interval, delta
    run = partial(launch.run, [consumer], config, start=start, checkpoint=checkpoint, session=spark, is_program=True)
    return ChangeStream(consumer, run)


@dataclass(eq=False, repr=False)
class ChangeStream:
    """Batches of changes, as `changes` returns it."""

    _consumer: _BatchConsumer
    _run: Callable[..., None]

    def foreach_batch(self, apply: Apply, *, until_caught_up: bool = False) -> None:
        """Call ``apply`` with each batch, until SIGTERM (returns), SIGINT (raises ``KeyboardInterrupt``).

        A batch has the columns of `read_changes`; schemas that are published later are found on the way. If ``apply``
        raises, the batch is tried again a few times. ``until_caught_up``: return once everything that was on Kafka at
        the start is applied. Raises ``RelayError``. Call it from the main thread.
        """
        self._consumer.apply_batch = apply
        self._run(until_caught_up=until_caught_up)


class _BatchConsumer(TableConsumer, TableRule):
    """Passes on batches of any size. It does not know where their changes are written."""

    def __init__(
        self, config: Config, name: str, topics: Sequence[str], at_most: int, on_gap: OnGap, *, is_selective: bool
    ) -> None:
        super().__init__(name, config, self, at_most=at_most, bytes_at_most=None)
        self.topics = topics
        self.apply_batch: Apply | None = None
        self._on_gap = on_gap
        self._is_selective = is_selective

    def plan(self, given: TableBatch) -> BatchPlan:
        others = sorted(given.end.keys() - set(self.topics))
        if others and self._is_selective:  # I1: if they are requested again, the skipped records would be missing
            raise ConfigError(
                f"{self.name}: topic {others[0]} is no longer requested, but the checkpoint has offsets for it: use "
                'another `checkpoint`, with start="committed" to continue from there'
            )
        statuses: dict[str, int] = dict(given.records.groupBy("status").count().collect())
        return BatchPlan(statuses, partial(self._pass_on, given, statuses.get(DecodeStatus.CHANGE, 0)))

    def _pass_on(self, part: TableBatch, changes: int, gaps: Sequence[LostChanges]) -> dict[str, int]:
        assert self.apply_batch is not None
        for gap in gaps:
            self._on_gap(asdict(gap))
        self.apply_batch(part.records.where(F.col("status") == DecodeStatus.CHANGE).drop(*NOT_SHOWN), part.number)
        return {"changes": changes}

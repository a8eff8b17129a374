"""The consumer that writes changes to tables: what the change log and the copy have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from relay.config import Config
from relay.kafka.group_offsets import Offsets
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder
from spark_consumers.gaps import LostChanges
from spark_consumers.locks import Lock
from spark_consumers.non_changes import NonChanges
from spark_consumers.records import Layout
from spark_consumers.sinks import delta


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do with a batch.

    ``statuses``: the number of records by ``DecodeStatus``. ``write``: writes the changes, and the gaps that it is
    given, and returns its counts.
    """

    statuses: Mapping[str, int]
    write: Callable[[Sequence[LostChanges]], dict[str, int]]


@dataclass(frozen=True, slots=True)
class TableBatch:
    """The decoded records of a batch, and the offsets between which they are."""

    records: DataFrame
    layouts: Sequence[Layout]
    begin: Offsets
    end: Offsets


Rule = Callable[[TableBatch], BatchPlan]
"""Decides what a batch writes. Takes one Spark action to plan; a batch may come again."""


class TableConsumer:
    """Applies batches of changes to tables, by ``rule``. ``at_most``: records a batch.

    ``delta_at``: the location of the tables if they are in Delta.
    """

    interval = "2 seconds"
    continuity = None
    executor_modules: Sequence[str] = ()

    def __init__(self, name: str, config: Config, rule: Rule, *, at_most: int, delta_at: str | None = None) -> None:
        self.name = name
        self.at_most = at_most
        # The stream includes the gaps topic, so its checkpoint covers gaps too and a restart misses none (I9).
        self.topics = [*dict.fromkeys(map(config.topic, config.tables)), config.internal("gaps")]
        self.delta = delta_at is not None
        self.location = delta_at
        self._rule = rule
        # Set by the main thread before each query starts; read by the query's batch thread.
        self._layouts: Sequence[Layout] = ()

    def lock(self) -> Lock | None:
        return None if self.location is None else delta.lock(self.location)

    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        self._layouts = decoder.layouts
        return decoder.changes(records)

    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Write what a batch changes; return counts.

        Raises ``UnknownSchemas`` before anything is written, ``Unavailable``, and what Spark raises.
        """
        batch = batch.persist()
        try:
            plan = self._rule(TableBatch(batch, self._layouts, begin, end))
            non_changes = NonChanges(batch, plan.statuses)
            non_changes.refuse_unknown_schemas(dead_letters)
            gaps = non_changes.gaps()
            counts = plan.write(gaps)
            # Each dead letter is a change that the tables lack, and so is what a gap stands for.
            holes = {"gaps": len(gaps), "dead_letters": non_changes.send(dead_letters)}
            return {"rows": sum(plan.statuses.values()), **counts, **holes}
        finally:
            batch.unpersist()

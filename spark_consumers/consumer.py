"""What each consumer is to what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import DataFrame

from relay.cache.continuity import Continuity
from relay.kafka.group_offsets import Offsets
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder
from spark_consumers.locks import Lock

PLACE_SETTINGS = {"log": "log.path", "copy": "copy.url"}
"""By consumer, the setting of the config that says where its tables are."""


class Consumer(Protocol):
    """A consumer as the runner sees it.

    ``at_most``: records a batch. ``interval``: Spark's processing time between batches, None for none.
    ``apply_every``: seconds for which records wait until there are ``at_most``, None if they do not.
    ``delta``: whether it writes Delta tables. ``location``: of them, None if it is not known or there are none.
    ``place``: of its tables, without secrets, None if it is not known or there are none.
    ``executor_modules``: what it imports on Spark's executors. Only `apply` runs in a thread of Spark's.
    """

    @property
    def name(self) -> str: ...
    @property
    def at_most(self) -> int: ...
    @property
    def interval(self) -> str | None: ...
    @property
    def apply_every(self) -> float | None: ...
    @property
    def delta(self) -> bool: ...
    @property
    def location(self) -> str | None: ...
    @property
    def place(self) -> str | None: ...
    @property
    def executor_modules(self) -> Sequence[str]: ...
    @property
    def topics(self) -> Sequence[str]: ...
    @property
    def continuity(self) -> Continuity | None:
        """How far its sink is up to date; None for a sink that stays right if changes are missed."""

    def lock(self) -> Lock | None:
        """Return the lock that excludes a second driver, None if the sink supports several."""

    def stream(self, records: DataFrame, decoder: Decoder, start: Offsets) -> DataFrame:
        """Return the columns that ``apply`` needs of each record. Called before each query.

        ``start``: the offsets at which the checkpoint starts.
        """

    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Apply batch ``number``, the records between two offsets; return the counts, ``rows`` among them.

        The same batch may come again.
        """

"""What the code that runs a consumer has to know about it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from relay.cache.continuity import Continuity
from relay.kafka.group_offsets import Offsets
from spark_consumers.applied_notes import Start
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder


class Consumer(ABC):
    """A consumer as the runner sees it. Only `apply` runs in one of Spark's threads.

    ``at_most``: records per batch. ``interval``: Spark's processing time between batches, or None. ``apply_every``: how
    many seconds records wait until there are ``at_most``, or None. ``delta``: whether it writes Delta tables.
    ``location``: where they are, for one driver at a time, or None. ``executor_modules``: what it imports on Spark's
    executors. ``continuity``: how far its sink is up to date; None: it stays correct if changes are missed. ``cache``:
    the place of the cache that it invalidates, or "".
    """

    name: str
    topics: Sequence[str]
    at_most: int
    interval: str | None = None
    apply_every: float | None = None
    delta = False
    location: str | None = None
    executor_modules: Sequence[str] = ()
    continuity: Continuity | None = None
    cache = ""

    def set_aside(self) -> Mapping[str, tuple[float, str]]:
        """Return the tables that take no changes, with the time, the reason and what to do. From any thread."""
        return {}

    @abstractmethod
    def begin(self, session: SparkSession, start: Start) -> None:
        """Make up for changes that it missed. Raises ``ConfigError`` if it cannot, and ``Unavailable``."""

    @abstractmethod
    def stream(self, records: DataFrame, decoder: Decoder) -> DataFrame:
        """Return the columns of each record that ``apply`` needs. Called before each query."""

    @abstractmethod
    def apply(
        self, batch: DataFrame, number: int, dead_letters: DeadLetterTopic, begin: Offsets, end: Offsets
    ) -> dict[str, int]:
        """Apply batch ``number``, which may come again, between two offsets; return the counts, including ``rows``."""

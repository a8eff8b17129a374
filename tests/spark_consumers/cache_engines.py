"""The consumer of the cache on one of its engines, as the tests of both run it."""

from __future__ import annotations

from collections.abc import Mapping

from relay.cache import RedisStore, generation_key
from tests.faults.harness import Relay
from tests.log_lines import log_lines
from tests.spark_consumers.invalidated import version
from tests.spark_consumers.spark_process import RunningInSpark
from tests.spark_consumers.topic import Topic
from tests.waiting import wait_until


class Cache:
    """The consumer of the cache on one engine, and the generation of its namespace."""

    def __init__(self, topic: Topic, store: RedisStore, engine: str) -> None:
        self.engine = engine
        self._topic = topic
        self._store = store
        self._generation = ""

    def consume(self, *arguments: str, checkpoint: str = "one") -> Mapping[str, int]:
        """Run it to the ends of its topics, and return the totals of the batches' counts."""
        return self._topic.consume("cache", *arguments, checkpoint=checkpoint, engine=self.engine)

    def start(self, *arguments: str) -> Relay | RunningInSpark:
        if self.engine == "spark":
            return self._topic.start_in_spark("cache", *arguments, checkpoint="one")
        return self._topic.start("cache", *arguments, checkpoint="one", engine="python")

    def start_alone(self) -> Relay:
        """Start it in a process of its own, which may be killed."""
        return self._topic.start("cache", checkpoint="one", engine=self.engine)

    def is_invalidated(self) -> bool:
        """Whether the namespace was invalidated since this was asked before."""
        before, self._generation = self._generation, self._store.generation(generation_key(self._topic.config.name))
        return self._generation != before

    def version(self, customer: str) -> int:
        """Return the version up to which the customer's entry is invalidated, 0 if it is not."""
        return version(self._store, self._topic, customer)


def has_applied(topic: Topic) -> None:
    wait_until(lambda: log_lines(topic.log, "batch") or None, 120)

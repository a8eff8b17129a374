"""The schemas that are published while a query runs, such as after an ALTER TABLE."""

import logging
import math
import time
import weakref
from collections.abc import Callable, Sequence

from relay.avro.registry import open_schemas
from relay.config import Config
from relay.errors import RelayError
from spark_consumers.decode import Schemas
from spark_consumers.records import Layout

log = logging.getLogger(__name__)

_LOOK_AGAIN = 15.0
"""Seconds without a look-up after one that failed: else each batch would wait for another."""


class LaterSchemas:
    """The schemas on ``topics``, whenever it is called. Threads may share it.

    ``must``: whether a call raises what `learn` raises. Else the schemas that are known serve for some seconds, and a
    change with another one ends its query. ``clock``: monotonic seconds.
    """

    def __init__(
        self, config: Config, topics: Sequence[str], *, must: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._topics = topics
        self._must = must
        self._clock = clock
        self._published = open_schemas(config)
        weakref.finalize(self, self._published.close)
        self._is_wanted: dict[bytes, bool] = {}
        self._again_at = -math.inf

    def learn(self) -> Schemas:
        """Look up what was published meanwhile. Raises ``Unavailable``, and ``RelayError`` for what is not a schema."""
        self._published.learn(self._topics)
        return self._known()

    def __call__(self) -> Schemas:
        if self._clock() >= self._again_at:
            try:
                return self.learn()
            except RelayError as error:
                if self._must:  # I1: a row that is kept without its columns does not come again
                    raise
                self._again_at = self._clock() + _LOOK_AGAIN
                log.warning("%s. Values whose schemas are known are still read", error)
        return self._known()

    def _known(self) -> Schemas:
        found = self._published.all()
        for header in found.keys() - self._is_wanted.keys():
            self._is_wanted[header] = self._config.topic(Layout.of(found[header]).table) in self._topics
        return {header: schema for header, schema in found.items() if self._is_wanted[header]}

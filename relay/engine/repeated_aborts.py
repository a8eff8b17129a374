"""The pace of a worker whose transactions are aborted again and again, and why: a topic may have been deleted."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from relay.errors import Unavailable
from relay.kafka.settings import KafkaSettings

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
# A broker that has just started may not know a topic yet.
_PATIENCE = 10.0
_TIMEOUT = 5.0


class RepeatedAborts:
    """Counts the aborts since the last commit."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._pause = 0.0

    def __repr__(self) -> str:
        return f"<RepeatedAborts[pause {self._pause:.2f} s]>"

    def committed(self) -> None:
        self._since = None
        self._pause = 0.0

    def aborted(self) -> None:
        """Wait before the next attempt: not at all the first time, then longer each time.

        I10: raises ``Unavailable`` if that has gone on for a while, and one of the relay's topics does not exist.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
            return
        if now - self._since > _PATIENCE:
            self._since = now
            self._require_topics()
        self._pause = min(max(_FIRST_PAUSE, 2 * self._pause), _LONGEST_PAUSE)
        self._sleep(self._pause)

    def _require_topics(self) -> None:
        try:
            found = AdminClient(self._settings.client).list_topics(timeout=_TIMEOUT).topics
        except KafkaException:
            return  # the broker is away now; a later abort asks again
        if missing := sorted(self._settings.limits.keys() - found.keys()):
            raise Unavailable(
                f"topic {missing[0]!r} was deleted while the relay ran. Nothing was skipped; restart the relay, "
                "which creates the topic again, without the records that were in it"
            )

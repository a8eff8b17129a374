"""The pace of a worker whose transactions are aborted again and again, and why: a topic may have been deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from relay.errors import Unavailable
from relay.kafka.settings import KafkaSettings

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
# A broker that has just started may not know a topic yet.
_PATIENCE = 5.0
_TIMEOUT = 5.0


class RepeatedAborts:
    """Counts the aborts since the last commit. ``topics``: returns the names of those that the worker writes to."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Callable[[], Collection[str]],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._sleep = sleep
        self._is_first = True
        self._pause = 0.0
        # Seconds that it has paused since it last asked. A call that waits for a broker may take longer than that.
        self._paused = 0.0

    def __repr__(self) -> str:
        return f"<RepeatedAborts[pause {self._pause:.2f} s]>"

    def committed(self) -> None:
        self._is_first = True
        self._pause = self._paused = 0.0

    def aborted(self) -> None:
        """Wait before the next attempt: not at all the first time, then longer each time.

        I10: raises ``Unavailable`` if that has gone on for a while, and one of the topics does not exist, or may not be
        used any longer.
        """
        if self._is_first:
            self._is_first = False
            return
        if self._paused > _PATIENCE:
            self._paused = 0.0
            self._require_topics()
        self._pause = min(max(_FIRST_PAUSE, 2 * self._pause), _LONGEST_PAUSE)
        self._sleep(self._pause)
        self._paused += self._pause

    def _require_topics(self) -> None:
        # By name: a list of all topics leaves out those that this user may not see, as if they did not exist.
        admin = AdminClient(self._settings.client)
        found = admin.describe_topics(TopicCollection(sorted(self._topics())), request_timeout=_TIMEOUT)
        for topic, described in found.items():
            try:
                described.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise Unavailable(
                        f"topic {topic!r} was deleted while the relay ran. Nothing was skipped; restart the relay, "
                        "which creates the topic again, without the records that were in it"
                    ) from error
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise Unavailable(
                        f"the broker does not let this user see topic {topic!r} any longer. Nothing was skipped; allow "
                        "Describe and Write on it, and restart the relay"
                    ) from error
                # The broker is away now, or the topic has no leader; a later abort asks again.

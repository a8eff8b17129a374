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
_ASK_AT = 11  # aborts; a broker that has just started may not know a topic yet
_TIMEOUT = 5.0


class RepeatedAborts:
    """Counts aborts. ``topics``: returns the names of those that the worker writes to."""

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
        self._pause = 0.0  # the next one
        # Since it last asked, also those before a commit: transactions without the topic that is lost succeed.
        self._aborts = 0

    def __repr__(self) -> str:
        return f"<RepeatedAborts[pause {self._pause:.2f} s]>"

    def committed(self) -> None:
        self._pause = 0.0

    def aborted(self) -> None:
        """Wait before the next attempt: not at all the first time after a commit, then longer each time.

        I10: after some aborts, raises ``Unavailable`` if one of the topics does not exist, or may no longer be used.
        """
        self._aborts += 1
        if self._aborts == _ASK_AT:
            self._aborts = 0
            self._require_topics()
        if self._pause:
            self._sleep(self._pause)
        self._pause = min(max(_FIRST_PAUSE, 2 * self._pause), _LONGEST_PAUSE)

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

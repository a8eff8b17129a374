"""Slows down a worker whose transactions are aborted again and again, and finds the reason, such as a deleted topic."""

import logging
import time
from collections.abc import Callable, Collection

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]

from relay.errors import Unavailable, checkpoints_deleted
from relay.kafka.in_sync import shortage
from relay.kafka.settings import KafkaSettings
from relay.observe.liveness import Liveness
from relay.reading.open_shard import WARN_AT_FAILURES

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_ASK_AT = 11  # aborts; a broker that has just started may not know a topic yet
_TIMEOUT = 5.0
_UNKNOWN = (AclOperation.WRITE,)
"""The operations that a user is assumed to have if the broker does not list them."""


class RepeatedAborts:
    """Counts aborts. ``topics``: returns the names of the topics that the worker writes to.

    ``liveness``: knows how many transactions have failed since the last commit.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Callable[[], Collection[str]],
        liveness: Liveness,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._liveness = liveness
        self._sleep = sleep
        # The topics that this user could not write to when the broker was last asked.
        self._forbidden: list[str] = []
        # Aborts since it last asked, even before a commit: transactions without the lost topic succeed.
        self._aborts = 0

    def unanswered(self, why: str) -> None:
        """Note that the broker does not answer what has to be known before a transaction can begin."""
        self._failed(self._explained(why))

    def aborted(self, why: str, *, slow: bool = False) -> None:
        """Wait before the next attempt: not at all the first time after a commit, then longer each time.

        ``slow``: whether the broker did not acknowledge it in time.

        I10: after several aborts, raises ``Unavailable`` if one of the topics does not exist or may no longer be used.
        """
        if not self._liveness.failures:
            self._forbidden = []
        if self._forbidden:
            why = f"this user may not write to {', '.join(self._forbidden)}: allow Write on it ({why})"
        if slow and self._liveness.failures:  # again, so nobody minds how long the question takes
            why = self._explained(why)
        self._failed(f"aborted: {why}")
        self._aborts += 1
        if self._aborts == _ASK_AT:
            self._aborts = 0
            self._require_topics()
        if (failures := self._liveness.failures) > 1:
            self._sleep(min(_FIRST_PAUSE * 2.0 ** min(failures - 2, 10), _LONGEST_PAUSE))

    def _failed(self, why: str) -> None:
        self._liveness.failed(why)
        if self._liveness.failures in WARN_AT_FAILURES:
            log.warning("no transaction has been committed: %s", self._liveness.uncommitted)

    def _explained(self, why: str) -> str:
        short = shortage(self._settings.client, self._topics())
        return f"{short} ({why})" if short else why

    def _require_topics(self) -> None:
        # By name: a list of all topics omits topics that this user may not see, as if they did not exist.
        admin = AdminClient(self._settings.client)
        found = admin.describe_topics(
            TopicCollection(sorted(self._topics())), include_authorized_operations=True, request_timeout=_TIMEOUT
        )
        self._forbidden = []
        for topic, described in found.items():
            try:
                if AclOperation.WRITE not in (described.result().authorized_operations or _UNKNOWN):
                    self._forbidden.append(topic)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    if topic == self._settings.checkpoints:
                        raise checkpoints_deleted(topic) from error
                    raise Unavailable(
                        f"topic {topic!r} was deleted while the relay ran. Nothing was skipped; restart the relay, "
                        "which creates the topic again, without its former records"
                    ) from error
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise Unavailable(
                        f"the broker does not let this user see topic {topic!r} any longer. Nothing was skipped; allow "
                        "Describe and Write on it, and restart the relay"
                    ) from error
                # The broker is down, or the topic has no leader; a later abort asks again.

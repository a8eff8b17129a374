"""Slows down a worker whose transactions are aborted again and again, and finds the reason, such as a deleted topic."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from relay.errors import Unavailable, checkpoints_deleted
from relay.kafka.settings import KafkaSettings
from relay.kafka.topics import SILENT_LOG
from relay.observe.health import Liveness
from relay.reading.reader_pool import WARN_AT_FAILURES

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_ASK_AT = 11  # aborts; a broker that has just started may not know a topic yet
_TIMEOUT = 5.0
_SHORT_TIMEOUT = 2.0
_UNKNOWN = (AclOperation.WRITE,)  # the operations that a user is assumed to have if the broker does not list them
_INTERNAL = ("__transaction_state", "__consumer_offsets")  # what a transaction writes to beside the topics


class RepeatedAborts:
    """Counts aborts. ``topics``: returns the names of the topics that the worker writes to."""

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
        """Wait before the next attempt, longer each time. ``slow``: the broker did not acknowledge it in time.

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


def shortage(client: Mapping[str, Any], topics: Collection[str]) -> str:
    """Return for want of which replicas writes to ``topics`` are repeated without a word; empty if none is known."""
    names = sorted({*topics, *_INTERNAL})
    settings: dict[str, Any] = {**client, "logger": SILENT_LOG}
    admin = AdminClient(settings)
    described = admin.describe_topics(TopicCollection(names), request_timeout=_SHORT_TIMEOUT)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    for resource, configured in admin.describe_configs(resources, request_timeout=_SHORT_TIMEOUT).items():
        try:
            needed = configured.result().get("min.insync.replicas")
            partitions = described[resource.name].result().partitions
        except KafkaException:
            continue  # there is no such topic, or no broker answers, which its own errors say
        if needed is None or not needed.value:
            continue  # not every server that speaks Kafka's protocol has it
        for partition in partitions:
            if (in_sync := len(partition.isr)) < int(needed.value):
                return (
                    f"nothing can be written to partition {partition.id} of topic {resource.name!r}: {in_sync} of its "
                    f"{len(partition.replicas)} replicas {'is' if in_sync == 1 else 'are'} in sync, and "
                    f"min.insync.replicas is {needed.value}. Start the brokers that are away"
                )
    return ""

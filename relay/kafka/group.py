"""Consumer groups seen from outside: workers, and the checkpoint partitions that each owns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from relay.errors import Unavailable
from relay.kafka.partition_offsets import refresh_metadata
from relay.kafka.transient_errors import is_transient

_TRIES = 5
_REQUEST_TIMEOUT = 5.0
_WITHOUT_MEMBERS = {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """A worker. ``host``: its address as the broker sees it. ``partitions``: the checkpoint partitions that it owns."""

    id: str
    client: str
    host: str
    partitions: frozenset[int]


def members(admin: AdminClient, group: str, topic: str) -> list[Member]:
    """Return the members of ``group``, sorted by id; none if the group does not exist. Raises ``Unavailable``.

    A killed worker remains a member until its session times out. Do not call this in a process that has to stay alive:
    librdkafka 2.16 aborts the process with an assertion if the coordinator goes away meanwhile.
    """

    def ask() -> list[Member]:
        try:
            found = admin.describe_consumer_groups([group], request_timeout=_REQUEST_TIMEOUT)[group].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            raise
        made = []
        for each in found.members:
            owned = frozenset(p.partition for p in each.assignment.topic_partitions if p.topic == topic)
            made.append(Member(each.member_id, each.client_id, each.host.removeprefix("/"), owned))
        return made

    return sorted(_answered(admin, ask, f"the members of consumer group {group}"), key=lambda member: member.id)


def has_members(admin: AdminClient, group: str) -> bool:
    """Whether ``group`` has members. A process that has to stay alive may ask it, too. Raises ``Unavailable``."""

    def ask() -> bool:
        found = admin.list_consumer_groups(request_timeout=_REQUEST_TIMEOUT).result()
        known = [each.state for each in found.valid if each.group_id == group]
        if not known and found.errors:  # of a broker that may coordinate it
            raise found.errors[0]
        return bool({*known} - _WITHOUT_MEMBERS)

    return _answered(admin, ask, f"whether consumer group {group} has members")


def _answered(admin: AdminClient, ask: Callable[[], T], what: str) -> T:
    for attempt in range(_TRIES):
        try:
            return ask()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if not is_transient(reason) or attempt == _TRIES - 1:
                raise Unavailable(f"cannot look up {what}: {reason.str()}") from error
            refresh_metadata(admin)
    raise AssertionError("unreachable")

"""Consumer groups seen from outside: workers, the checkpoint partitions that each owns, and consumers' lag."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.errors import Unavailable
from relay.kafka import topics
from relay.kafka.group_offsets import refuse_errors
from relay.kafka.partition_offsets import Partition, offset_bounds, refresh_metadata
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


def offsets_behind(
    admin: AdminClient, config: Config, group: str, names: Iterable[str], *, others: bool = False
) -> int | None:
    """Return how many offsets the commits of ``group`` are behind the ends of the topics ``names``.

    None without commits there. The end of a transaction takes an offset, too.
    ``others``: also count other topics in which it has commits. A partition without a commit counts from its first
    offset. Raises ``Unavailable``, also if Kafka does not answer within some seconds.
    """
    deadline = monotonic() + _REQUEST_TIMEOUT

    def ask() -> dict[Partition, int]:
        request, left = [ConsumerGroupTopicPartitions(group)], max(0.1, deadline - monotonic())
        found = admin.list_consumer_group_offsets(request, request_timeout=left)[group].result()
        refuse_errors(found.topic_partitions)
        return {(p.topic, p.partition): p.offset for p in found.topic_partitions or () if p.offset >= 0}

    committed = _answered(admin, ask, f"the offsets of consumer group {group}", deadline)
    existing = topics.list_topics(admin, config)
    wanted = {*names, *(topic for topic, _ in committed if others)}
    there = [(topic, n) for topic in wanted & existing.keys() for n in existing[topic].partitions]
    if committed.keys().isdisjoint(there):
        return None
    bounds = offset_bounds(admin, there, timeout=_REQUEST_TIMEOUT)
    return sum(max(0, end - committed.get(where, first)) for where, (first, end) in bounds.items())


def _answered(admin: AdminClient, ask: Callable[[], T], what: str, deadline: float = math.inf) -> T:
    for attempt in range(_TRIES):
        try:
            return ask()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if not is_transient(reason) or attempt == _TRIES - 1 or monotonic() > deadline:
                raise Unavailable(f"cannot look up {what}: {reason.str()}") from error
            refresh_metadata(admin)
    raise AssertionError("unreachable")

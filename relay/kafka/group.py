"""The members of the relay's consumer group and the checkpoint partitions that each owns, seen from outside."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from relay.errors import Unavailable
from relay.kafka.failures import is_transient
from relay.kafka.topics import refresh_metadata

_TRIES = 5
_REQUEST_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """A worker. ``host``: its address, as the broker sees it. ``partitions``: the checkpoint partitions it owns."""

    id: str
    client: str
    host: str
    partitions: frozenset[int]


def members(admin: AdminClient, group: str, topic: str) -> list[Member]:
    """Return the members of ``group``, sorted by id; none if the group does not exist. Raises ``Unavailable``.

    A killed worker remains a member until its session times out.
    """
    for attempt in range(_TRIES):
        try:
            found = admin.describe_consumer_groups([group], request_timeout=_REQUEST_TIMEOUT)[group].result()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            if not is_transient(reason) or attempt == _TRIES - 1:
                raise Unavailable(f"cannot look up the members of consumer group {group}: {reason.str()}") from error
            refresh_metadata(admin)
        else:
            described = (
                Member(
                    member.member_id,
                    member.client_id,
                    member.host.removeprefix("/"),
                    frozenset(p.partition for p in member.assignment.topic_partitions if p.topic == topic),
                )
                for member in found.members
            )
            return sorted(described, key=lambda member: member.id)
    raise AssertionError("unreachable")

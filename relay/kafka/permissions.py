"""What a user may do in Kafka according to the brokers, which say nothing of transactional ids. Writes nothing."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation

from relay.kafka.topics import FoundTopic
from relay.kafka.transient_errors import is_forbidden

_NAMES = {AclOperation.READ: "Read", AclOperation.WRITE: "Write"}
_TIMEOUT = 15.0  # seconds of a request; its future gets some more


def forbidden_topics(admin: AdminClient, found: Sequence[FoundTopic]) -> Mapping[str, str]:
    """Return, by topic, what this user may not do, and what to allow. Raises nothing: other checks report outages."""
    there = [each.topic.name for each in found if each.exists]
    missing = [each.topic for each in found if not each.exists]
    problems: dict[str, str] = {}
    if there:
        asked = admin.describe_topics(
            TopicCollection(there), include_authorized_operations=True, request_timeout=_TIMEOUT
        )
        for name, future in asked.items():
            try:
                allowed = future.result(_TIMEOUT + 5).authorized_operations
            except KafkaException:
                continue
            if lacking := _lacking(allowed):
                problems[name] = f"this user may not use it: allow {' and '.join(lacking)} on it"
    if missing:
        requests = [topic.request() for topic in missing]
        tried = admin.create_topics(requests, validate_only=True, request_timeout=_TIMEOUT)
        problems |= {name: problem for name, future in tried.items() if (problem := _refusal(future))}
    return problems


def forbidden_group(admin: AdminClient, group: str) -> str:
    """Return why this user may not join a consumer group; empty if it may, or if no broker says."""
    asked = admin.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=_TIMEOUT)
    try:
        is_refused = "Read" in _lacking(asked[group].result(_TIMEOUT + 5).authorized_operations)
    except KafkaException as error:
        is_refused = error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    return "this user may not join it: allow Read on it" if is_refused else ""


def _lacking(allowed: Iterable[AclOperation] | None) -> list[str]:
    """Return the operations that are not allowed; nothing if a broker does not list the allowed ones."""
    return [] if allowed is None else [name for operation, name in _NAMES.items() if operation not in allowed]


def _refusal(created: Future[None]) -> str:
    try:
        created.result(_TIMEOUT + 5)
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        if is_forbidden(reason):
            return "it is missing, or this user may not see it, and may not create it: allow Create and Describe on it"
        if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return "this user may not see it: allow Describe on it"
        return f"it is missing, and cannot be created: {reason.str()}"
    return ""

"""Which Kafka errors are transient: ``KafkaError.retriable`` is set for transactional calls only."""

from confluent_kafka import KafkaError, KafkaException

from relay.errors import NoAnswer, Unavailable

_TRANSIENT = {
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._NOENT,  # "no leaders found", for a topic that was just created
}

_FORBIDDEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_TO_ALLOW = ". Allow this user Create, Describe, DescribeConfigs, Read and Write on it"


def is_forbidden(error: KafkaError) -> bool:
    """Return whether a broker does not allow this user to use a topic, or to create one."""
    return error.code() in _FORBIDDEN


def is_transient(error: KafkaError) -> bool:
    """Return whether a retry may help: leaders move, brokers restart, and new topics spread slowly."""
    return error.retriable() or error.code() in _TRANSIENT


def failure_of(error: KafkaException, what: str) -> Unavailable:
    """Return the error for a failed request, `NoAnswer` if the next may succeed. ``what``: the failed action."""
    reason: KafkaError = error.args[0]
    failure = NoAnswer if is_transient(reason) else Unavailable
    return failure(f"{what}: {reason.str().rstrip('.')}{_TO_ALLOW if is_forbidden(reason) else ''}")

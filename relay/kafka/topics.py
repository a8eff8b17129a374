"""Which topics the relay needs and how each has to be set up.

``survey`` only looks, for ``relay check``; ``ensure`` creates what is missing. A topic that exists is never
altered: where it would break an invariant, it is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from relay.config import Config
from relay.errors import ConfigError, Unavailable
from relay.kafka.failures import passes

CHECKPOINT_PARTITIONS = 64
"""Fixed: a checkpoint's partition is a hash of its key, and decides which worker owns the shard."""

LARGEST_MESSAGE = 8 << 20
"""Bytes. Two images of a 400 KB item, each as typed JSON with its escapes, with room to spare."""

# librdkafka would write its own account of every failed connection to stderr; ours says it once.
SILENT = logging.getLogger("relay.kafka.client")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

# The way to another number, in full in README.md beside this file.
_REPARTITION = (
    "keep `kafka.partitions: {count}`, or move to a new topic in order: stop the relay, let every consumer read the "
    'old topic to its end, set another `topics` template (such as "{{name}}.{{table}}.2") beside the new number, start '
    "again, and start the consumers with new checkpoints (relay/kafka/README.md, Another number of partitions)"
)

Partition = tuple[str, int]
"""A topic and a number."""

# What a broker or client answers that has not heard of a new topic's leaders yet.
_NOT_HEARD_OF = {KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError._UNKNOWN_TOPIC}
# What a broker says, or we say of it, that more patience does not help with.
_REFUSALS = {KafkaError._AUTHENTICATION, KafkaError._SSL}
_CONNECT_TIMEOUT = 10.0
# Where every broker refuses to be connected to, waiting longer seldom helps.
_DOWN_TIMEOUT = 3.0
_REQUEST_TIMEOUT = 15.0
_CREATE_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic the relay needs. ``why``: what hangs on its partition count."""

    name: str
    partitions: int
    why: str
    settings: Mapping[str, str] = field(default_factory=dict)
    compacted: bool = False
    # Is there a way to another number of partitions?
    repartitionable: bool = False
    # May it be compacted? A topic of changes keyed by the hash key alone would lose other items' changes.
    compactable: bool = True


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """What there is of a needed topic. ``problem``: why it cannot serve, empty if it can or is missing.

    ``hint``: what might be better about it, for ``relay check`` alone.
    """

    topic: Topic
    exists: bool
    problem: str = ""
    hint: str = ""
    # Bytes; None while there is no topic.
    largest_message: int | None = None
    compacted: bool = False


def needed(config: Config, tables: Iterable[str]) -> list[Topic]:
    """Return every topic that relaying ``tables`` needs."""
    large = {"max.message.bytes": str(LARGEST_MESSAGE)}
    compact = {"cleanup.policy": "compact"}
    forever = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    by_item = {table for table, source in config.tables.items() if source.key_mode == "item"}
    topics = [
        Topic(
            config.topic(table),
            config.kafka.partitions,
            "the changes of a key stay in order only while they all go to one partition",  # I2
            large,
            repartitionable=True,
            compactable=table in by_item,
        )
        for table in tables
    ]
    # One topic may take several tables; it is asked for once.
    unique = {topic.name: topic for topic in topics}
    return [
        *unique.values(),
        Topic(
            config.internal("checkpoints"),
            CHECKPOINT_PARTITIONS,
            "a shard's checkpoint is found by the hash of its key",  # I4
            compact,
            compacted=True,
        ),
        Topic(config.internal("schemas"), 1, "schemas are read as one list", compact, compacted=True),
        Topic(config.internal("watermarks"), 1, "watermarks are read as one list", compact, compacted=True),
        Topic(config.internal("gaps"), 1, "gaps are read as one list", forever, compactable=False),
        Topic(
            config.internal("dead_letters"),
            1,
            "dead letters are read as one list",
            {**large, **forever},  # I1: what is in there is nowhere else
            compactable=False,
        ),
    ]


def connect(config: Config, timeout: float = _CONNECT_TIMEOUT) -> AdminClient:
    """Return an admin client that has reached a broker within ``timeout`` seconds.

    Raises ``Unavailable`` naming the brokers and why none answered; ``ConfigError`` for a setting in
    ``kafka.producer`` that librdkafka does not know.
    """
    reasons: list[KafkaError] = []
    try:
        # A client without brokers connects to nothing: it only checks the settings.
        Producer(dict(config.kafka.producer), logger=SILENT)
        settings: dict[str, Any] = {**config.client("admin"), "error_cb": reasons.append}
        admin = AdminClient(settings, logger=SILENT)
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"kafka.producer: {_text(error)}") from error
    _metadata(admin, config, timeout, reasons)
    return admin


def existing(admin: AdminClient, config: Config) -> dict[str, TopicMetadata]:
    """Return all topics there are. ``Unavailable`` if no broker answers."""
    return _metadata(admin, config, _CONNECT_TIMEOUT, []).topics


def survey(admin: AdminClient, config: Config, tables: Sequence[str]) -> list[FoundTopic]:
    """Look at every topic that relaying ``tables`` needs. ``Unavailable`` if a broker does not answer."""
    topics = needed(config, tables)
    cluster = _metadata(admin, config, _CONNECT_TIMEOUT, [])
    there = cluster.topics
    settings = _settings(admin, config, [topic.name for topic in topics if topic.name in there])
    return [
        FoundTopic(
            topic,
            exists=True,
            problem=_problem(topic, there[topic.name], settings[topic.name]),
            hint=replication_hint(*_replicas(there[topic.name], settings[topic.name]), len(cluster.brokers)),
            largest_message=int(settings[topic.name].get("max.message.bytes", LARGEST_MESSAGE)),
            compacted="compact" in settings[topic.name].get("cleanup.policy", ""),
        )
        if topic.name in there
        else FoundTopic(topic, exists=False)
        for topic in topics
    ]


def ensure(admin: AdminClient, config: Config, tables: Sequence[str]) -> list[FoundTopic]:
    """Create the topics that are missing, and wait until they can be written to. Return them all.

    Raises ``Unavailable`` when one that exists cannot serve, or one cannot be created.
    """
    found = _serving(admin, config, tables)
    missing = [each.topic for each in found if not each.exists]
    if not missing:
        return found
    requests = [
        # The replication factor is the broker's default.
        NewTopic(topic.name, topic.partitions, replication_factor=-1, config=dict(topic.settings))
        for topic in missing
    ]
    for name, future in admin.create_topics(requests, request_timeout=_REQUEST_TIMEOUT).items():
        try:
            future.result(_CREATE_TIMEOUT)
        except KafkaException as error:
            # Another worker was faster. What it made is looked at below.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise Unavailable(f"the topic {name!r} cannot be created: {_text(error)}") from error
    # Creating returns before the new partitions have leaders.
    bounds(admin, [(topic.name, number) for topic in missing for number in range(topic.partitions)])
    return _serving(admin, config, tables)


def _serving(admin: AdminClient, config: Config, tables: Sequence[str]) -> list[FoundTopic]:
    """Return the survey. Raises ``Unavailable`` with every problem in it."""
    found = survey(admin, config, tables)
    if problems := [topic.problem for topic in found if topic.problem]:
        raise Unavailable("\n".join(problems))
    return found


def _problem(topic: Topic, found: TopicMetadata, settings: Mapping[str, str]) -> str:
    count = len(found.partitions)
    policy = settings.get("cleanup.policy", "")
    policies = set(policy.split(","))
    if count != topic.partitions:
        return f"the topic {topic.name!r} has {partition_count(count)} and needs {topic.partitions}: {topic.why}; " + (
            _REPARTITION.format(count=count) if topic.repartitionable else "choose another `name`, or delete it"
        )
    replicas, in_sync = _replicas(found, settings)
    if replicas < in_sync:
        # I1: what is published has to be confirmed by that many.
        return (
            f"the topic {topic.name!r} has min.insync.replicas={in_sync} and a replication factor of {replicas}: "
            "nothing can be written to it"
        )
    if topic.compacted and policies != {"compact"}:
        return (
            f"the topic {topic.name!r} has cleanup.policy={policy} and needs compact: "
            "Kafka would delete what is still needed"
        )
    if not topic.compactable and "compact" in policies:
        # I1
        return (
            f"the topic {topic.name!r} has cleanup.policy={policy} and needs delete: "
            "Kafka would delete all but the last record of a key"
        )
    return ""


def _replicas(found: TopicMetadata, settings: Mapping[str, str]) -> tuple[int, int]:
    """Return the replication factor of a topic and its min.insync.replicas."""
    counts = [len(partition.replicas) for partition in found.partitions.values()]
    return min(counts, default=1), int(settings.get("min.insync.replicas", 1))


def replication_hint(replicas: int, in_sync: int, brokers: int) -> str:
    """Say what the loss of one broker would cost, empty if nothing or if there is only one."""
    if brokers > 1 and replicas == 1:
        return f"one replica on {brokers} brokers: a broker that is lost takes changes with it; 3 are usual"
    if replicas > 1 and in_sync == 1:
        return "min.insync.replicas=1: a change that one broker alone has confirmed is lost with it; 2 is usual"
    return ""


def partition_count(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _metadata(admin: AdminClient, config: Config, timeout: float, reasons: list[KafkaError]) -> ClusterMetadata:
    begun = time.monotonic()
    step = min(1.0, timeout)
    while True:
        try:
            return admin.list_topics(timeout=step)
        except KafkaException as error:
            # What goes wrong between the client and the brokers is only told to its callback.
            admin.poll(0)
            down = any(reason.code() == KafkaError._ALL_BROKERS_DOWN for reason in reasons)
            left = begun + (min(timeout, _DOWN_TIMEOUT) if down else timeout) - time.monotonic()
            if left <= 0 or any(reason.code() in _REFUSALS for reason in reasons):
                raise Unavailable(
                    f"no Kafka broker answers at {config.kafka.bootstrap_servers}: {_reason(error, reasons, config)}"
                ) from error
            # A broker that may only be slow is given all the time there is for one answer.
            step = min(1.0, left) if down else left
            time.sleep(0.1)


def _reason(error: KafkaException, reasons: list[KafkaError], config: Config) -> str:
    """Return the most telling of the errors the client met: "broker transport failure" says nothing."""
    ignored = {KafkaError._ALL_BROKERS_DOWN}
    told = [reason for reason in reasons if reason.code() not in ignored]
    if reasons and not told:
        # Of a connection that was made and then closed the callback is told nothing.
        protocol = config.kafka.producer.get("security.protocol", "plaintext")
        return (
            "it closes the connection at once, as brokers do that want another `security.protocol` than "
            f"{protocol}, which `kafka.producer` can set"
        )
    refused = [reason for reason in told if reason.code() != KafkaError._TRANSPORT]
    chosen = (refused or told)[-1:]
    return chosen[0].str() if chosen else _text(error)


def _settings(admin: AdminClient, config: Config, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of existing topics."""
    if not names:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=_REQUEST_TIMEOUT).items():
        try:
            entries = future.result(_REQUEST_TIMEOUT + 5)
        except KafkaException as error:
            raise Unavailable(
                f"the settings of the topic {resource.name!r} cannot be read (the relay needs the right "
                f"DescribeConfigs): {_text(error)}"
            ) from error
        found[resource.name] = {name: entry.value for name, entry in entries.items()}
    return found


def bounds(
    admin: AdminClient, partitions: Iterable[Partition], timeout: float = _CREATE_TIMEOUT
) -> dict[Partition, tuple[int, int]]:
    """Return the first offset and the end of every partition, as a read_committed reader finds them.

    Waits up to ``timeout`` seconds for partitions that have no leader yet. Raises ``Unavailable``.
    """
    deadline = time.monotonic() + timeout
    wanted = list(partitions)
    first = _offsets(admin, wanted, OffsetSpec.earliest(), deadline)  # type: ignore[no-untyped-call]
    end = _offsets(admin, wanted, OffsetSpec.latest(), deadline)  # type: ignore[no-untyped-call]
    return {partition: (first[partition], end[partition]) for partition in wanted}


def _offsets(
    admin: AdminClient, partitions: Sequence[Partition], spec: OffsetSpec, deadline: float
) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    patience = 1.0
    while missing := [partition for partition in partitions if partition not in found]:
        answers = admin.list_offsets(
            {TopicPartition(*partition): spec for partition in missing},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=patience,
        )
        patience = min(2 * patience, _REQUEST_TIMEOUT)
        for asked, future in answers.items():
            try:
                offset = future.result(_REQUEST_TIMEOUT + 5).offset
                if offset >= 0:
                    found[asked.topic, asked.partition] = offset
                elif time.monotonic() > deadline:  # a request that timed out is answered -1001, without an error
                    raise Unavailable(f"{asked.topic}[{asked.partition}] cannot be read: no answer in time")
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                settling = passes(reason) or reason.code() in _NOT_HEARD_OF
                if not settling or time.monotonic() > deadline:
                    raise Unavailable(f"{asked.topic}[{asked.partition}] cannot be read: {_text(error)}") from error
        if len(found) < len(partitions):
            refresh(admin)
            time.sleep(0.1)
    return found


def refresh(admin: AdminClient) -> None:
    """Make the client ask for all topics. One that asked for a topic before it was there never finds its leaders."""
    with suppress(KafkaException):  # whoever asks again will say that nobody answers
        admin.list_topics(timeout=5.0)


def _text(error: BaseException) -> str:
    inner: Any = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner)

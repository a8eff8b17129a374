"""The topics that the relay requires, and their settings. It creates missing topics, and never alters existing ones."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata

from relay.config import Config
from relay.config.config import Internal
from relay.config.topic_settings import PARTITIONS, REPLICAS, uncompactable
from relay.errors import ConfigError, NoAnswer, Unavailable
from relay.kafka import compaction
from relay.kafka.partition_offsets import offset_bounds
from relay.kafka.port_protocol import spoken
from relay.kafka.transient_errors import failure_of

log = logging.getLogger(__name__)

CHECKPOINT_PARTITIONS = 64  # fixed: a record's partition decides which worker owns the shard
LARGEST_MESSAGE = 8 << 20  # bytes, enough for two images of a 400 KB item as typed JSON with escapes

# Without this, librdkafka reports every failed connection on stderr; our error reports it once.
SILENT_LOG = logging.getLogger("relay.kafka.client")
SILENT_LOG.addHandler(logging.NullHandler())
SILENT_LOG.propagate = False

MOVE = (
    "move to a new topic: stop the relay, let every consumer read the old topic to its end, set another `topics` "
    'template (such as "{name}.{table}.2") along with the new number, confirm it with `relay reset CONFIG --moved '
    "TABLE`, restart the relay, and start the consumers with new checkpoints (deploy/docs/how_to/kafka.md, Move a "
    "table to another topic)"
)

SPREAD = "run `relay repartition CONFIG TABLE --partitions {}`, which keeps the changes of every key in order"

_ALL = "Kafka would delete all but the last record of each key"

# Errors that waiting does not fix.
_REFUSALS = {KafkaError._AUTHENTICATION, KafkaError._SSL}
_CONNECT_TIMEOUT = 10.0
_DOWN_TIMEOUT = 3.0  # when every broker refuses connections: waiting longer seldom helps
_REQUEST_TIMEOUT = 15.0
_CREATE_TIMEOUT = 30.0


Requested = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class RequiredTopic:
    """A required topic. ``why``: the reason for its number of partitions."""

    name: str
    partitions: int
    why: str
    settings: Mapping[str, str] = field(default_factory=dict)
    compacted: bool = False
    # The key of the config with its number of partitions, if the relay can move to a new topic with another number.
    key: str = ""
    uncompactable: str = ""  # why it may not be compacted; empty if it may
    # The settings of the config, which replace the relay's.
    chosen: Mapping[str, str] = field(default_factory=dict)
    replicas: int = -1  # its replication factor, or the broker's default

    def request(self) -> NewTopic:
        config = {**self.settings, **self.chosen}
        return NewTopic(self.name, self.partitions, replication_factor=self.replicas, config=config)

    def described(self) -> str:
        """Return its partitions, and what the config says about it, in words."""
        chosen = {**({REPLICAS: self.replicas} if self.replicas > 0 else {}), **self.chosen}
        return ", ".join((partitions_text(self.partitions), *(f"{name}={value}" for name, value in chosen.items())))


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the broker has it. ``problem``: why the relay cannot use it; empty if it can, or if it is missing.

    ``hint``: a possible improvement, for ``relay check`` only. ``advice``: which settings it should have; also logged.
    """

    topic: RequiredTopic
    exists: bool
    problem: str = ""
    hint: str = ""
    advice: str = ""
    # Bytes, or None if the topic is missing.
    largest_message: int | None = None
    compacted: bool = False


def required(config: Config, tables: Iterable[str]) -> list[RequiredTopic]:
    large = {"max.message.bytes": str(LARGEST_MESSAGE)}
    compact = {"cleanup.policy": "compact"}
    forever = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    topics = [_of_changes(config, table, large) for table in tables]

    def single(kind: Internal, what: str, settings: Mapping[str, str], **more: Any) -> RequiredTopic:
        return RequiredTopic(config.internal(kind), 1, f"{what} are read in a single order", settings, **more)

    ddl = [single("ddl", "the statements of a shard", {**large, **forever}, uncompactable=_ALL)]
    return [
        *{topic.name: topic for topic in topics}.values(),  # once, even if the config's claims leave a table out
        RequiredTopic(
            config.internal("checkpoints"),
            CHECKPOINT_PARTITIONS,
            "a shard's checkpoint is found by the hash of its key",  # I4
            compaction.PROMPT,
            compacted=True,
        ),
        # It has one record per layout of a table, so it stays small.
        single("schemas", "schemas", compact, compacted=True),
        single("watermarks", "watermarks", compaction.PROMPT, compacted=True),
        single("gaps", "gaps", forever, uncompactable=_ALL),
        # I1: a dead letter is the only copy of its change
        single("dead_letters", "dead letters", {**large, **forever}, uncompactable=_ALL),
        *(ddl if "ddl" in config.own_topics else ()),
    ]


def _of_changes(config: Config, table: str, settings: Mapping[str, str]) -> RequiredTopic:
    said = config.topic_settings_of(table)
    chosen = {name: value for name, (_, value) in said.items() if name not in (PARTITIONS, REPLICAS)}
    named = config.tables.get(table)
    # Which of the sources that name no tables has this one is not known.
    owners = [named] if named is not None else [each for each in config.sources if not each.names_tables]
    topic = config.topic(table)
    why = (uncompactable(each, shared=topic in config.shared_topics) for each in owners)
    return RequiredTopic(
        topic,
        config.partitions(table),
        "the changes of a key stay in order only while they go to the same partition",  # I2
        {**settings, **(compaction.LATE if "compact" in chosen.get("cleanup.policy", "") else {})},
        key=".".join(map(str, said[PARTITIONS][0])),
        uncompactable=next(filter(None, why), ""),
        chosen=chosen,
        replicas=int(said[REPLICAS][1]) if REPLICAS in said else -1,
    )


def connect(config: Config, timeout: float = _CONNECT_TIMEOUT) -> AdminClient:
    """Return an admin client that has reached a broker within ``timeout`` seconds.

    Raises ``Unavailable``; ``ConfigError`` for a setting in ``kafka.producer`` that librdkafka refuses.
    """
    reasons: list[KafkaError] = []
    try:
        # A client without brokers connects to nothing; it only validates the settings.
        Producer(dict(config.kafka.producer), logger=SILENT_LOG)
        settings: dict[str, Any] = {**config.client("admin"), "error_cb": reasons.append}
        if config.kafka.iam is not None:
            # The client would wait for a token for ever, without saying why.
            settings["oauth_cb"].make()
        admin = AdminClient(settings, logger=SILENT_LOG)
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"kafka.producer: {unreadable(config.kafka.producer) or _error_text(error)}") from error
    _metadata(admin, config, timeout, reasons)
    return admin


def unreadable(settings: Mapping[str, Any]) -> str:
    """Return which TLS file cannot be read, which OpenSSL does not say; empty if all can, or none is named."""
    for key, path in settings.items():
        is_file = key.startswith("ssl.") and key.endswith(".location") and path != "probe"
        if is_file and not os.access(path, os.R_OK):
            return f"`{key}`: there is no file {path}, or it cannot be read"
    return ""


def list_topics(admin: AdminClient, config: Config) -> dict[str, TopicMetadata]:
    """Return all topics of the cluster. Raises ``Unavailable`` if no broker answers."""
    return _metadata(admin, config, _CONNECT_TIMEOUT, []).topics


def cluster_id(admin: AdminClient, config: Config) -> str:
    """Return the id of the cluster, empty if it has none. Raises ``Unavailable`` if no broker answers."""
    return _metadata(admin, config, _CONNECT_TIMEOUT, []).cluster_id or ""


def survey(admin: AdminClient, config: Config, tables: Sequence[str], requested: Requested = dict) -> list[FoundTopic]:
    """Inspect every topic required to relay ``tables``. Raises ``Unavailable`` if no broker answers.

    ``requested``: returns, by topic, the numbers of partitions that `relay repartition` has requested. It is called
    only if a topic has more partitions than the config says.
    """
    topics = required(config, tables)
    cluster = _metadata(admin, config, _CONNECT_TIMEOUT, [])
    there = cluster.topics
    counts = {topic.name: len(there[topic.name].partitions) for topic in topics if topic.name in there}
    if any(topic.key and counts.get(topic.name, 0) > topic.partitions for topic in topics):
        # I9: a table that shares a topic now does not know what was requested for one that had the topic for itself.
        found = {topic: number for topic, number in requested().items() if topic not in config.shared_topics}
        topics = [
            replace(topic, partitions=counts[topic.name])
            if topic.key and topic.partitions < found.get(topic.name, 0) <= counts.get(topic.name, 0)
            else topic
            for topic in topics
        ]
    settings = _settings(admin, config, [topic.name for topic in topics if topic.name in there])
    return [
        FoundTopic(
            topic,
            exists=True,
            problem=_problem(topic, there[topic.name], settings[topic.name], config.kafka.bootstrap_servers),
            hint=replication_hint(*_replicas(there[topic.name], settings[topic.name]), len(cluster.brokers)),
            advice=_advice(topic, there[topic.name], settings[topic.name], config.kafka.bootstrap_servers),
            largest_message=int(settings[topic.name].get("max.message.bytes", LARGEST_MESSAGE)),
            compacted="compact" in settings[topic.name].get("cleanup.policy", ""),
        )
        if topic.name in there
        else FoundTopic(topic, exists=False, problem=_unfit_policy(topic, topic.chosen, "would have"))
        for topic in topics
    ]


def create_missing(
    admin: AdminClient, config: Config, tables: Sequence[str], requested: Requested = dict
) -> list[FoundTopic]:
    """Create the missing topics, wait for their leaders, and return all that are required. Raises ``Unavailable``.

    ``requested``: see `survey`.
    """
    found = _require_usable(admin, config, tables, requested)
    missing = [each.topic for each in found if not each.exists]
    if not missing:
        return found
    created = admin.create_topics([topic.request() for topic in missing], request_timeout=_REQUEST_TIMEOUT)
    for name, future in created.items():
        try:
            future.result(_CREATE_TIMEOUT)
        except KafkaException as error:
            # Another worker may have created it; the survey below checks the topic.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise failure_of(error, f"cannot create topic {name!r}") from error
    # The request returns before the new partitions have leaders.
    offset_bounds(admin, [(topic.name, number) for topic in missing for number in range(topic.partitions)])
    return _require_usable(admin, config, tables, requested)


def _require_usable(
    admin: AdminClient, config: Config, tables: Sequence[str], requested: Requested
) -> list[FoundTopic]:
    """Return the survey. Raises ``Unavailable`` with all its problems."""
    found = survey(admin, config, tables, requested)
    if problems := [topic.problem for topic in found if topic.problem]:
        raise Unavailable("\n".join(problems))
    for each in found:
        if each.advice:
            log.warning("topic %s: %s", each.topic.name, each.advice)
    return found


def _problem(topic: RequiredTopic, found: TopicMetadata, settings: Mapping[str, str], bootstrap_servers: str) -> str:
    count = len(found.partitions)
    policy = settings.get("cleanup.policy", "")
    if count != topic.partitions:
        return f"topic {topic.name!r} has {partitions_text(count)} but needs {topic.partitions}: {topic.why}; " + (
            f"if it has always had {count}, set `{topic.key}: {count}`; to spread its changes over "
            f"{max(count, topic.partitions)}, {SPREAD.format(max(count, topic.partitions))}"
            if topic.key
            else "choose another `name`, or delete the topic if it is empty"
        )
    replicas, in_sync = _replicas(found, settings)
    if replicas < in_sync:
        # I1: so many replicas must confirm a write.
        return (
            f"nothing can be written to topic {topic.name!r}: it has min.insync.replicas={in_sync} but a replication "
            f"factor of {replicas}; add replicas or lower min.insync.replicas"
        )
    if topic.compacted and policy != "compact":
        why = "Kafka would delete records that the relay still needs"
        return f"topic {topic.name!r} has cleanup.policy={policy} but needs compact: {why}"
    forgotten = compaction.forgetting(topic.name, topic.settings, settings, bootstrap_servers)
    return _unfit_policy(topic, settings) or forgotten


def _unfit_policy(topic: RequiredTopic, settings: Mapping[str, str], has: str = "has") -> str:
    policy = settings.get("cleanup.policy", "")
    if not topic.uncompactable or "compact" not in policy:
        return ""
    return f"topic {topic.name!r} {has} cleanup.policy={policy} but needs delete: {topic.uncompactable}"  # I1


def _advice(topic: RequiredTopic, found: TopicMetadata, settings: Mapping[str, str], bootstrap_servers: str) -> str:
    """Return how a topic should be compacted, and what it has that differs from the config."""
    wanted = topic.chosen.items()
    differs = {name: value for name, value in wanted if {*settings.get(name, "").split(",")} != {*value.split(",")}}
    texts = [compaction.advice(topic.name, topic.settings, settings, bootstrap_servers)]
    if differs:
        has = ", ".join(f"{name}={settings.get(name, '')}" for name in differs)
        said = ", ".join(f"{name}={value}" for name, value in differs.items())
        command = compaction.command(topic.name, differs, bootstrap_servers)
        texts.append(f"it has {has}, but `topic_settings` says {said}: {command}")
    replicas = _replicas(found, settings)[0]
    if topic.replicas not in (-1, replicas):
        remedy = "move its replicas with `kafka-reassign-partitions`"
        texts.append(f"it has {REPLICAS}={replicas}, but `topic_settings` says {topic.replicas}: {remedy}")
    return "; ".join(filter(None, texts))


def _replicas(found: TopicMetadata, settings: Mapping[str, str]) -> tuple[int, int]:
    """Return the replication factor of a topic, and its min.insync.replicas."""
    counts = [len(partition.replicas) for partition in found.partitions.values()]
    return min(counts, default=1), int(settings.get("min.insync.replicas", 1))


def replication_hint(replicas: int, in_sync: int, brokers: int) -> str:
    """Return what the loss of one broker would cost; empty if nothing, or if there is only one broker."""
    if brokers > 1 and replicas == 1:
        return f"1 replica on {brokers} brokers: losing one broker would lose changes; use 3 replicas"
    if replicas > 1 and in_sync == 1:
        return "min.insync.replicas=1: losing one broker could lose changes that only it has confirmed; use 2"
    return ""


def partitions_text(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _metadata(admin: AdminClient, config: Config, timeout: float, reasons: list[KafkaError]) -> ClusterMetadata:
    begun = time.monotonic()
    step = min(1.0, timeout)
    while True:
        try:
            return admin.list_topics(timeout=step)
        except KafkaException as error:
            # The client reports connection errors only to the callback.
            admin.poll(0)
            down = any(reason.code() == KafkaError._ALL_BROKERS_DOWN for reason in reasons)
            left = begun + (min(timeout, _DOWN_TIMEOUT) if down else timeout) - time.monotonic()
            refused = any(reason.code() in _REFUSALS for reason in reasons)
            if left <= 0 or refused:
                reason = _connection_failure(error, reasons, config)
                failure = Unavailable if refused else NoAnswer
                raise failure(f"no Kafka broker answers at {config.kafka.bootstrap_servers}: {reason}") from error
            # A slow broker gets all the remaining time for one answer.
            step = min(1.0, left) if down else left
            time.sleep(0.1)


def _connection_failure(error: KafkaException, reasons: list[KafkaError], config: Config) -> str:
    """Return the most specific of the client's errors: "broker transport failure" explains nothing."""
    specific = [reason for reason in reasons if reason.code() != KafkaError._ALL_BROKERS_DOWN]
    protocol = str(config.kafka.producer.get("security.protocol", "plaintext"))
    is_told = "ssl" in protocol.lower() or any(reason.code() in _REFUSALS for reason in reasons)
    if not is_told and (said := spoken(config.kafka.bootstrap_servers)):
        return said
    if reasons and not specific:
        # The callback gets no error for a connection that was accepted and then closed, or left without an answer.
        return (
            "it closes the connection or does not answer: it hangs, or requires a `security.protocol` other than "
            f"{protocol}: set the right one in `kafka.producer`"
        )
    refused = [reason for reason in specific if reason.code() != KafkaError._TRANSPORT]
    chosen = (refused or specific)[-1:]
    return chosen[0].str() if chosen else _error_text(error)


def _settings(admin: AdminClient, config: Config, names: Sequence[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=_REQUEST_TIMEOUT).items():
        try:
            entries = future.result(_REQUEST_TIMEOUT + 5)
        except KafkaException as error:
            raise failure_of(error, f"cannot read the settings of topic {resource.name!r}") from error
        found[resource.name] = {name: entry.value for name, entry in entries.items()}
    return found


def _error_text(error: BaseException) -> str:
    inner: Any = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner)

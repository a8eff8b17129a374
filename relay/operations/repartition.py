"""``relay repartition``: spreads the changes of a table over more partitions of its topic, while the relay runs.

The command adds the partitions, and requests that they are used. Each worker that sees the request stops publishing to
the topic and says so in the records of its partitions. Once all have, the owner of the source's plan ends the former
partitions with a mark and writes the new number into the plan; from then on the workers publish to all partitions. So
no change of a key is published to its new partition before all its earlier ones are in the former (I2).
"""

import time
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from relay.config import Config
from relay.config.errors import did_you_mean
from relay.errors import ConfigError, RelayError
from relay.kafka import topics
from relay.kafka.checkpoints import read_checkpoints
from relay.kafka.group import members
from relay.kafka.partition_offsets import offset_bounds
from relay.kafka.settings import KafkaSettings
from relay.kafka.transient_errors import failure_of
from relay.kafka.unfenced import write_unfenced
from relay.records import RequestedPartitions, partitions_key

_PATIENCE = 60.0
_REQUEST_TIMEOUT = 15.0
_LOOK_EVERY = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Repartitioned:
    topic: str
    partitions: int
    before: int  # the former number of partitions
    workers: int  # how many are running
    done: bool = False  # whether changes go to all partitions by now

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def repartition(config: Config, table: str, partitions: int, *, patience: float = _PATIENCE) -> Repartitioned:
    """Spread the changes of ``table`` over ``partitions``. Wait up to ``patience`` seconds until running workers do so.

    Raises ``ConfigError`` for an unknown table, a number that is not larger than the present one, a shared topic, or
    the envelope of Debezium; ``RelayError`` if the relay has not published the table yet; ``Unavailable``.
    """
    if (entry := config.tables.get(table)) is None:
        raise ConfigError(f"no source has a table {table}; {did_you_mean(table, config.tables, 'the tables are ')}")
    if entry.is_debezium:  # I2
        raise ConfigError(
            f"source {entry.name}: `envelope: debezium` has no mark that ends a partition, so its readers could apply "
            f"changes in another order. Instead, {topics.MOVE}"
        )
    if config.topic(table) in config.shared_topics:  # I2
        raise ConfigError(
            f"topic {config.topic(table)} is shared by several tables, and the relay moves one table at a time to more "
            f"partitions. Instead, {topics.MOVE}"
        )
    settings, topic = KafkaSettings.from_config(config), config.topic(table)
    admin = topics.connect(config)
    there = topics.list_topics(admin, config)
    has_topics = settings.checkpoints in there and topic in there
    view = read_checkpoints(settings.client, settings.checkpoints) if has_topics else None
    if view is None or (before := view.partitions_of(entry.name).get(topic)) is None:
        raise RelayError(
            f"relay {config.name} has not published table {table} yet: set the number of partitions in "
            "`topic_settings`, and the relay creates the topic with it"
        )
    requested = view.requested_of(entry.name).get(topic, 0)
    found = Repartitioned(topic, partitions, before, len(members(admin, settings.group, settings.checkpoints)))
    if before == partitions:
        return replace(found, done=True)
    without = sorted({each.process for each in view.owners.values() if entry.name not in each.sources})
    if found.workers and without:  # I10: if one of them keeps the plan, nobody changes it
        raise RelayError(
            f"source {entry.name} is not in the config of {', '.join(without)}: give every worker the same config first"
        )
    exist = len(there[topic].partitions)
    if partitions < before:
        raise ConfigError(
            f"--partitions {partitions}: the changes of topic {topic} go to {before} partitions already, and Kafka "
            f"cannot remove any: {topics.MOVE}"
        )
    if partitions < requested:
        raise ConfigError(f"--partitions {partitions}: too few: {requested} were already requested for topic {topic}")
    if partitions < exist:
        raise ConfigError(
            f"--partitions {partitions}: topic {topic} has {exist} partitions already, and Kafka cannot remove any: "
            "use all"
        )
    if exist < partitions:
        _add(admin, topic, exist, partitions)
    key = partitions_key(entry.name, topic)
    write_unfenced(settings, key, RequestedPartitions(partitions).to_json(), "relay repartition")
    deadline = time.monotonic() + (patience if found.workers else 0.0)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
        view = read_checkpoints(settings.client, settings.checkpoints)
        if view.partitions_of(entry.name).get(topic) == partitions:
            return replace(found, done=True)
    return found


def _add(admin: AdminClient, topic: str, exist: int, partitions: int) -> None:
    """Add partitions to a topic and wait for their leaders. Raises ``Unavailable``."""
    asked = admin.create_partitions([NewPartitions(topic, partitions)], request_timeout=_REQUEST_TIMEOUT)
    try:
        asked[topic].result(_REQUEST_TIMEOUT + 5)
    except KafkaException as error:
        raise failure_of(error, f"cannot add partitions to topic {topic!r}") from error
    offset_bounds(admin, [(topic, number) for number in range(exist, partitions)])

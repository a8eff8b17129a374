"""Says which partition has too few replicas in sync to be written to. librdkafka repeats such writes without a word."""

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from relay.kafka.topics import SILENT_LOG

_INTERNAL = ("__transaction_state", "__consumer_offsets")
"""What a transaction writes to beside the topics."""

_TIMEOUT = 2.0


def shortage(client: Mapping[str, Any], topics: Collection[str]) -> str:
    """Return what keeps transactions with records on ``topics`` from being committed; empty if nothing is known to.

    Takes two requests of up to two seconds. What this user may not see is taken for writable.
    """
    settings: dict[str, Any] = {**client, "logger": SILENT_LOG}
    admin = AdminClient(settings)
    try:
        known = admin.list_topics(timeout=_TIMEOUT).topics
        found = sorted({*topics, *_INTERNAL} & known.keys())
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in found]
        configs = list(admin.describe_configs(resources, request_timeout=_TIMEOUT).values())
    except KafkaException:
        return ""  # no broker answers, which its own errors say
    for topic, future in zip(found, configs, strict=True):
        try:
            needed = int(future.result(_TIMEOUT)["min.insync.replicas"].value)
        except (KafkaException, KeyError, TimeoutError):
            continue
        for number, partition in sorted(known[topic].partitions.items()):
            if (in_sync := len(partition.isrs)) < needed:
                return (
                    f"nothing can be written to partition {number} of topic {topic!r}: {in_sync} of its "
                    f"{len(partition.replicas)} replicas {'is' if in_sync == 1 else 'are'} in sync, and "
                    f"min.insync.replicas is {needed}. Start the brokers that are away"
                )
    return ""

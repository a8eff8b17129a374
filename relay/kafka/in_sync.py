"""Says which partition has too few replicas in sync to be written to. librdkafka repeats such writes without a word."""

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from relay.kafka.topics import SILENT_LOG

_INTERNAL = ("__transaction_state", "__consumer_offsets")
"""What a transaction writes to beside the topics."""

_TIMEOUT = 2.0


def shortage(client: Mapping[str, Any], topics: Collection[str]) -> str:
    """Return what keeps transactions with records on ``topics`` from being committed; empty if nothing is known to.

    Takes two seconds at most. What this user may not see is taken for writable.
    """
    names = sorted({*topics, *_INTERNAL})
    settings: dict[str, Any] = {**client, "logger": SILENT_LOG}
    admin = AdminClient(settings)
    described = admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    for resource, configured in admin.describe_configs(resources, request_timeout=_TIMEOUT).items():
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

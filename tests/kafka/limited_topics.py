"""Topics with settings of a test's own, such as a small ``max.message.bytes``."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic


def create(bootstrap_servers: str, name: str, partitions: int, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    wanted = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topics([NewTopic(name, partitions, config=wanted)])[name].result(120)


def limit(bootstrap_servers: str, topic: str, size: int) -> None:
    """Set the ``max.message.bytes`` of a topic that exists."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(120)

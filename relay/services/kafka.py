"""An embedded Kafka broker: KRaft, one node, one process.

The settings make it small and fast. They do not weaken the guarantees of transactions and consumer groups.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.errors import Unavailable
from relay.jvm.jars import jars
from relay.process.managed import HOST, accepts
from relay.services.server import EmbeddedServer, java_command

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "CLIENT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # A broker that was killed can register again only after its old session ends. The default is 9 s.
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "500",
    # How often the broker aborts expired transactions. The default of 10 s adds up to 10 s to each timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # The cleaner's buffer is part of the heap; the default of 128 MB is too much.
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
    # For each partition, and not all file systems have sparse files.
    "log.index.size.max.bytes": str(1 << 20),
}


class KafkaBroker(EmbeddedServer):
    """Kafka 4.1 on the loopback address, without automatic creation of topics.

    ``settings``: of the broker, in addition to those here or instead of them. ``client``: the settings with which a
    client can connect, if that takes more than the address.
    """

    name: ClassVar[str] = "kafka"
    ports_needed: ClassVar[int] = 2

    def __init__(
        self,
        folder: Path | None = None,
        detached: bool = False,
        *,
        settings: Mapping[str, str] | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, detached)
        self._settings = dict(settings or {})
        self._client = dict(client or {})

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return self.bootstrap_servers

    @property
    def _settings_file(self) -> Path:
        return self.folder / "server.properties"

    def _prepare(self) -> None:
        client, controller = self.ports
        data = self.folder / "data"
        settings = SETTINGS | {
            "listeners": f"CLIENT://{HOST}:{client},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"CLIENT://{HOST}:{client}",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "log.dirs": str(data),
        }
        settings |= self._settings
        self._settings_file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if (data / "meta.properties").exists():
            return
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster_id(), "-c", str(self._settings_file))
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=self.start_timeout, stdin=subprocess.DEVNULL, check=False
        )
        if answer.returncode != 0:
            raise Unavailable(f"cannot format the storage of Kafka in {data}:\n{answer.stdout}{answer.stderr}")

    def _java(self, *arguments: str) -> list[str]:
        classpath = ":".join(map(str, jars("kafka")))
        return java_command("512m", "-Djava.awt.headless=true", "-cp", classpath, *arguments)

    def _command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._settings_file))

    def _ready(self) -> bool:
        return accepts(self.port) and coordinates(self.bootstrap_servers, self._client)


def cluster_id() -> str:
    """Return a random cluster id, 16 bytes in URL-safe base64. It never starts with a dash, as an option does."""
    return "r" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def coordinates(bootstrap_servers: str, settings: Mapping[str, str] | None = None) -> bool:
    """Return whether transactions and groups work: right after a start their coordinators are still loading."""
    client: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap_servers,
        "socket.connection.setup.timeout.ms": 2000,
        "log_level": 0,
        **(settings or {}),
    }
    try:
        if not AdminClient(client).list_topics(timeout=5.0).brokers:
            return False
        producer = Producer(client | {"transactional.id": "relay-readiness"})
        producer.init_transactions(10.0)
        consumer = Consumer(client | {"group.id": "relay-readiness", "enable.auto.commit": False})
        try:
            consumer.committed([TopicPartition("relay-readiness", 0)], timeout=10.0)
        finally:
            consumer.close()
    except KafkaException:
        return False
    return True

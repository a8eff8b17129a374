"""An embedded Kafka broker: KRaft, one node, one process.

The settings make it small and fast. They do not weaken the guarantees of transactions and consumer groups.
"""

import base64
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.errors import Unavailable
from relay.jvm.jars import SETS, cache_folder, jars
from relay.process.folders import made_once
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

_META = "meta.properties"
_FORMAT_SECONDS = 60.0


class KafkaBroker(EmbeddedServer):
    """Kafka 4.1 on the loopback address, without automatic creation of topics. ``options``: settings of the broker."""

    name = "kafka"
    ports_needed = 2
    start_timeout = 300.0  # seconds; after a kill, a busy machine recovers the log slowly

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    address = bootstrap_servers

    def _prepare(self) -> None:
        data = self.folder / "data"
        _write(self.folder / "server.properties", {**_settings(data, *self.ports), **self.options})
        if (data / _META).exists():
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as spare:
            others = shutil.ignore_patterns(_META)  # its own is written last, and says that the folder is complete
            shutil.copytree(_template(Path(spare)), data, ignore=others, dirs_exist_ok=True)
        own = {"version": 1, "node.id": SETTINGS["node.id"], "cluster.id": random_id(), "directory.id": random_id()}
        _write(data / _META, own)

    def _command(self) -> list[str]:
        return _java(*self.java_options(), "kafka.Kafka", str(self.folder / "server.properties"))

    def java_options(self) -> list[str]:
        """Return options that the tests add, such as an archive of Kafka's classes."""
        return []

    def _ready(self) -> bool:
        return accepts(self.port) and coordinates(self.bootstrap_servers)


def _settings(data: Path, client: int, controller: int) -> dict[str, str]:
    return SETTINGS | {
        "listeners": f"CLIENT://{HOST}:{client},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"CLIENT://{HOST}:{client}",
        "controller.quorum.voters": f"{SETTINGS['node.id']}@{HOST}:{controller}",
        "log.dirs": str(data),
    }


def _write(file: Path, settings: Mapping[str, object]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def _java(*arguments: str) -> list[str]:
    classpath = ":".join(map(str, jars("kafka")))
    return java_command("-Djava.awt.headless=true", "-cp", classpath, *arguments)


def _template(spare: Path) -> Path:
    """Return the data folder of a new broker, made once per version, as its content depends on no setting.

    ``spare``: where to make it if the cache is not writable.
    """
    template = cache_folder() / f"kafka-data-{SETS['kafka'].version}"
    try:
        return made_once(template, lambda: _format(template))
    except OSError:
        own = spare / template.name
        _format(own)
        return own


def _format(template: Path) -> None:
    with tempfile.TemporaryDirectory(dir=template.parent) as folder:
        data, file = Path(folder) / "data", Path(folder) / "server.properties"
        _write(file, _settings(data, 1, 2))
        command = _java("kafka.tools.StorageTool", "format", "-t", random_id(), "-c", str(file))
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_FORMAT_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
        if answer.returncode != 0:
            raise Unavailable(f"cannot format the storage of Kafka in {data}:\n{answer.stdout}{answer.stderr}")
        data.rename(template)


def random_id() -> str:
    """Return 16 random bytes in URL-safe base64. They never start with a dash, as an option does."""
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
        with closing(Consumer(client | {"group.id": "relay-readiness", "enable.auto.commit": False})) as consumer:
            consumer.committed([TopicPartition("relay-readiness", 0)], timeout=10.0)
    except KafkaException:
        return False
    return True

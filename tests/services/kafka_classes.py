"""An archive of the classes of Kafka, with which each broker of the tests starts in half the CPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relay.errors import Unavailable
from relay.jvm.jars import jars
from relay.jvm.java import find_java
from relay.services.kafka import KafkaBroker
from tests.jvm.class_archive import archive_of, making, using

_ARCHIVE_SECONDS = 120.0


class Training(KafkaBroker):
    """Writes the archive of its classes when it ends."""

    def __init__(self, archive: Path) -> None:
        super().__init__()
        self._archive = archive

    def java_options(self) -> list[str]:
        return making(self._archive)


def archive() -> Path:
    """Return the file with the classes of a broker."""
    return archive_of("kafka", [find_java().resolve(), *jars("kafka")])


def java_options(_: KafkaBroker) -> list[str]:
    """Return the options that make a broker use the archive, if there is one."""
    found = archive()
    return using(found) if found.exists() else []


def archive_classes() -> None:
    """Make the archive with which a broker starts in half the CPU, 50 MB, if there is none. Raises ``Unavailable``."""
    wanted = archive()
    if wanted.exists():
        return
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wanted.parent) as folder:
            made = Path(folder) / wanted.name
            with Training(made) as broker:
                use(broker.bootstrap_servers)
                broker.process.stop(_ARCHIVE_SECONDS)
                if not made.exists():
                    raise Unavailable(f"cannot make an archive of Kafka's classes:\n{broker.process.log_tail()}")
            made.rename(wanted)
    except OSError as fault:
        raise Unavailable(f"cannot make an archive of Kafka's classes: {fault}") from fault


def use(bootstrap_servers: str) -> None:
    """Let a broker do what brokers do for the relay: topics, transactions and groups. Raises ``Unavailable``."""
    try:
        _use(bootstrap_servers)
    except (KafkaException, TimeoutError) as fault:
        raise Unavailable(f"a broker at {bootstrap_servers} does not do what the relay needs: {fault}") from fault


def _use(bootstrap_servers: str) -> None:
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers}
    admin = AdminClient(client)
    admin.create_topics([NewTopic("training", 2, 1)])["training"].result(120)
    producer = Producer(client | {"transactional.id": "training"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("training", b"value", b"key")
    producer.commit_transaction(30)
    settings = {"group.id": "training", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer(client | settings)
    consumer.subscribe(["training"])
    consumer.consume(1, 30)
    consumer.commit(asynchronous=False)
    consumer.close()

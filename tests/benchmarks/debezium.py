"""Debezium as a user runs it who has tuned it: its connectors in one worker of Kafka Connect, with a JVM that is warm.

The worker sends JSON without schemas, in batches, compressed as the relay's. It repeats changes after a crash; only a
distributed worker can send in transactions.
"""

from __future__ import annotations

import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import orjson
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError
from relay.jvm.jars import Artifact, JarSet, fetched
from relay.jvm.java import find_java
from relay.process.managed import HOST
from relay.services.kafka import KafkaBroker
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.services.server import EmbeddedServer
from tests.benchmarks.backlog import PARTITIONS, TABLE, Run, Watch
from tests.benchmarks.harness import count_committed

_WORKER = JarSet(
    "connect",
    "4.1.1",
    (Artifact("org.apache.kafka", "connect-runtime", "4.1.1"), Artifact("org.slf4j", "slf4j-simple", "1.7.36")),
)
CONNECTORS = {
    "mariadb": JarSet(
        "debezium-mariadb", "3.4.0.Final", (Artifact("io.debezium", "debezium-connector-mariadb", "3.4.0.Final"),)
    ),
    "vitess": JarSet(
        "debezium-vitess",
        "3.4.1.Final",
        (
            Artifact("io.debezium", "debezium-connector-vitess", "3.4.1.Final"),
            Artifact("io.debezium", "debezium-core", "3.4.1.Final"),
        ),
    ),
}
_PATIENCE = 600.0  # seconds for all rows of a run

_SETTINGS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "plugin.discovery": "only_scan",
    # The defaults of Connect send one batch of 16 kB after the other, without idempotence.
    "producer.enable.idempotence": "true",
    "producer.max.in.flight.requests.per.connection": "5",
    "producer.linger.ms": "5",
    "producer.batch.size": str(512 << 10),
    "producer.buffer.memory": str(128 << 20),
    "producer.compression.type": "lz4",
}

# The defaults are batches of 2,048 in a queue of 8,192, asked for every 500 ms.
_TUNED = {
    "tasks.max": "1",
    "max.batch.size": "16384",
    "max.queue.size": "65536",
    "poll.interval.ms": "5",
    "tombstones.on.delete": "false",
}


TUNED = "Debezium tuned, in a warm JVM, not transactional, JSON without schemas"
"""What a note says about it."""


def mariadb_settings(mariadb: MariaDB, database: str, broker: KafkaBroker) -> dict[str, str]:
    """Return the settings of a connector for ``TABLE`` without a mode of snapshot."""
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.hostname": HOST,
        "database.port": str(mariadb.port),
        "database.user": USER,
        "database.password": PASSWORD,
        "database.server.id": "77",
        "database.ssl.mode": "disable",
        "database.include.list": database,
        "table.include.list": f"{database}.{TABLE}",
        "include.schema.changes": "false",
        "snapshot.locking.mode": "none",
        "schema.history.internal.kafka.bootstrap.servers": broker.bootstrap_servers,
        "schema.history.internal.kafka.topic": "{prefix}.history",
    }


class ConnectWorker(EmbeddedServer):
    """A standalone worker with one of ``CONNECTORS``, which sends to the brokers ``servers``."""

    name: ClassVar[str] = "connect"
    start_timeout: ClassVar[float] = 120.0
    program: ClassVar[JarSet] = _WORKER
    heap: ClassVar[tuple[str, ...]] = ("-Xms1g", "-Xmx2g")

    def __init__(self, connector: str, servers: str) -> None:
        super().__init__()
        self._connector = connector
        self._servers = servers

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def _settings_file(self) -> Path:
        return self.folder / "worker.properties"

    def _prepare(self) -> None:
        plugins = self.folder / "plugins"
        plugins.mkdir(exist_ok=True)
        for connector in self._plugins():
            fetched(connector)
            link = plugins / connector.name
            if not link.exists():
                link.symlink_to(connector.folder)
        settings = self._worker_settings() | {
            "bootstrap.servers": self._servers,
            "listeners": self.address,
            "plugin.path": str(plugins),
            "offset.storage.file.filename": str(self.folder / "offsets"),
        }
        self._settings_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _plugins(self) -> list[JarSet]:
        return [CONNECTORS[self._connector]]

    def _worker_settings(self) -> dict[str, str]:
        return _SETTINGS

    def _command(self) -> list[str]:
        classpath = ":".join(map(str, fetched(self.program)))
        # With all its compilers, as it is meant to run.
        java = [str(find_java()), *self.heap, "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return [*java, "-cp", classpath, "org.apache.kafka.connect.cli.ConnectStandalone", str(self._settings_file)]

    def _ready(self) -> bool:
        try:
            self.ask("GET", "/connectors")
        except (OSError, RelayError):
            return False
        return True

    def relayed(
        self, settings: Mapping[str, str], topic: str, expected: int, offset: Mapping[str, Any] | None = None
    ) -> Run:
        """Let a new connector publish ``expected`` rows, and measure it from the first to the last.

        ``settings``: its own, beside those of ``_TUNED``; ``{prefix}`` in them and in ``topic`` becomes the name of the
        run. ``offset``: where it begins to stream, as it would store that itself; None if ``settings`` say so.
        """
        prefix = f"debezium-{secrets.token_hex(4)}"
        topic = topic.replace("{prefix}", prefix)
        config = _TUNED | {"topic.prefix": prefix} | {k: v.replace("{prefix}", prefix) for k, v in settings.items()}
        admin = AdminClient({"bootstrap.servers": self._servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        with closing(Watch(self._servers, topic, expected, self.process)) as watch:
            watch.start()
            self.ask("POST", "/connectors", {"name": prefix, "config": config, "initial_state": "STOPPED"})
            if offset is not None:
                offsets = [{"partition": {"server": prefix}, "offset": offset}]
                self._patient("PATCH", f"/connectors/{prefix}/offsets", {"offsets": offsets})
            self.ask("PUT", f"/connectors/{prefix}/resume")
            self._wait(watch, prefix)
            first, last = watch.ends()
            self.ask("DELETE", f"/connectors/{prefix}")
        seen = count_committed({"bootstrap.servers": self._servers}, topic)
        admin.delete_topics([topic])[topic].result(30)
        return Run.between(first, last, expected, seen)

    def _wait(self, watch: Watch, name: str) -> None:
        """Wait until all rows have come. Raises ``RelayError`` if the connector fails, or takes too long."""
        deadline = time.monotonic() + _PATIENCE
        while not watch.is_complete:
            tasks = self.ask("GET", f"/connectors/{name}/status")["tasks"]
            failed = [task["trace"] for task in tasks if task["state"] == "FAILED"]
            if failed or not self.alive or time.monotonic() > deadline:
                why = failed[0] if failed else f"not all rows came: {self.process.log_tail()}"
                raise RelayError(f"Debezium's connector failed: {why}")
            time.sleep(0.2)

    def _patient(self, method: str, path: str, body: object) -> None:
        """Ask until the connector has stopped, which its first state is only in a moment."""
        for _ in range(100):
            try:
                self.ask(method, path, body)
                return
            except RelayError as error:
                problem = error
                time.sleep(0.1)
        raise problem

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise RelayError(f"Connect refuses {method} {path}: {error.read().decode()}") from error
        return orjson.loads(text) if text else None

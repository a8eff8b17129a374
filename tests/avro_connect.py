"""Kafka Connect with Avro converters and Debezium's connectors, unchanged: what other people read the topics with.

Its release is 3.9: the converter of Apicurio 2.6 calls a method of Kafka's that 4.0 has removed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from relay.errors import RelayError
from relay.jvm.jars import Artifact, JarSet, unpack_tarballs
from tests.benchmarks.debezium import CONNECTORS, ConnectWorker
from tests.waiting import PATIENCE

_CONVERTER = JarSet(
    "apicurio-converter",
    "2.6.13.Final",
    (Artifact("io.apicurio", "apicurio-registry-utils-converter", "2.6.13.Final"),),
)
_SINK = JarSet(
    "debezium-jdbc",
    "3.4.0.Final",
    (Artifact("io.debezium", "debezium-connector-jdbc", "3.4.0.Final", "tar.gz", "plugin"),),
    unpack=unpack_tarballs,
)


class AvroConnect(ConnectWorker):
    """A standalone worker with Debezium's MariaDB source and its JDBC sink, on the brokers ``servers``.

    ``registry``: the URL of an Apicurio registry, without a path.
    """

    program: ClassVar[JarSet] = JarSet(
        "connect",
        "3.9.1",
        (Artifact("org.apache.kafka", "connect-runtime", "3.9.1"), Artifact("org.slf4j", "slf4j-simple", "1.7.36")),
    )
    heap: ClassVar[tuple[str, ...]] = ("-Xmx768m",)

    def __init__(self, servers: str, registry: str) -> None:
        super().__init__("mariadb", servers)
        self._registry = registry

    def _plugins(self) -> list[JarSet]:
        return [CONNECTORS["mariadb"], _SINK, _CONVERTER]

    def _worker_settings(self) -> dict[str, str]:
        converters = {
            "": "io.apicurio.registry.utils.converter.AvroConverter",
            ".apicurio.registry.url": f"{self._registry}/apis/registry/v2",
            ".apicurio.registry.auto-register": "true",
            ".apicurio.registry.as-confluent": "true",
            ".apicurio.registry.use-id": "contentId",
            ".apicurio.registry.headers.enabled": "false",
        }
        named = {f"{part}.converter{name}": value for part in ("key", "value") for name, value in converters.items()}
        return named | {"plugin.discovery": "only_scan", "consumer.isolation.level": "read_committed"}

    def run(self, name: str, settings: Mapping[str, str]) -> None:
        """Start a connector, and wait until its task runs."""
        self.ask("POST", "/connectors", {"name": name, "config": dict(settings)})
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not self.is_running(name):
            time.sleep(0.2)

    def is_running(self, name: str) -> bool:
        """Whether the task of a connector runs. Raises ``RelayError`` once it has failed."""
        tasks = self.ask("GET", f"/connectors/{name}/status")["tasks"]
        if failed := [task["trace"] for task in tasks if task["state"] == "FAILED"]:
            raise RelayError(f"the connector {name} failed: {failed[0]}")
        return any(task["state"] == "RUNNING" for task in tasks)

"""Brokers that only some tests need."""

from __future__ import annotations

from collections.abc import Mapping

from relay.process.managed import accepts
from relay.services.kafka import KafkaBroker, coordinates


class OptimisedBroker(KafkaBroker):
    """A broker with Java's optimising compiler, which pays in a process that runs for minutes."""

    def java_options(self) -> list[str]:
        return ["-XX:TieredStopAtLevel=4"]  # in place of the 1 before it


class SecuredBroker(KafkaBroker):
    """``client``: the settings that a client needs to connect, beside the address."""

    def __init__(self, options: Mapping[str, str | int], client: Mapping[str, str]) -> None:
        super().__init__(options=options)
        self._client = dict(client)

    def _ready(self) -> bool:
        return accepts(self.port) and coordinates(self.bootstrap_servers, self._client)

"""The keys that say how to reach Kafka and the schema registry.

As in ``relay.config``, which these are part of, the keys are a contract with users.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from relay.config.errors import refuse
from relay.config.fields import Part, url
from relay.config.yaml_file import Location

_BROKER = re.compile(r"\s*(\w+://)?(\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(:\d{1,5})?\s*")
# Settings by which a client reaches and trusts a broker, whatever kind of client it is.
_CONNECTION = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.", "broker.address.")


class KafkaConfig(Part):
    bootstrap_servers: str
    """Brokers to begin with, as `host:port`, separated by commas."""

    partitions: int = Field(default=6, ge=1, le=10_000)
    """How many partitions a topic of changes has. Never change it: the order per key hangs on it."""

    producer: dict[str, Any] = Field(default_factory=dict)
    """Settings of librdkafka, passed through. Those that say how to connect hold for every client."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _brokers(cls, value: str) -> str:
        for broker in value.split(","):
            if not _BROKER.fullmatch(broker):
                raise refuse(f"{broker!r} is not a broker such as 127.0.0.1:9092")
        return value

    @field_validator("producer")
    @classmethod
    def _settings(cls, value: dict[str, Any]) -> dict[str, Any]:
        problems: list[tuple[Location, str]] = [
            ((key,), "has to be text, a number, true or false")
            for key, setting in value.items()
            if not isinstance(setting, (str, int, float))
        ]
        fixed = {
            "bootstrap.servers": "kafka.bootstrap_servers says it",
            "transactional.id": "the relay chooses it",  # I3
            "partitioner": "the relay chooses every partition itself",  # I2
        }
        if str(value.get("enable.idempotence", "true")).lower() != "true":
            fixed["enable.idempotence"] = "transactions need it on"  # I3
        if str(value.get("acks", "all")).lower() not in ("all", "-1"):
            fixed["acks"] = "transactions need all"  # I3
        problems += [((key,), f"cannot be set: {fixed[key]}") for key in value if key in fixed]
        if problems:
            raise refuse(*problems)
        return value

    def client(self) -> dict[str, Any]:
        """Return what any Kafka client needs to connect: the brokers and the security settings."""
        settings = {key: value for key, value in self.producer.items() if key.startswith(_CONNECTION)}
        return {"bootstrap.servers": self.bootstrap_servers, **settings}


class SchemaRegistryConfig(Part):
    url: Annotated[str, url("http", "https")]
    """A registry that speaks Confluent's API."""

    on_incompatible: Literal["fail", "register"] = "fail"
    """What to do when the schema of a table has changed so that the registry refuses it: stop, or register it all the
    same, with the subject's compatibility set to NONE for as long as that takes."""

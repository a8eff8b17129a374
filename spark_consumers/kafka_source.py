"""The stream of Kafka records that a consumer reads, and Kafka's settings in the words of its Java client.

A setting of ``kafka.producer`` that says how to connect is translated here, or refused by name: none is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from relay.config import Config
from relay.errors import ConfigError

_SAME = {"security.protocol", "ssl.endpoint.identification.algorithm", "ssl.cipher.suites"}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def read(session: SparkSession, config: Config, topics: Sequence[str], start: str, at_most: int) -> DataFrame:
    """Return the stream of ``topics``: topic, partition, offset and value of each committed record.

    ``start``: Spark's startingOffsets, used by a new checkpoint only. ``at_most``: records a batch.
    """
    options = {
        **{f"kafka.{key}": value for key, value in java_settings(config.kafka.client()).items()},
        "kafka.isolation.level": "read_committed",  # I3
        # A transaction's end is a record that no reader gets. Spark asks for it, too, and the broker would hold
        # its answer back for half a second in the hope of more.
        "kafka.fetch.max.wait.ms": "1",
        "subscribe": ",".join(topics),
        "startingOffsets": start,
        "failOnDataLoss": "true",  # I9
        "maxOffsetsPerTrigger": str(at_most),  # I11
    }
    stream = session.readStream.format("kafka").options(**options).load()
    return stream.select("topic", "partition", "offset", "value")


def java_settings(client: Mapping[str, Any]) -> dict[str, str]:
    """Translate connection settings of librdkafka. Raises ``ConfigError`` for one that Java's client lacks."""
    given = {key: str(value) for key, value in client.items()}
    settings = {"bootstrap.servers": given.pop("bootstrap.servers")}
    settings |= {key: given.pop(key) for key in _SAME & given.keys()}
    settings |= _sasl(given)
    settings |= _ssl(given)
    if given:
        raise ConfigError(f"kafka.producer: {min(given)}: the Spark consumers cannot connect with this setting")
    return settings


def _sasl(given: dict[str, str]) -> dict[str, str]:
    """Take the SASL settings out of ``given`` and return Java's."""
    mechanism = given.pop("sasl.mechanism", None) or given.pop("sasl.mechanisms", None)
    given.pop("sasl.mechanisms", None)
    if mechanism is None:
        return {}
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        raise ConfigError(
            f"kafka.producer: sasl.mechanism: the Spark consumers know {', '.join(_LOGIN_MODULES)}, not {mechanism}"
        )
    name, password = (_quoted(given.pop(key, "")) for key in ("sasl.username", "sasl.password"))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{module} required username={name} password={password};",
    }


def _ssl(given: dict[str, str]) -> dict[str, str]:
    """Take the TLS settings out of ``given`` and return Java's. Files are read here: Java wants them as one."""
    settings: dict[str, str] = {}
    for part, java in (
        ("ssl.ca", "ssl.truststore.certificates"),
        ("ssl.certificate", "ssl.keystore.certificate.chain"),
        ("ssl.key", "ssl.keystore.key"),
    ):
        location, pem = given.pop(f"{part}.location", None), given.pop(f"{part}.pem", None)
        if location is not None:
            try:
                pem = Path(location).read_text(encoding="ascii")
            except (OSError, ValueError) as error:
                raise ConfigError(f"kafka.producer: {part}.location: cannot be read: {error}") from error
        if pem is not None:
            settings[java] = pem
            settings["ssl.truststore.type" if part == "ssl.ca" else "ssl.keystore.type"] = "PEM"
    password = given.pop("ssl.key.password", None)
    if password is not None:
        settings["ssl.key.password"] = password
    return settings


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

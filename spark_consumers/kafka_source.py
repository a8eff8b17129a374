"""The stream of Kafka records that a consumer reads, and Kafka's settings in the words of its Java client.

A setting of ``kafka.producer`` that says how to connect is translated here, or refused by name: none is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from relay.config import Config
from relay.errors import ConfigError

# Of librdkafka's settings that Java's client has no word for: those values that are how Java's works anyway.
_ANYWAY = {
    "enable.ssl.certificate.verification": {"true"},
    "enable.sasl.oauthbearer.unsecure.jwt": {"false"},
    "broker.address.family": {"any"},
}
_PKCS8 = re.compile(r"-BEGIN (ENCRYPTED )?PRIVATE KEY-")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def read(
    session: SparkSession, config: Config, name: str, topics: Sequence[str], start: str, at_most: int
) -> DataFrame:
    """Return the stream of ``topics``: topic, partition, offset and value of each committed record.

    ``name``: the consumer's. ``start``: Spark's startingOffsets, used by a new checkpoint only. ``at_most``: records
    a batch.
    """
    options = {
        **{f"kafka.{key}": value for key, value in java_settings(config.kafka.client()).items()},
        "kafka.isolation.level": "read_committed",  # I3
        # A transaction's end is a record that no reader gets. Spark asks for it, too, and the broker would hold
        # its answer back for half a second in the hope of more.
        "kafka.fetch.max.wait.ms": "1",
        "subscribe": ",".join(topics),
        # Spark makes up its groups' names, and Kafka's client its own of them: so brokers see whose they are.
        "groupIdPrefix": f"{config.name}.{name}.spark",
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
    if "security.protocol" in given:
        settings["security.protocol"] = given.pop("security.protocol").upper()
    settings |= _sasl(given)
    settings |= _ssl(given)
    given = {key: value for key, value in given.items() if value.lower() not in _ANYWAY.get(key, ())}
    if given:
        raise ConfigError(f"kafka.producer: {min(given)}: the Spark consumers cannot connect with this setting")
    return settings


def _sasl(given: dict[str, str]) -> dict[str, str]:
    """Take the SASL settings out of ``given`` and return Java's."""
    named = [given.pop(key) for key in ("sasl.mechanism", "sasl.mechanisms") if key in given]
    if not named:
        return {}
    mechanism = named[0].upper()
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
    check = given.pop("ssl.endpoint.identification.algorithm", None)
    if check is not None:
        settings["ssl.endpoint.identification.algorithm"] = "" if check.lower() == "none" else check.lower()
    if "ssl.keystore.location" in given:
        settings["ssl.keystore.type"] = "PKCS12"  # the only kind that librdkafka reads
        for key in {"ssl.keystore.location", "ssl.keystore.password"} & given.keys():
            settings[key] = given.pop(key)
    for part, java in (
        ("ssl.ca", "ssl.truststore.certificates"),
        ("ssl.certificate", "ssl.keystore.certificate.chain"),
        ("ssl.key", "ssl.keystore.key"),
    ):
        location, pem = given.pop(f"{part}.location", None), given.pop(f"{part}.pem", None)
        if location is not None:
            try:
                # Bundles may have comments of any encoding between their certificates.
                pem = Path(location).read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                raise ConfigError(f"kafka.producer: {part}.location: cannot be read: {error}") from error
        if pem is not None:
            if part == "ssl.key" and "PRIVATE KEY" in pem and not _PKCS8.search(pem):
                raise ConfigError(
                    "kafka.producer: ssl.key: the Spark consumers need the key as PKCS#8: "
                    "openssl pkcs8 -topk8 -in KEY -out NEW"
                )
            settings[java] = pem
            settings["ssl.truststore.type" if part == "ssl.ca" else "ssl.keystore.type"] = "PEM"
    password = given.pop("ssl.key.password", None)
    if password is not None:
        settings["ssl.key.password"] = password
    return settings


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

"""The stream of Kafka records that a consumer reads, and the translation of librdkafka's settings for Java's client."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from relay.aws import SESSION_NAME
from relay.config import Config
from relay.config.aws import IamConfig
from relay.errors import ConfigError
from relay.kafka.group_offsets import Offsets

# librdkafka settings that Java's client lacks, with the values that describe its behaviour anyway.
_JAVA_BEHAVIOUR = {
    "enable.ssl.certificate.verification": {"true"},
    "enable.sasl.oauthbearer.unsecure.jwt": {"false"},
    "broker.address.family": {"any"},
}
_COLUMNS = ("topic", "partition", "offset", "value")
_PKCS8 = re.compile(r"-BEGIN (ENCRYPTED )?PRIVATE KEY-")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

_IAM = "software.amazon.msk.auth.iam"


def read(
    session: SparkSession,
    config: Config,
    name: str,
    topics: Sequence[str],
    start: str,
    at_most: int | None,
    apply_every: float | None = None,
) -> DataFrame:
    """Return the stream of ``topics``: topic, partition, offset and value of each committed record.

    ``name``: the consumer's. ``start``: Spark's startingOffsets, which only a new checkpoint uses. ``at_most``: records
    per batch. ``apply_every``: how many seconds fewer records wait for more; None means not at all.
    """
    options = _options(config, name) | {"subscribe": ",".join(topics), "startingOffsets": start}
    if at_most is not None:
        options["maxOffsetsPerTrigger"] = str(at_most)  # I11
        if apply_every is not None:
            options |= {"minOffsetsPerTrigger": str(at_most), "maxTriggerDelay": f"{round(apply_every * 1000)}ms"}
    return session.readStream.format("kafka").options(**options).load().select(*_COLUMNS)


def read_between(session: SparkSession, config: Config, name: str, start: Offsets, end: Offsets) -> DataFrame:
    """Return the committed records from ``start`` up to ``end``, which name the same partitions, like `read`."""
    options = _options(config, name) | {
        # Partitions are read by number: Spark refuses offsets that lack one added to the topic since.
        "assign": json.dumps({topic: sorted(map(int, partitions)) for topic, partitions in end.items()}),
        "startingOffsets": json.dumps(start),
        "endingOffsets": json.dumps(end),
    }
    return session.read.format("kafka").options(**options).load().select(*_COLUMNS)


def _options(config: Config, name: str) -> dict[str, str]:
    return {
        **{f"kafka.{key}": value for key, value in java_settings(config.kafka.connection(), config.kafka.iam).items()},
        "kafka.isolation.level": "read_committed",  # I3
        # Spark also polls for the end marker of a transaction, which no reader gets. By default, the broker would wait
        # half a second for more records.
        "kafka.fetch.max.wait.ms": "1",
        # Spark generates the names of its groups. The prefix shows on the broker to whom they belong.
        "groupIdPrefix": f"{config.name}.{name}.spark",
        "failOnDataLoss": "true",  # I9
    }


def java_settings(client: Mapping[str, Any], iam: IamConfig | None = None) -> dict[str, str]:
    """Translate librdkafka's settings, or AWS's ``iam`` login. Raises ``ConfigError`` for what Java's client lacks."""
    given = {key: str(value) for key, value in client.items()}
    settings = {"bootstrap.servers": given.pop("bootstrap.servers")}
    if "security.protocol" in given:
        settings["security.protocol"] = given.pop("security.protocol").upper()
    settings |= _sasl(given) if iam is None else _msk(iam)
    settings |= _ssl(given)
    given = {key: value for key, value in given.items() if value.lower() not in _JAVA_BEHAVIOUR.get(key, ())}
    if given:
        raise ConfigError(f"kafka.producer: {min(given)}: the Spark consumers do not support this setting: remove it")
    return settings


def _sasl(given: dict[str, str]) -> dict[str, str]:
    """Remove the SASL settings from ``given`` and return Java's."""
    named = [given.pop(key) for key in ("sasl.mechanism", "sasl.mechanisms") if key in given]
    if not named:
        return {}
    mechanism = named[0].upper()
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        raise ConfigError(
            f"kafka.producer: sasl.mechanism: the Spark consumers support {', '.join(_LOGIN_MODULES)}, not {mechanism}"
        )
    name, password = (_quoted(given.pop(key, "")) for key in ("sasl.username", "sasl.password"))
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{module} required username={name} password={password};"}


def _msk(iam: IamConfig) -> dict[str, str]:
    """Return the settings of AWS's login module, which reads the region from the names of the brokers."""
    if iam.profile and iam.role_arn:
        raise ConfigError(
            "kafka.iam: the Spark consumers cannot assume `role_arn` with the credentials of `profile`: set the "
            "role in the profile in AWS's config file, and remove `role_arn`"
        )
    options = {
        "awsProfileName": iam.profile,
        "awsRoleArn": iam.role_arn,
        "awsRoleExternalId": iam.external_id,
        "awsRoleSessionName": iam.role_arn and (iam.role_session_name or SESSION_NAME),
        "awsStsRegion": iam.role_arn and iam.region,
        # Otherwise it would continue with the environment's credentials if it gets no others.
        "awsAddDefaultProviders": "false" if iam.profile or iam.role_arn else None,
    }
    module = " ".join([f"{_IAM}.IAMLoginModule required", *(f"{k}={_quoted(v)}" for k, v in options.items() if v)])
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": f"{module};",
        "sasl.client.callback.handler.class": f"{_IAM}.IAMClientCallbackHandler",
    }


def _ssl(given: dict[str, str]) -> dict[str, str]:
    """Remove the TLS settings from ``given`` and return Java's, which hold the contents of PEM files."""
    settings: dict[str, str] = {}
    check = given.pop("ssl.endpoint.identification.algorithm", None)
    if check is not None:
        settings["ssl.endpoint.identification.algorithm"] = "" if check.lower() == "none" else check.lower()
    if "ssl.keystore.location" in given:
        settings["ssl.keystore.type"] = "PKCS12"  # the only type that librdkafka reads
        for key in {"ssl.keystore.location", "ssl.keystore.password"} & given.keys():
            settings[key] = given.pop(key)
    if "ssl.key.password" in given:
        settings["ssl.key.password"] = given.pop("ssl.key.password")
    for part, java in (
        ("ssl.ca", "ssl.truststore.certificates"),
        ("ssl.certificate", "ssl.keystore.certificate.chain"),
        ("ssl.key", "ssl.keystore.key"),
    ):
        location, pem = given.pop(f"{part}.location", None), given.pop(f"{part}.pem", None)
        if location is not None:
            try:
                # Bundles may have comments in any encoding between the certificates.
                pem = Path(location).read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                raise ConfigError(f"kafka.producer: {part}.location: cannot read the file: {error}") from error
        if pem is not None:
            if part == "ssl.key" and "PRIVATE KEY" in pem and not _PKCS8.search(pem):
                raise ConfigError(
                    "kafka.producer: ssl.key: the Spark consumers need a PKCS#8 key: convert it with "
                    "`openssl pkcs8 -topk8 -in KEY -out NEW`"
                )
            settings[java] = pem
            settings["ssl.truststore.type" if part == "ssl.ca" else "ssl.keystore.type"] = "PEM"
    return settings


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

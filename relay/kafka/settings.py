"""The settings of the relay's own Kafka clients, from the config."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import KafkaException, Producer

from relay.config import Config
from relay.kafka.topics import LARGEST_MESSAGE, SILENT_LOG, unreadable

_TRANSACTION_TIMEOUT = 10.0
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")

# Without this, librdkafka writes to stderr in its own format. Clients deliver its log lines when they are polled.
_LIBRDKAFKA = logging.getLogger("relay.kafka.librdkafka")


PRODUCER: dict[str, Any] = {
    # A commit does not wait for this, because it flushes. Under load, larger batches cost less.
    "linger.ms": 5,
    # The broker refuses the first request of a transaction until all markers of the last one are written.
    "retry.backoff.ms": 1,
    "compression.type": "lz4",
    "batch.size": 1 << 20,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 128 << 10,  # I11
    "message.max.bytes": LARGEST_MESSAGE,
}
"""The defaults of the producer; ``kafka.producer`` overrides them."""


def refused(config: Config) -> dict[str, str]:
    """Return the settings in ``kafka.producer`` that librdkafka refuses, with reasons. Connects to nothing.

    The key "" holds the reason why settings conflict. Certificates and passwords are not checked.
    """
    everything = {**KafkaSettings.from_config(config).producer, "transactional.id": config.name}
    if (problem := _refusal(_without_security(everything))) is None:
        return {}
    alone = {key: _refusal(_without_security({key: value})) for key, value in config.kafka.producer.items()}
    return {key: reason for key, reason in alone.items() if reason} or {"": problem}


def unusable_security(config: Config) -> str | None:
    """Return why a client cannot begin to connect, such as a missing certificate. Connects to nothing."""
    settings = config.kafka.connection()
    # With this, a client requests a token from the authority as soon as it is created.
    if str(settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))).upper() == "OAUTHBEARER":
        protocol = str(settings.get("security.protocol", "")).lower()
        settings["security.protocol"] = {"sasl_ssl": "ssl"}.get(protocol, "plaintext")
    problem = _refusal(settings)
    return problem and (unreadable(settings) or problem)


def _without_security(settings: Mapping[str, Any]) -> dict[str, Any]:
    known = str(settings.get("security.protocol", "plaintext")).lower() in _PROTOCOLS
    # A client with a source of tokens waits for the first token.
    others = {key: value for key, value in settings.items() if key != "oauth_cb"}
    return {**others, **({"security.protocol": "plaintext"} if known else {})}


def _refusal(settings: Mapping[str, Any]) -> str | None:
    try:
        # A client without brokers connects to nothing.
        Producer({**settings, "bootstrap.servers": "", "logger": SILENT_LOG})
    except KafkaException as error:
        return str(error.args[0].str()).strip()
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def barrier_timeout(transaction_timeout: float) -> float:
    """Return after how many seconds an open transaction has certainly ended: the broker checks every ten seconds."""
    return transaction_timeout + 20.0


@dataclass(frozen=True)
class KafkaSettings:
    """``client``: settings of consumers and admin clients. ``producer``: all settings of the transactional producer.

    ``transaction_timeout``: seconds. ``limits``: see ``largest_records``; empty until the topics are known.
    """

    name: str
    client: dict[str, Any]
    producer: dict[str, Any]
    transaction_timeout: float
    checkpoints: str
    gaps: str
    watermarks: str
    group: str
    limits: Mapping[str, int] = field(default_factory=dict)
    ddl: str = ""

    @classmethod
    def from_config(cls, config: Config) -> Self:
        given = dict(config.kafka.producer)
        timeout = float(given.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT * 1000)) / 1000
        # A commit is several small requests in a row, and Nagle's algorithm would delay each of them.
        client = {"socket.nagle.disable": True, **config.client("relay"), "logger": _LIBRDKAFKA}
        producer = {**client, "transaction.timeout.ms": int(timeout * 1000), **PRODUCER, **given}
        producer |= {"enable.idempotence": True, "acks": "all"}
        return cls(
            name=config.name,
            client=client,
            producer=producer,
            transaction_timeout=timeout,
            checkpoints=config.internal("checkpoints"),
            gaps=config.internal("gaps"),
            watermarks=config.internal("watermarks"),
            group=f"{config.name}.relay",
            ddl=config.internal("ddl"),
        )

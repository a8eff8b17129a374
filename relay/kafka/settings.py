"""The settings of the relay's own Kafka clients, from the config."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.config import Config
from relay.kafka.topics import LARGEST_MESSAGE

_TRANSACTION_TIMEOUT = 10.0

# Without it, librdkafka writes to stderr in its own format. Clients deliver its log lines when they are polled.
_LIBRDKAFKA = logging.getLogger("relay.kafka.librdkafka")


PRODUCER: dict[str, Any] = {
    # A commit does not wait for it, but flushes. Under load, larger batches cost less.
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


@dataclass(frozen=True)
class KafkaSettings:
    """``client``: for consumers and admin clients. ``producer``: all settings of the transactional producer.

    ``transaction_timeout``: seconds, from ``kafka.producer``; the group's timeouts are derived from it. ``limits``: see
    ``Limits.records``; none until the topics are known.
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

    @classmethod
    def from_config(cls, config: Config) -> KafkaSettings:
        given = dict(config.kafka.producer)
        timeout = float(given.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT * 1000)) / 1000
        # A commit is several small requests in a row, and Nagle's algorithm would delay each of them.
        client = {"socket.nagle.disable": True, **config.client("relay"), "logger": _LIBRDKAFKA}
        producer = {
            **client,
            "transaction.timeout.ms": int(timeout * 1000),
            **PRODUCER,
            **given,
            "enable.idempotence": True,
            "acks": "all",
        }
        return cls(
            name=config.name,
            client=client,
            producer=producer,
            transaction_timeout=timeout,
            checkpoints=config.internal("checkpoints"),
            gaps=config.internal("gaps"),
            watermarks=config.internal("watermarks"),
            group=f"{config.name}.relay",
        )

"""How the relay's own Kafka clients are set up, from the config."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from relay.config import Config
from relay.kafka.topics import LARGEST_MESSAGE

_TRANSACTION_TIMEOUT = 10.0

# Else librdkafka writes to stderr itself, in a format of its own. Clients hand over what it says when they are polled.
_LIBRDKAFKA = logging.getLogger("relay.kafka.librdkafka")


PRODUCER: dict[str, Any] = {
    # A commit waits for none of it: it sends what there is. While much comes, larger batches cost less of everything.
    "linger.ms": 5,
    # What a transaction asks for first is refused while a marker of the last one is not written yet.
    "retry.backoff.ms": 1,
    "compression.type": "lz4",
    "batch.size": 1 << 20,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 128 << 10,  # I11
    "message.max.bytes": LARGEST_MESSAGE,
}
"""How the producer is set up, unless ``kafka.producer`` says otherwise."""


@dataclass(frozen=True)
class KafkaSettings:
    """``client``: for consumers and admin clients. ``producer``: for the transactional producer, complete.

    ``transaction_timeout``: seconds, from ``kafka.producer``; the group's timeouts follow from it.
    """

    name: str
    client: dict[str, Any]
    producer: dict[str, Any]
    transaction_timeout: float
    checkpoints: str
    gaps: str
    watermarks: str
    group: str

    @classmethod
    def of(cls, config: Config) -> KafkaSettings:
        given = dict(config.kafka.producer)
        timeout = float(given.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT * 1000)) / 1000
        # A commit is several small requests in a row: Nagle's algorithm would make each wait for an acknowledgement.
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

"""The settings of clients of Kafka: what is passed through, to whom, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.configs import GOOD, change, read, refused


@pytest.mark.parametrize(
    ("producer", "key"),
    [
        ("{transactional.id: x}", "transactional.id"),
        ("{enable.idempotence: false}", "enable.idempotence"),
        ('{acks: "1"}', "acks"),
        ("{partitioner: random}", "partitioner"),
        ('{bootstrap.servers: "b:1"}', "bootstrap.servers"),
    ],
)
def test_settings_that_would_break_exactly_once_or_order_are_refused(file: Path, producer: str, key: str) -> None:
    """I2, I3."""
    (said,) = refused(file, change("producer: {}", f"producer: {producer}"))
    assert f"`kafka.producer.{key}`: cannot be set" in said


def test_security_settings_apply_to_every_client_and_others_to_the_producer_only(file: Path) -> None:
    producer = (
        "{security.protocol: SASL_SSL, sasl.username: me, sasl.password: hunter2, ssl.ca.location: /ca, "
        "acks: all, linger.ms: 5}"
    )
    config = read(file, change("producer: {}", f"producer: {producer}"))
    assert config.kafka.client() == {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "sasl.password": "hunter2",
        "ssl.ca.location": "/ca",
    }


def test_a_client_is_named_after_the_relay_and_its_role(file: Path) -> None:
    config = read(file, GOOD)
    assert config.client("tail") == {**config.kafka.client(), "client.id": "shop-tail"}

"""The settings of clients of Kafka: what is passed through, to whom, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.configs import GOOD, change, read, refused


@pytest.mark.parametrize(
    ("producer", "key", "value"),
    [
        ("{transactional.id: x}", "transactional.id", "'x'"),
        ("{enable.idempotence: false}", "enable.idempotence", "false"),
        ('{acks: "1"}', "acks", "'1'"),
        ("{acks: 1}", "acks", "1"),
        ("{acks: [1]}", "acks", "a list"),
        ("{acks: null}", "acks", "nothing"),
        ("{partitioner: random}", "partitioner", "'random'"),
        ('{bootstrap.servers: "b:1"}', "bootstrap.servers", "'b:1'"),
        ("{log.connection.close: false}", "log.connection.close", "false"),
        ("{log_level: 3}", "log_level", "3"),
    ],
)
def test_settings_that_would_break_exactly_once_or_order_are_refused(
    file: Path, producer: str, key: str, value: str
) -> None:
    """I2, I3."""
    (said,) = refused(file, change("producer: {}", f"producer: {producer}"))
    assert f"`kafka.producer.{key}`: cannot be set to {value}: " in said


@pytest.mark.parametrize(
    ("value", "kind"), [("[hunter2]", "a list"), ("{a: hunter2}", "a mapping"), ("null", "nothing")]
)
def test_a_setting_that_is_not_a_single_value_is_refused_by_its_kind_alone(file: Path, value: str, kind: str) -> None:
    (said,) = refused(file, change("producer: {}", f"producer: {{sasl.password: {value}}}"))
    assert said.endswith(f"`kafka.producer.sasl.password`: must be text, a number, true or false, not {kind}")


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

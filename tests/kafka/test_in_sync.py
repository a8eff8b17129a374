"""Which partition has too few replicas in sync; the tests of three brokers are in faults/test_three_brokers.py."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from relay.kafka import in_sync
from tests.kafka.limited_topics import create

pytestmark = pytest.mark.services


class OfAnotherServer(AdminClient):
    """Asks a broker that does not report the setting, as others that speak Kafka's protocol may not."""

    def describe_configs(self, resources: Any, **options: Any) -> Any:  # type: ignore[override]
        answers = {}
        for resource in resources:
            answers[resource] = Future[Any]()
            answers[resource].set_result({})
        return answers


def test_a_broker_that_does_not_say_how_many_replicas_it_needs_is_taken_to_be_writable(
    kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the search for a reason never ends the relay."""
    create(kafka.bootstrap_servers, unique, 1)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    assert in_sync.shortage(client, [unique, f"{unique}.missing"]) == ""
    monkeypatch.setattr(in_sync, "AdminClient", OfAnotherServer)
    assert in_sync.shortage(client, [unique, f"{unique}.missing"]) == ""

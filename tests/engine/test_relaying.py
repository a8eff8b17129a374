"""A relay that starts again in the same process."""

from __future__ import annotations

import pytest

from relay.engine.relaying import run
from relay.kafka.freshness import MissedDeletions
from tests.faults.harness import Scene
from tests.kafka.clients import kafka_clients

pytestmark = pytest.mark.services


def test_a_relay_that_starts_again_leaves_no_client_of_kafka_of_its_first_run(scene: Scene) -> None:
    before = kafka_clients()
    first: set[str] = set()
    left: list[set[str]] = []

    def probe(step: str) -> None:
        if not first:
            first.update(kafka_clients() - before)
            raise MissedDeletions("a partition was not read for too long")
        if step == "before_commit":
            left.append(kafka_clients() & first)

    run(scene.config, until_caught_up=True, probe=probe)
    assert first
    assert left
    assert left[-1] == set()

"""A relay that starts again in the same process."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.engine.relaying import run
from relay.kafka.freshness import MissedDeletions
from tests.faults.harness import Scene

pytestmark = pytest.mark.services


def kafka_clients() -> set[str]:
    """Return the ids of the threads of this process that each run one client of Kafka."""
    return {task.name for task in Path("/proc/self/task").iterdir() if _name(task) == "rdk:main"}


def _name(task: Path) -> str | None:
    """Return the name of a thread, None for one that ended since it was listed."""
    try:
        return (task / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


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

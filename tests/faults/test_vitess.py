"""Exactly once from a real Vitess, whatever is killed, over a change of columns and a reshard: I1, I2, I3, I4."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.faults.audited import changes_in, problems
from tests.faults.clustered import Cluster, cluster_of
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("kills of another source: test_exactly_once.py kills relays, vitess/test_on_vitess.py reshards"),
]


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[Cluster]:
    needs.vitess()
    with cluster_of() as cluster:
        seed = int(os.environ.get("RELAY_SEED") or 20)
        world = Cluster(tmp_path, kafka.bootstrap_servers, unique, cluster, seed)
        yield world
        world.close()


def test_kills_a_change_of_columns_and_a_split_lose_double_and_disorder_nothing(world: Cluster) -> None:
    """Its seed is ``RELAY_SEED``."""
    chance = random.Random(world.seed)
    relay = world.start()
    relay.wait_for("reading shard c0-")
    world.start_writers()
    steps = ["relay"] * 5 + ["vtgate"] * 2 + ["database"]
    chance.shuffle(steps)
    steps.insert(chance.randrange(2, len(steps)), "columns")
    steps.insert(chance.randrange(2, len(steps)), "split")
    for step in steps:
        time.sleep(chance.uniform(0.5, 2.5))
        relay = world.going(relay)
        relay = world.disturbed(relay, step, chance)
    time.sleep(2.0)
    wait_until(lambda: changes_in(world.truth()) > 1000)
    world.finish(relay)
    truth = world.truth()
    assert changes_in(truth) > 1000
    assert problems(truth, world.changes()) == [], steps

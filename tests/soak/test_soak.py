"""Three workers and two sources under random faults for a while: I1, I2, I3, I10. ``make soak`` goes on for longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.soak import Soak

SECONDS = float(os.environ.get("RELAY_SOAK_SECONDS") or 75)
SEED = int(os.environ.get("RELAY_SOAK_SEED") or 20)


@pytest.mark.services
@pytest.mark.faults("all kills at random: tests/faults has each alone")
@pytest.mark.timeout(SECONDS + 600)
def test_workers_broker_and_servers_that_die_at_random_lose_double_and_disorder_nothing(tmp_path: Path) -> None:
    totals = Soak(tmp_path, SEED, ["dynamodb", "mysql"], rate=300).play(SECONDS)
    assert totals.problems == [], f"RELAY_SOAK_SEED={SEED}: {totals.as_json()}"
    assert totals.published == totals.changes > 0
    assert {"worker", "pause", "broker", "primary", "failover"} <= totals.kills.keys()

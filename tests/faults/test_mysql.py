"""Exactly once from a MariaDB or MySQL and its replica, over kills, failovers and new columns: I1, I2, I3."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.services.mariadb import MariaDB
from tests.faults.audited import TABLE, changes_in, history, problems
from tests.faults.replicated import DATABASE, Replicated
from tests.faults.world import World
from tests.mysql.server import MySQL
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("kills of another source: test_exactly_once.py kills relays, mysql/test_failover.py servers"),
]


class Servers(World):
    """A primary with a replica that may take its place, and a relay that knows both."""

    def __init__(self, folder: Path, servers: str, name: str, primary: Any, replica: Any, seed: int) -> None:
        self.servers = Replicated(primary, replica)
        super().__init__(
            folder,
            servers,
            name,
            seed,
            connect=self.servers.connect,
            place=lambda _: DATABASE,
            source=self.servers.source("legacy"),
        )

    def fail_over(self, *, kill: bool) -> None:
        self.servers.fail_over(self.paused(), self._move, kill=kill)

    def _move(self) -> None:
        for writer in self.writers:
            writer.reconnect()


@pytest.fixture(params=[MariaDB, MySQL])
def world(tmp_path: Path, kafka: Any, unique: str, request: pytest.FixtureRequest) -> Iterator[Servers]:
    with request.param() as primary, request.param() as replica:
        seed = int(os.environ.get("RELAY_SEED") or 20)
        world = Servers(tmp_path, kafka.bootstrap_servers, unique, primary, replica, seed)
        yield world
        world.close()


def test_kills_failovers_and_a_change_of_columns_lose_double_and_disorder_nothing(world: Servers) -> None:
    """Its seed is ``RELAY_SEED``."""
    chance = random.Random(world.seed)
    relay = world.start()
    relay.wait_for("to read shard")
    world.start_writers()
    steps = ["relay"] * 4 + ["restart", "restart", "replica", "switch", "fail over", "columns"]
    chance.shuffle(steps)
    for step in steps:
        time.sleep(chance.uniform(0.5, 2.5))
        relay = world.going(relay)
        if step == "relay":
            relay.kill()
            relay = world.start()
        elif step in ("restart", "replica"):
            server = world.servers.primary if step == "restart" else world.servers.replica
            server.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            server.restart()
        elif step == "columns":
            world.servers.primary.execute(f"alter table {DATABASE}.{TABLE} add column extra int default 7")
        else:
            world.fail_over(kill=step == "fail over")
    time.sleep(2.0)
    wait_until(lambda: changes_in(history(world.connect, [DATABASE])) > 1000)
    world.finish(relay)
    truth = history(world.connect, [DATABASE])
    assert changes_in(truth) > 1000
    assert problems(truth, world.changes(), ("customer", "line")) == [], steps

"""Exactly once from a MariaDB and its replica, whatever is killed, over failovers and new columns: I1, I2, I3."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.errors import Unavailable
from relay.local.mariadb import PASSWORD, USER, MariaDB
from relay.local.truth import read_changes
from tests.faults.audited import ITEMS, TABLE, Connect, Writer, audit, history, opened, problems
from tests.faults.harness import Relay, wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

DATABASE = "shop"


class World:
    """A primary with a replica that may take its place, writers, and a relay that knows both servers."""

    def __init__(self, folder: Path, servers: str, name: str, primary: MariaDB, replica: MariaDB, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.primary, self.replica = primary, replica
        self.connect: Connect = lambda: opened(self.primary.connect(autocommit=False, defer_connect=True))
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"create database {DATABASE}")
            cursor.execute(f"use {DATABASE}")
            cursor.execute(ITEMS)
        audit(self.connect, [DATABASE])
        replica.replicate_from(primary)
        self.writers = [Writer(self.connect, lambda _: DATABASE, range(n, 60, 3), seed * 10 + n) for n in range(3)]
        self.path = folder / "relay.yaml"
        source: dict[str, Any] = {"name": "legacy", "type": "mysql", "database": DATABASE, "tables": [TABLE]}
        source |= {"user": USER, "password": PASSWORD, "shards": {"-": [primary.address, replica.address]}}
        kafka = {"bootstrap_servers": servers, "producer": {"transaction.timeout.ms": 2000}}
        self.path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [source]}))
        self.relays: list[Relay] = []

    def start(self, *arguments: str) -> Relay:
        command = [sys.executable, "-m", "relay.cli", "run", str(self.path), *arguments]
        relay = Relay(command, self.folder / f"relay-{len(self.relays)}.log")
        self.relays.append(relay)
        return relay

    def going(self, relay: Relay) -> Relay:
        """Return ``relay``, or one in its place if it was started while there was nothing to connect to."""
        if relay.is_running:
            return relay
        assert relay.wait(0) == Unavailable.exit_code, relay.log()
        return self.start()

    def fail_over(self, *, kill: bool) -> None:
        """Let the replica take over, once it has all that was committed; the old primary follows it."""
        with ExitStack() as stack:
            for writer in self.writers:
                stack.enter_context(writer.gate)
            self.replica.wait_for(self.primary.gtid)
            if kill:
                self.primary.kill()
            self.replica.promote()
            self.primary, self.replica = self.replica, self.primary
            if kill:
                self.replica.restart()
            self.replica.replicate_from(self.primary)
            for writer in self.writers:
                writer.reconnect()

    def changes(self) -> list[tuple[int, int, dict[str, Any]]]:
        config = load(self.path)
        with closing(open_schemas(config)) as schemas:
            return read_changes(config.kafka.client(), config.topic(TABLE), schemas)

    def close(self) -> None:
        for writer in self.writers:
            writer.end()
        for relay in self.relays:
            relay.kill()


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[World]:
    with MariaDB() as primary, MariaDB() as replica:
        seed = int(os.environ.get("RELAY_SEED") or 20)
        world = World(tmp_path, kafka.bootstrap_servers, unique, primary, replica, seed)
        yield world
        world.close()


def test_kills_failovers_and_a_change_of_columns_lose_double_and_disorder_nothing(world: World) -> None:
    """Its seed is ``RELAY_SEED``."""
    chance = random.Random(world.seed)
    relay = world.start()
    wait_until(lambda: "is read from" in relay.log() or None, 60)
    for writer in world.writers:
        writer.start()
    steps = ["relay"] * 4 + ["restart", "restart", "replica", "switch", "fail over", "columns"]
    chance.shuffle(steps)
    for step in steps:
        time.sleep(chance.uniform(0.5, 2.5))
        relay = world.going(relay)
        if step == "relay":
            relay.kill()
            relay = world.start()
        elif step in ("restart", "replica"):
            server = world.primary if step == "restart" else world.replica
            server.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            server.restart()
        elif step == "columns":
            world.primary.execute(f"alter table {DATABASE}.{TABLE} add column extra int default 7")
        else:
            world.fail_over(kill=step == "fail over")
    time.sleep(2.0)
    for writer in world.writers:
        writer.stop()
    relay = world.going(relay)
    wait_until(lambda: "took over" in relay.log() or None, 60)
    assert relay.terminate() == 0, relay.log()
    last = world.start("--until-caught-up")
    assert last.wait(120) == 0, last.log()
    truth = history(world.connect, [DATABASE])
    assert sum(map(len, truth.values())) > 1000
    assert problems(truth, world.changes(), ("customer", "line")) == [], steps

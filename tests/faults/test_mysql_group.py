"""Exactly once from a group of MySQL servers, whose primaries die one after the other: I1, I2, I3."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.services.mariadb import PASSWORD, USER
from tests.faults.audited import ITEMS, audit, changes_in, history, opened, problems
from tests.faults.world import World
from tests.mysql.group import Group
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("kills in a group: mysql/test_failover.py loses primaries, test_exactly_once.py relays"),
]

DATABASE = "shop"


class Grouped(World):
    """A group of three, writers to whichever member is the primary, and a relay that knows all of them."""

    def __init__(self, folder: Path, servers: str, name: str, group: Group, seed: int) -> None:
        self.group = group
        with closing(self.to_primary()) as connection, connection.cursor() as cursor:
            cursor.execute(f"create database {DATABASE}")
            cursor.execute(f"use {DATABASE}")
            cursor.execute(ITEMS)
        audit(self.to_primary, [DATABASE])
        account = {"database": DATABASE, "user": USER, "password": PASSWORD}
        shards = {"-": [member.address for member in group.members]}
        super().__init__(
            folder,
            servers,
            name,
            seed,
            connect=self.to_primary,
            place=lambda _: DATABASE,
            source={"name": "legacy", "type": "mysql", **account, "shards": shards},
        )

    def to_primary(self) -> Connection[Cursor]:
        """Connect without autocommit. Raises ``OSError`` while the members choose a primary."""
        try:
            return opened(self.group.primary.connect(autocommit=False, defer_connect=True))
        except LookupError as error:
            raise ConnectionRefusedError(error) from None

    def wait_for_writes(self) -> None:
        """Wait until the primary has committed what was written since now."""
        before = self._last()
        wait_until(lambda: self._last() != before)

    def _last(self) -> int:
        with closing(self.to_primary()) as connection, connection.cursor() as cursor:
            cursor.execute(f"select coalesce(max(seq), 0) from {DATABASE}.items_audit")
            ((last,),) = cursor.fetchall()
        return int(last)


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[Grouped]:
    """Its seed is ``RELAY_SEED``."""
    with Group(3) as group:
        world = Grouped(tmp_path, kafka.bootstrap_servers, unique, group, int(os.environ.get("RELAY_SEED") or 20))
        yield world
        world.close()


def test_primaries_and_relays_that_are_killed_lose_double_and_disorder_nothing(world: Grouped) -> None:
    chance = random.Random(world.seed)
    relay = world.start()
    relay.wait_for("to read shard")
    world.start_writers()
    killed = []
    for _ in range(2):
        time.sleep(chance.uniform(1.0, 3.0))
        lost = world.group.lose_primary()
        killed.append(lost)
        relay = world.going(relay)
        world.wait_for_writes()
        relay.kill()
        relay = world.start()
        time.sleep(chance.uniform(0.0, 1.0))
        lost.restart()
        world.group.join(lost)
    world.wait_for_writes()
    wait_until(lambda: changes_in(history(world.connect, [DATABASE])) > 1000)
    world.finish(relay)
    truth, changes = history(world.connect, [DATABASE]), world.changes()
    written = changes_in(truth)
    print(f"{written} changes of {len(truth)} items, {len(changes)} on the topic, {len(set(killed))} primaries killed")
    assert written > 1000
    assert world.group.primary not in killed[-1:]
    assert problems(truth, changes, ("customer", "line")) == []

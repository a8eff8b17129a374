"""Exactly once from a real Vitess, whatever is killed, over a change of columns and a reshard: I1, I2, I3, I4."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.keyrange import shard_range
from relay.services.vitess import Vitess, database
from relay.vitess.vindex import keyspace_id
from tests import needs
from tests.faults.audited import ITEMS, TABLE, audit, history, opened, problems
from tests.faults.world import World
from tests.waiting import wait_until

pytestmark = pytest.mark.services

SHARDS = ["-40", "40-80", "80-c0", "c0-"]
AFTER = ["-20", "20-40"]
_VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {TABLE: {"column_vindexes": [{"column": "customer", "name": "hash"}]}},
}


class Cluster(World):
    """A keyspace of four shards, another with two that the first of them will be split into, and a relay."""

    def __init__(self, folder: Path, servers: str, name: str, cluster: Vitess, seed: int) -> None:
        self.cluster = cluster
        self.before = [("commerce", shard) for shard in SHARDS]
        self.after = [("moved", shard) for shard in AFTER]
        self.databases = [database(*place) for place in (*self.before, *self.after)]
        self.is_split = False
        super().__init__(
            folder,
            servers,
            name,
            seed,
            connect=lambda: opened(cluster.mariadb.connect(autocommit=False, defer_connect=True)),
            place=self.place,
            source={"name": "commerce", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "commerce"},
        )
        audit(self.connect, self.databases)

    def place(self, customer: int) -> str:
        """The database that a customer is in now."""
        of = keyspace_id("hash", customer)
        places = [*self.before[1:], *self.after] if self.is_split else self.before
        return next(database(*place) for place in places if shard_range(place[1]).contains(of))

    def revive(self) -> None:
        """Bring vtgate back if it has died by itself."""
        if not self.cluster.alive:
            log = self.cluster.log
            (self.folder / f"crash-{time.time():.0f}.log").write_text(log.read_text(errors="replace")[-200_000:])
            self.cluster.restart()

    def truth(self) -> dict[tuple[int, int], list[int | None]]:
        return history(self.connect, self.databases)

    def add_column(self, name: str) -> None:
        """Change the table in every shard, one after the other, while it is written to."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for at in self.databases:
                cursor.execute(f"alter table `{at}`.items add column {name} int default 7")

    def split(self) -> None:
        """Move what is in the first shard to two others, as a reshard does that switches its writes."""
        with self.paused():
            with closing(self.connect()) as connection, connection.cursor() as cursor:
                source = database(*self.before[0])
                cursor.execute(f"select distinct customer from `{source}`.items")
                self.is_split = True
                for (customer,) in cursor.fetchall():
                    columns = "customer, line, version, note"
                    # A copy is no change, and is not in the streams, which begin at the journal.
                    cursor.execute("set @copying = 1")
                    cursor.execute(
                        f"insert into `{self.place(customer)}`.items ({columns})"
                        f" select {columns} from `{source}`.items where customer = %s",
                        (customer,),
                    )
                connection.commit()
            self.cluster.journal(self.before[:1], self.after)


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[Cluster]:
    needs.vitess()
    keyspaces = {"commerce": SHARDS, "moved": [*AFTER, "40-"]}
    with Vitess(keyspaces=keyspaces, schemas=dict.fromkeys(keyspaces, (ITEMS, _VSCHEMA))) as cluster:
        seed = int(os.environ.get("RELAY_SEED") or 20)
        world = Cluster(tmp_path, kafka.bootstrap_servers, unique, cluster, seed)
        yield world
        world.close()


def test_kills_a_change_of_columns_and_a_split_lose_double_and_disorder_nothing(world: Cluster) -> None:
    """Its seed is ``RELAY_SEED``."""
    chance = random.Random(world.seed)
    relay = world.start()
    wait_until(lambda: "reading shard c0-" in relay.log() or None, 60)
    world.start_writers()
    steps = ["relay"] * 5 + ["vtgate"] * 2 + ["database"]
    chance.shuffle(steps)
    steps.insert(chance.randrange(2, len(steps)), "columns")
    steps.insert(chance.randrange(2, len(steps)), "split")
    for step in steps:
        time.sleep(chance.uniform(0.5, 2.5))
        relay = world.going(relay)
        if step == "relay":
            relay.kill()
            relay = world.start()
        elif step == "vtgate":
            world.cluster.kill_vtgate()
            time.sleep(chance.uniform(0.0, 1.0))
            world.cluster.restart()
        elif step == "database":
            world.cluster.kill()
            world.cluster.restart()
        elif step == "columns":
            world.add_column("extra")
        else:
            world.split()
    time.sleep(2.0)
    world.stop_writers()
    relay = world.going(relay)
    wait_until(lambda: "took over" in relay.log() or None, 60)
    assert relay.terminate() == 0, relay.log()
    last = world.start("--until-caught-up")
    deadline = time.monotonic() + 120
    while last.is_running and time.monotonic() < deadline:
        world.revive()
        time.sleep(0.2)
    assert last.wait(0) == 0, last.log()
    truth = world.truth()
    assert sum(map(len, truth.values())) > 1000
    assert problems(truth, world.changes()) == [], steps

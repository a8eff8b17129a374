"""A cluster of Vitess whose shards are written to, and a relay that reads them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from relay.keyrange import shard_range
from relay.services.vitess import Vitess, database
from relay.vitess.vindex import keyspace_id
from tests.faults.audited import ITEMS, TABLE, audit, history, opened
from tests.faults.harness import Relay
from tests.faults.world import World
from tests.waiting import PATIENCE

SHARDS = ["-40", "40-80", "80-c0", "c0-"]
AFTER = ["-20", "20-40"]
_VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {TABLE: {"column_vindexes": [{"column": "customer", "name": "hash"}]}},
}


class Cluster(World):
    """A keyspace of four shards, another with two that the first of them will be split into, and a relay."""

    def __init__(self, folder: Path, servers: str, name: str, cluster: Vitess, seed: int, **source: Any) -> None:
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
            source={"name": "commerce", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "commerce", **source},
        )
        audit(self.connect, self.databases)

    def place(self, customer: int) -> str:
        """The database that a customer is in now."""
        of = keyspace_id("hash", customer)
        places = [*self.before[1:], *self.after] if self.is_split else self.before
        return next(database(*place) for place in places if shard_range(place[1]).contains(of))

    def fill(self, rows: int) -> None:
        """Add lines of customers from 1,000 on, that no writer changes."""
        by_place: dict[str, list[str]] = {}
        for customer in range(1000, 1000 + rows):
            by_place.setdefault(self.place(customer), []).append(f"({customer}, 1, 1, '{'before ' * 8}')")
        for at, values in by_place.items():
            self.execute(f"insert into `{at}`.items (customer, line, version, note) values {','.join(values)}")

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements that no audit writes down, and return the rows of the last one."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("set @copying = 1")
            for statement in statements:
                cursor.execute(statement)
            connection.commit()
            return [*cursor.fetchall()]

    def rows(self) -> dict[tuple[int, int], tuple[int, str]]:
        places = [*self.before[1:], *self.after] if self.is_split else self.before
        return {
            (customer, line): (version, note)
            for at in map(database, *zip(*places, strict=True))
            for customer, line, version, note in self.execute(f"select customer, line, version, note from `{at}`.items")
        }

    def catch_up(self) -> None:
        """Let a relay catch up, and bring vtgate back meanwhile if it dies."""
        last = self.start("--until-caught-up")
        deadline = time.monotonic() + PATIENCE
        while last.is_running and time.monotonic() < deadline:
            self.revive()
            time.sleep(0.2)
        assert last.wait(0) == 0, last.log()

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

    def disturbed(self, relay: Relay, step: str, chance: random.Random) -> Relay:
        """Kill the relay, vtgate or the database, or do what else ``step`` names. Return the relay that goes on."""
        if step == "relay":
            relay.kill()
            return self.start()
        if step == "vtgate":
            self.cluster.process.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            self.cluster.restart()
        elif step == "database":
            self.cluster.kill()
            time.sleep(1.0)  # a second with changes from before and after a start cannot be told apart
            self.cluster.restart()
        elif step == "columns":
            self.add_column("extra")
        else:
            self.split()
        return relay

    def split(self) -> None:
        """Move what is in the first shard to two others, as a reshard does that switches its writes."""
        with self.paused():
            with closing(self.connect()) as connection, connection.cursor() as cursor:
                source = database(*self.before[0])
                cursor.execute(f"select distinct customer from `{source}`.items")
                self.is_split = True
                for (customer,) in cursor.fetchall():
                    columns = "customer, line, version, note"
                    # A copy is not a change, and is not in the streams, which begin at the journal.
                    cursor.execute("set @copying = 1")
                    cursor.execute(
                        f"insert into `{self.place(customer)}`.items ({columns})"
                        f" select {columns} from `{source}`.items where customer = %s",
                        (customer,),
                    )
                connection.commit()
            self.cluster.journal(self.before[:1], self.after)


@contextmanager
def cluster_of(**flags: Any) -> Iterator[Vitess]:
    """Yield what a `Cluster` reads. ``flags``: of vtcombo."""
    keyspaces = {"commerce": SHARDS, "moved": [*AFTER, "40-"]}
    with Vitess(keyspaces=keyspaces, schemas=dict.fromkeys(keyspaces, (ITEMS, _VSCHEMA)), flags=flags) as cluster:
        yield cluster

"""A Vitess of separate processes that is written to through vtgate, killed and resharded, and a relay that reads it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pymysql.cursors import Cursor

from tests.faults.audited import TABLE, Writer, changes_in, history, problems
from tests.faults.world import World
from tests.vitess.cluster import KEYSPACE, VitessCluster
from tests.waiting import wait_until

AUDIT = (
    f"create table {TABLE}_audit (customer bigint not null, seq bigint not null, line int not null, version bigint,"
    " primary key (customer, seq))"
)
BY_CUSTOMER = {"column_vindexes": [{"column": "customer", "name": "hash"}]}
VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {TABLE: BY_CUSTOMER, f"{TABLE}_audit": BY_CUSTOMER},
}


class AuditingWriter(Writer):
    """Writes its changes down itself, in the transaction: a trigger would do so again where a reshard copies rows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seq = self._version

    def _change(self, cursor: Cursor, customer: int, line: int) -> None:
        self._version += 1
        kind = self._random.random()
        if kind < 0.15:
            if cursor.execute("delete from items where customer = %s and line = %s", (customer, line)):
                self._record(cursor, customer, line, None)
        elif kind < 0.25:
            to = self._random.randrange(12)
            if cursor.execute("select 1 from items where customer = %s and line = %s", (customer, to)) and to != line:
                return  # it is taken
            row = (to, self._version, customer, line)
            if cursor.execute("update items set line = %s, version = %s where customer = %s and line = %s", row):
                if to != line:
                    self._record(cursor, customer, line, None)
                self._record(cursor, customer, to, self._version)
        else:
            cursor.execute(
                "insert into items (customer, line, version, note) values (%s, %s, %s, %s)"
                " on duplicate key update version = values(version), note = values(note)",
                (customer, line, self._version, f"näh {self._version}"),
            )
            self._record(cursor, customer, line, self._version)

    def _record(self, cursor: Cursor, customer: int, line: int, version: int | None) -> None:
        self._seq += 1
        cursor.execute(
            "insert into items_audit (customer, seq, line, version) values (%s, %s, %s, %s)",
            (customer, self._seq, line, version),
        )


class Sharded(World):
    """A cluster, writers through its vtgate, and a relay."""

    def __init__(self, folder: Path, servers: str, name: str, cluster: VitessCluster, seed: int) -> None:
        self.cluster = cluster
        # Where the tables are.
        self.keyspace = KEYSPACE
        self.chance = random.Random(seed)
        self.kills = 0
        self.seconds_to_start = 0.0
        super().__init__(
            folder,
            servers,
            name,
            seed,
            connect=cluster.connect,
            place=lambda _: self.keyspace,
            source={
                "name": KEYSPACE,
                "type": "vitess",
                "vtgate": cluster.vtgate.address,
                "keyspace": KEYSPACE,
                "tablet_type": "replica" if cluster.replicates else "primary",
            },
            writer=AuditingWriter,
        )

    def during(self, work: Callable[[], object]) -> None:
        """Kill the relay again and again, and start another, until ``work`` is done in another thread."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            while not done.done():
                # On a busy host it needs longer to get anything done.
                time.sleep(self.chance.uniform(0.2, 1.5) * self.seconds_to_start)
                self.going(self.relays[-1]).kill()
                self.kills += 1
                self.start_reading()
            done.result()

    def start_reading(self) -> None:
        """Start a relay, and wait until it reads, or has ended because no tablet serves."""
        began, relay = time.monotonic(), self.start()
        wait_until(lambda: relay.has_logged("streaming from") or not relay.is_running, 60)
        self.seconds_to_start = time.monotonic() - began

    def reshard(self, sources: list[str], targets: list[str]) -> None:
        """As an operator does it who waits for the relay: whoever completes the workflow removes the sources."""
        self.cluster.reshard(sources, targets, lambda: wait_until(lambda: self.has_read(targets), 120))

    def has_read(self, shards: list[str]) -> bool:
        return all(any(relay.has_logged(f"reading shard {shard} from") for relay in self.relays) for shard in shards)

    def play(self, *steps: Callable[[], object]) -> None:
        """Write and relay while the steps are gone, and compare the topic with what was written. Prints the numbers."""
        self.start_reading()
        self.start_writers()
        for step in steps:
            self.during(step)
        wait_until(lambda: changes_in(history(self.connect, [self.keyspace])) > 1000)
        self.finish(self.relays[-1])
        truth, changes = history(self.connect, [self.keyspace]), self.changes()
        written = changes_in(truth)
        print(f"{written} changes of {len(truth)} items, {len(changes)} on the topic, {self.kills} relays killed")
        assert written > 1000
        assert self.kills >= len(steps)
        assert problems(truth, changes) == []

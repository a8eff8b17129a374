"""Snapshots of MariaDB and MySQL beside writers, through relays that are killed: I1, I3, I7, I9."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.change import MARK
from relay.config import load
from relay.services.mariadb import MariaDB
from tests.faults.audited import TABLE
from tests.faults.copied import copied, seen
from tests.faults.harness import Relay, wait_until
from tests.faults.replicated import DATABASE, Replicated
from tests.faults.scripted_relay import tail_topic
from tests.faults.world import World
from tests.mysql.reading import NUMBERS, position_of
from tests.mysql.server import MySQL

pytestmark = pytest.mark.services

ROWS = 6_000
PACE = {"snapshot_rows_per_second": 2000}


class Snapshotted(World):
    """A primary with a replica, both listed in the config, with rows from before the relay runs.

    They are in the binlog after the position where it starts, unless ``source`` says otherwise.
    """

    def __init__(self, folder: Path, servers: str, name: str, primary: Any, replica: Any, **source: Any) -> None:
        self.servers = Replicated(primary, replica)
        self.name = name
        entry = self.servers.source("legacy") | {"start": {"gtid": {"-": position_of(primary)}}} | source
        seed = int(os.environ.get("RELAY_SEED") or 7)
        super().__init__(
            folder, servers, name, seed, connect=self.servers.connect, place=lambda _: DATABASE, source=entry
        )
        # Customers that nobody writes to, and all lines of those that the writers do.
        self.execute(f"insert items select n + 1000, 1, 1, 'before' from {NUMBERS.format(ROWS, '')} t")
        self.execute(f"insert items select n div 12, n mod 12, 1, 'before' from {NUMBERS.format(700, '')} t")
        replica.wait_for(primary.gtid)

    def execute(self, statement: str) -> Any:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"use {DATABASE}")
            recursion = (
                "max_recursive_iterations" if isinstance(self.servers.primary, MariaDB) else "cte_max_recursion_depth"
            )
            cursor.execute(f"set {recursion} = 100000")
            # Long ago, so that a snapshot does not have to wait for what was published.
            cursor.execute(f"set timestamp = {int(time.time()) - 3600}")
            cursor.execute("set @copying = 1")
            cursor.execute(statement)
            rows = cursor.fetchall()
            connection.commit()
            return rows

    def rows(self) -> dict[tuple[int, int], tuple[int, str]]:
        found = self.execute("select customer, line, version, note from items")
        return {(customer, line): (version, note) for customer, line, version, note in found}

    def copy(self) -> dict[tuple[int, int], tuple[int, str]]:
        """Return what the copy has, by the changes on the topic."""
        found = []
        for partition, _, value in sorted(self.changes(), key=lambda change: change[:2]):
            key, new = value["key"], value["new"]
            item = (key["customer"], key["line"]) if key else None
            found.append(seen(partition, value, item=item, new=(new["version"], new["note"]) if new else None))
        return copied(found)

    def reads(self) -> list[dict[str, Any]]:
        return [value for _, _, value in self.changes() if value["operation"] == "READ" and value["key"]]

    def marks(self) -> Counter[str]:
        return Counter(
            value["attributes"][MARK]
            for _, _, value in self.changes()
            if value["operation"] == "READ" and not value["key"]
        )

    def catch_up(self) -> None:
        relay = self.start("--until-caught-up")
        assert relay.wait(120) == 0, relay.log()


def wait_for(relay: Relay, text: str) -> None:
    """Wait until the log of a relay has a text."""
    wait_until(lambda: text in relay.log() or None, 60)


@pytest.fixture(params=[MariaDB, MySQL])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    with request.param() as primary, request.param() as replica:
        yield primary, replica


def test_a_copy_equals_the_table_though_it_is_written_to_and_the_relay_is_killed_in_its_snapshot(
    tmp_path: Path, kafka: Any, unique: str, servers: tuple[Any, Any]
) -> None:
    """I1, I3, I7: each row is read once, and no READ undoes a change."""
    world = Snapshotted(
        tmp_path, kafka.bootstrap_servers, unique, *servers, start="current", snapshot="initial", **PACE
    )
    try:
        chance = random.Random(world.seed)
        world.start_writers()
        relay = world.start()
        wait_for(relay, f"reading table {TABLE} from {servers[1].address}")
        for _ in range(2):
            time.sleep(chance.uniform(0.3, 1.0))
            relay.kill()
            relay = world.start()
            wait_for(relay, f"reading table {TABLE} from")
        wait_for(relay, "is finished")
        world.stop_writers()
        assert relay.terminate() == 0, relay.log()
        world.catch_up()
    finally:
        world.close()
    assert world.copy() == world.rows()
    reads = Counter((read["key"]["customer"], read["key"]["line"]) for read in world.reads())
    assert set(reads.values()) == {1}
    assert sum(customer > 1000 for customer, _ in reads) == ROWS
    partitions = load(world.path).kafka.partitions
    assert world.marks() == {"begin": partitions, "end": partitions}


def test_a_purged_binlog_is_repaired_by_a_snapshot(
    tmp_path: Path, kafka: Any, unique: str, servers: tuple[Any, Any]
) -> None:
    """I9, I7: rows that were changed and deleted in the loss, too."""
    primary, replica = servers
    world = Snapshotted(tmp_path, kafka.bootstrap_servers, unique, primary, replica, on_gap="resnapshot")
    try:
        world.catch_up()
        assert world.reads() == []
        world.execute("delete from items where customer = 1001")
        world.execute("update items set version = 2, note = 'lost' where customer = 1002")
        world.execute("insert items values (1, 77, 3, 'lost')")
        replica.wait_for(primary.gtid)
        for server in servers:
            server.purge_binlogs()
        world.catch_up()
    finally:
        world.close()
    assert [gap["value"]["reason"] for gap in tail_topic(world.path, f"{unique}.gaps")] == ["purged"]
    assert world.copy() == world.rows()
    assert len(world.reads()) == len(world.rows())

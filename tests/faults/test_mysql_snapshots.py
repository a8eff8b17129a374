"""Snapshots of MariaDB and MySQL beside writers, through relays that are killed: I1, I3, I7, I9."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.services.mariadb import MariaDB
from tests.faults.audited import TABLE
from tests.faults.scripted_relay import tail_topic
from tests.faults.snapshotted import PACE, Snapshotted
from tests.mysql.kept_binlogs import purge_binlogs
from tests.mysql.server import MySQL

pytestmark = pytest.mark.services


@pytest.fixture(params=[MariaDB, pytest.param(MySQL, marks=pytest.mark.faults("as on MariaDB"))])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    with request.param() as primary, request.param() as replica:
        yield primary, replica


@pytest.mark.faults("kills of another source: test_snapshots.py; mysql/test_database_snapshots.py resumes a segment")
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
        relay.wait_for(f"reading table {TABLE} from {servers[1].address}")
        for _ in range(2):
            time.sleep(chance.uniform(0.3, 1.0))
            relay.kill()
            relay = world.start()
            relay.wait_for(f"reading table {TABLE} from")
        relay.wait_for("is finished")
        world.stop_writers()
        assert relay.terminate() == 0, relay.log()
        world.catch_up()
    finally:
        world.close()
    world.check_that_one_snapshot_read_each_row_once()


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
            purge_binlogs(server)
        world.catch_up()
    finally:
        world.close()
    assert [gap["value"]["reason"] for gap in tail_topic(world.path, f"{unique}.gaps")] == ["purged"]
    assert world.copy() == world.rows()
    assert len(world.reads()) == len(world.rows())

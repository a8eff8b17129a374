"""A copy beside the stream while its shard is resharded by Vitess and its primary is killed: I1, I2, I3, I7."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from relay.config import load
from tests import needs
from tests.command_line import relay
from tests.faults.audited import ITEMS, TABLE, history, problems
from tests.faults.resharded import AUDIT, VSCHEMA, Sharded
from tests.vitess.cluster import KEYSPACE, VitessCluster
from tests.vitess.tablet_databases import TabletMariaDB
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("a cluster: vitess/test_copies.py has a copy that goes on after a reshard"),
]

ROWS = 4000
SLOWLY = 30  # rows a second: the copy goes on during the reshard, whatever that takes


class Copied(Sharded):
    """A cluster with rows that no writer changes, and a relay whose copies are slow until ``hurry``."""

    def fill(self) -> None:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"use {KEYSPACE}")
            for first in range(1000, 1000 + ROWS, 500):
                rows = ", ".join(f"({n}, 1, 1, 'before')" for n in range(first, first + 500))
                cursor.execute(f"insert into {TABLE} (customer, line, version, note) values {rows}")
                connection.commit()

    def set_pace(self, rows: int | None) -> None:
        content = yaml.safe_load(self.path.read_text())
        content["sources"][0]["snapshot_rows_per_second"] = rows
        self.path.write_text(yaml.safe_dump(content))

    def snapshot(self) -> dict[str, Any]:
        (source,) = orjson.loads(relay("status", self.path, "--json").stdout)["sources"]
        found: dict[str, Any] = source["snapshot"]
        return found

    def rows(self) -> dict[tuple[int, int], tuple[int, str]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"use {KEYSPACE}")
            cursor.execute(f"select customer, line, version, note from {TABLE}")
            return {(customer, line): (version, note) for customer, line, version, note in cursor.fetchall()}


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[Copied]:
    needs.vitess_cluster()
    with VitessCluster([ITEMS, AUDIT], VSCHEMA, TabletMariaDB) as cluster:
        seed = int(os.environ.get("RELAY_SEED") or 20)
        world = Copied(tmp_path, kafka.bootstrap_servers, unique, cluster, seed)
        world.set_pace(SLOWLY)
        yield world
        world.close()


def test_a_copy_equals_its_table_though_the_primary_is_killed_and_the_shard_is_resharded_meanwhile(
    world: Copied,
) -> None:
    """Each row is read once; what is left of the shard's rows is read from the shards that continue it."""
    world.fill()
    world.start_reading()
    world.start_writers()
    asked = relay("snapshot", world.path, KEYSPACE)
    assert asked.exit_code == 0, asked.output
    world.relays[-1].wait_for(f"copying table {TABLE} of shard 0")
    world.cluster.crash("0")
    world.reshard(["0"], ["-80", "80-"])
    assert world.snapshot()["state"] == "reading"
    world.relays[-1] = world.going(world.relays[-1])
    world.relays[-1].kill()
    world.set_pace(None)
    last = world.start()
    wait_until(lambda: world.snapshot()["state"] == "finished" or None, 120)
    world.reshard(["-80", "80-"], ["-"])
    world.finish(last)
    assert any(each.has_logged(f"copying table {TABLE} of shard -80") for each in world.relays)
    truth, changes = history(world.connect, [KEYSPACE]), world.changes()
    streamed = [each for each in changes if each[2]["operation"] != "READ"]
    before = {item: [1] for item in world.rows() if item[0] >= 1000}
    assert problems(truth, [each for each in streamed if each[2]["key"]["customer"] < 1000]) == []
    assert world.copy() == world.rows()
    assert max(Counter(read["event_id"] for read in world.reads()).values()) == 1
    assert before.keys() <= {(read["key"]["customer"], read["key"]["line"]) for read in world.reads()}
    partitions = load(world.path).kafka.partitions
    assert world.marks() == {"begin": partitions, "end": partitions}

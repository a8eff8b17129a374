"""A table that MoveTables takes to another keyspace of a Vitess of separate processes, and back: I1, I2, I3, I4."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.stream.journals import tag_of
from tests import needs
from tests.faults.audited import ITEMS, TABLE
from tests.faults.resharded import AUDIT, VSCHEMA, Sharded
from tests.vitess.cluster import KEYSPACE, Database, VitessCluster
from tests.vitess.tablet_databases import TabletMariaDB, TabletMySQL
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("a cluster: vitess/test_moved_tables.py has what its journals look like to the relay"),
]

OTHER = "moved"
ALONE = tag_of({"only": [TABLE]})
"""Tags the shards with the relayed table alone."""


class Moved(Sharded):
    """A keyspace whose tables are moved, and another one without tables, which the config does not name."""

    def create(self) -> None:
        self.cluster.move_tables("away", OTHER, TABLE, f"{TABLE}_audit")

    def lose_primary(self) -> None:
        """Let the primary of the first keyspace be replaced, or killed and started again where it has no replica."""
        if self.cluster.replicates:
            self.cluster.reparent("0")
        else:
            self.cluster.crash("0")

    def switch(self, to: str, shard: str) -> None:
        """Let another keyspace serve the tables, or the first one again. ``shard``: what the relay then reads."""
        self.cluster.workflow("away", "switchtraffic" if to == OTHER else "reversetraffic", to=OTHER)
        wait_until(lambda: self.has_read([shard]), 120)

    def complete(self) -> None:
        """Remove the tables from the first keyspace."""
        with self.paused():
            self.cluster.workflow("away", "complete", to=OTHER)
            self.keyspace = OTHER
            for writer in self.writers:
                writer.reconnect()


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[Moved]:
    """Its seed is ``RELAY_SEED``. On MySQL if there is one, since a MariaDB does not replicate in Vitess."""
    needs.vitess_cluster()
    database: type[Database] = TabletMySQL if needs.has_mysqld() else TabletMariaDB
    if database is TabletMySQL:
        needs.mysqld()
    with VitessCluster([ITEMS, AUDIT], VSCHEMA, database) as cluster:
        cluster.add_keyspace(OTHER, "-")
        world = Moved(tmp_path, kafka.bootstrap_servers, unique, cluster, int(os.environ.get("RELAY_SEED") or 20))
        yield world
        world.close()


def test_the_changes_of_a_table_that_is_moved_back_and_forth_are_on_its_topic_once_and_in_order(world: Moved) -> None:
    """Its removal from the first keyspace empties no copy."""
    world.play(
        world.create,
        lambda: world.switch(OTHER, f"{OTHER}/-{ALONE}"),
        world.lose_primary,
        lambda: world.switch(KEYSPACE, f"0{ALONE}"),
        world.lose_primary,
        lambda: world.switch(OTHER, f"{OTHER}/-{ALONE}@2"),
        world.complete,
    )
    assert {change["operation"] for _, _, change in world.changes()} == {"INSERT", "UPDATE", "DELETE"}

"""Exactly once from a Vitess of separate processes, over its own reshards and failovers: I1, I2, I3, I4."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.faults.audited import ITEMS
from tests.faults.resharded import AUDIT, VSCHEMA, Sharded
from tests.vitess.cluster import Database, VitessCluster
from tests.vitess.tablet_databases import TabletMariaDB, TabletMySQL

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("a cluster: vitess/test_endings.py has what a reshard and a lost tablet look like to the relay"),
]


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[Sharded]:
    """Its seed is ``RELAY_SEED``. On MySQL if there is one, since a MariaDB does not replicate in Vitess."""
    needs.vitess_cluster()
    database: type[Database] = TabletMySQL if needs.has_mysqld() else TabletMariaDB
    if database is TabletMySQL:
        needs.mysqld()
    with VitessCluster([ITEMS, AUDIT], VSCHEMA, database) as cluster:
        seed = int(os.environ.get("RELAY_SEED") or 20)
        world = Sharded(tmp_path, kafka.bootstrap_servers, unique, cluster, seed)
        yield world
        world.close()


def test_reshards_and_lost_primaries_lose_double_and_disorder_nothing(world: Sharded) -> None:
    """``test_vitess_cluster_copies.py`` has the crash and the reshards on MariaDB, beside a copy."""
    cluster = world.cluster
    if cluster.replicates:
        world.play(
            lambda: cluster.reparent("0"),
            lambda: world.reshard(["0"], ["-80", "80-"]),
            lambda: cluster.lose_primary("-80"),
            lambda: cluster.reparent("80-"),
            lambda: world.reshard(["-80", "80-"], ["-"]),
            lambda: cluster.lose_primary("-"),
        )
    else:
        world.play(
            lambda: cluster.crash("0"),
            lambda: world.reshard(["0"], ["-80", "80-"]),
            lambda: cluster.crash("80-"),
            lambda: world.reshard(["-80", "80-"], ["-"]),
        )

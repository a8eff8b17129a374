"""Statements through vtgate on tables of a real Vitess while a snapshot copies them: I1, I7, I10."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.services.vitess import Vitess, database
from relay.vitess.client import Vtgate
from tests import needs
from tests.faults.altered import Altered
from tests.faults.audited import opened
from tests.faults.clustered import SHARDS, cluster_of
from tests.faults.harness import Relay
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("another source: test_snapshots_beside_statements.py, and vitess/test_copies_begun_again.py"),
]

ROWS = 120  # in each shard
STATEMENTS = {
    "widened": ["alter table {0} add column more int default 5 first"],
    "rekeyed": ["alter table {0} drop primary key, add primary key (w, id)"],
    "retyped": ["alter table {0} modify id varchar(9)"],
    "emptied": ["truncate table {0}"],
    "dropped": ["drop table {0}"],
    "renamed": ["alter table {0} rename to {0}_away"],
    "renamed_back": ["alter table {0} rename to {0}_away", "alter table {0}_away rename to {0}"],
    "made_anew": ["drop table {0}", "create table {0} (more int, v varchar(40), id bigint primary key)"],
}
RESUMED = ("rekeyed", "retyped")  # whose copies go on after the key of a row that another worker has read
AFTER = {
    "emptied": "insert into {0} values (SHARD * 1000 + 7, 'after', 1)",
    "dropped": "select 1",
    "renamed": "update {0}_away set v = 'after' where id = SHARD * 1000 + 7",
    "made_anew": "insert into {0} (id, v) values (SHARD * 1000 + 500, 'after')",
}


class AlteredKeyspace(Altered):
    """Tables in each shard of a keyspace, whose statements vtgate executes."""

    def __init__(self, folder: Path, servers: str, cluster: Vitess, name: str) -> None:
        self.path = folder / "relay.yaml"
        self.relays: list[Relay] = []
        self.cluster = cluster
        self._databases = [database("commerce", shard) for shard in SHARDS]
        kafka = {"bootstrap_servers": servers, "partitions": 2, "producer": {"transaction.timeout.ms": 2000}}
        entry: dict[str, Any] = {
            "name": "s",
            "type": "vitess",
            "vtgate": cluster.vtgate,
            "keyspace": "commerce",
            "start": "copy",
        }
        entry |= {
            "snapshot_rows_per_second": 100,
            "tables": list(STATEMENTS),
            "key": {name: ["id"] for name in STATEMENTS},
        }
        self.path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [entry]}))

    def within(self, *statements: str) -> Any:
        """Run statements in the databases of the shards, and return the rows of the last one in all of them."""
        found: list[Any] = []
        with closing(opened(self.cluster.mariadb.connect(defer_connect=True))) as connection:
            for at in self._databases:
                with connection.cursor() as cursor:
                    cursor.execute(f"use `{at}`")
                    for statement in statements:
                        cursor.execute(statement.replace("SHARD", str(self._databases.index(at))))
                    found += cursor.fetchall()
        return found

    def by_vtgate(self, *statements: str) -> None:
        with closing(Vtgate(self.cluster.vtgate)) as vtgate:
            for statement in statements:
                vtgate.execute(statement, "commerce", timeout=60)

    def fill(self, table: str, rows: int) -> None:
        numbers = ", ".join(f"(SHARD * 1000 + {n}, 'before {n}', {rows - n})" for n in range(rows))
        self.within(
            f"create table {table} (id bigint primary key, v varchar(40), w int not null)",
            f"insert into {table} values {numbers}",
        )

    def close(self) -> None:
        for relay in self.relays:
            relay.kill()


@pytest.fixture
def keyspace(tmp_path: Path, kafka: Any, unique: str) -> Iterator[AlteredKeyspace]:
    needs.vitess()
    with cluster_of(**{"vstream-packet-size": 1000, "vstream-dynamic-packet-size": "false"}) as cluster:
        world = AlteredKeyspace(tmp_path, kafka.bootstrap_servers, cluster, unique)
        yield world
        world.close()


def test_copies_equal_the_tables_whatever_vtgate_does_to_them_during_their_copy(keyspace: AlteredKeyspace) -> None:
    """I1, I7: in some shards before the first row of a table, in others between two batches or after the last."""
    for table in STATEMENTS:
        keyspace.fill(table, ROWS)
    relay = keyspace.start("--until-caught-up")
    relay.wait_for("starts, about")
    for table, statements in STATEMENTS.items():
        wait_until(lambda name=table: keyspace.is_read(name), 120)  # type: ignore[misc]
        if table in RESUMED:
            relay.kill()
        keyspace.by_vtgate(*(each.format(table) for each in statements))
        keyspace.within(AFTER.get(table, "update {0} set v = 'after' where id = SHARD * 1000 + 7").format(table))
        if table in RESUMED:
            relay = keyspace.start("--until-caught-up")
    assert relay.wait(240) == 0, relay.log()
    keyspace.catch_up()
    found = {name: keyspace.copy(name) for name in STATEMENTS}
    assert [name for name, rows in found.items() if rows != keyspace.rows(name)] == []

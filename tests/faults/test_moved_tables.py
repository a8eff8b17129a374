"""Tables that MoveTables takes to another keyspace of a Vitess of separate processes: I1."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from relay.config import VitessConfig
from relay.source import Opening, Page
from relay.vitess.client import Vtgate
from relay.vitess.source import VitessSource
from tests import needs
from tests.vitess.cluster import KEYSPACE, VitessCluster
from tests.vitess.reading import until
from tests.vitess.tablet_databases import TabletMariaDB

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("a cluster: vitess/test_statements.py has what its journals look like to the relay"),
]

TABLES = ("customer", "returned", "other")
SCHEMA = [f"create table {table} (id bigint primary key, v int)" for table in TABLES]


def seen(pages: list[Page]) -> list[tuple[str, str, Any]]:
    return [
        (change.operation.value, change.table, change.key and change.key["id"])
        for page in pages
        for change in page.changes
    ]


def test_copies_keep_the_rows_of_a_table_that_lives_on_in_another_keyspace(caplog: pytest.LogCaptureFixture) -> None:
    """A table that was moved back is emptied by its DROP as any other. So is the copy that another keyspace had."""
    needs.vitess_cluster()
    vschema = {"sharded": False, "tables": {table: {} for table in TABLES}}
    with VitessCluster(SCHEMA, vschema, TabletMariaDB) as cluster:
        cluster.add_keyspace("moved", "-")
        address = f"127.0.0.1:{cluster.vtgate.port}"
        config = VitessConfig.model_validate(
            {"name": "s", "type": "vitess", "vtgate": address, "keyspace": KEYSPACE, "tablet_type": "primary"}
        )
        source = VitessSource(config)
        with closing(source), closing(Vtgate(address)) as vtgate:
            source.connect()
            (shard,) = source.shards()
            start = source.starting_points([shard]).shards[shard.id]
            with closing(source.open(Opening(shard, start))) as reader:

                def read_to(number: int) -> list[Page]:
                    """Read to a new row of a table that stays."""
                    vtgate.execute(f"insert into other values ({number}, 1)", KEYSPACE)
                    return until(reader, lambda page: ("INSERT", "other", number) in seen([page]))

                for table in TABLES[:2]:
                    vtgate.execute(f"insert into {table} values (1, 1)", KEYSPACE)
                pages = read_to(1)
                cluster.move_tables("both", "moved", *TABLES[:2])
                cluster.workflow("both", "switchtraffic", to="moved")
                cluster.workflow("both", "reversetraffic", to="moved")
                pages += read_to(2)
                cluster.workflow("both", "cancel", to="moved")
                cluster.move_tables("one", "moved", "customer")
                cluster.workflow("one", "switchtraffic", to="moved")
                vtgate.execute("insert into customer values (2, 2)", "moved")
                pages += read_to(3)
                cluster.workflow("one", "complete", to="moved")
                vtgate.execute("drop table returned", KEYSPACE, timeout=60)
                pages += read_to(4)
    found = [each for each in seen(pages) if each[1] != "other"]
    assert found == [
        ("INSERT", "customer", 1),
        ("INSERT", "returned", 1),
        ("INSERT", "customer", 2),  # replicated back, until the move is completed
        ("TRUNCATE", "returned", None),
    ]
    assert "table customer, which was moved to keyspace moved: its rows stay" in caplog.text

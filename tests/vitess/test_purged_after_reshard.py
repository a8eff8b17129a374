"""A shard whose binlogs are purged with the journal of its reshard, before they were read."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from relay.errors import RelayError
from relay.vitess.client import Vtgate
from relay.vitess.position import VitessShard
from relay.vitess.tablets import Tablets
from relay.vitess.watch import Head
from tests import needs
from tests.mysql.kept_binlogs import purge_binlogs
from tests.vitess.cluster import KEYSPACE, VitessCluster
from tests.vitess.reading import opened, until
from tests.vitess.tablet_databases import TabletMariaDB

pytestmark = pytest.mark.services

SCHEMA = "create table customer (id bigint primary key, v int)"
VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {"customer": {"column_vindexes": [{"column": "id", "name": "hash"}]}},
}


def test_a_shard_whose_journal_is_purged_is_not_read_on_as_if_it_were_idle() -> None:
    """I10, I1: its rows are written to in other shards, which nothing names any more."""
    needs.vitess_cluster()
    with VitessCluster([SCHEMA], VSCHEMA, TabletMariaDB) as cluster:
        with closing(Vtgate(cluster.vtgate.address)) as vtgate:
            tablets = Tablets(vtgate, VitessShard("shop", KEYSPACE, "0", f"shop/{KEYSPACE}/0"), "PRIMARY")
            asked = Head(tablets, "customer", clock=time.time)
            asked.ask()
            found = asked.poll(60.0)
        assert found is not None
        with closing(cluster.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("insert into customer (id, v) values (1, 1)")
            connection.commit()

        def purge_and_read() -> None:
            cluster.crash("0")  # or the streams of the reshard keep its binlogs
            purge_binlogs(cluster.primary("0").database)
            with (
                opened(
                    cluster.vtgate.address, {"gtid": found[1].position}, tablet_type="PRIMARY", silence=2.0
                ) as reader,
                pytest.raises(RelayError, match=r"has since been resharded, and the journal .* has been purged"),
            ):
                until(reader, lambda page: page.gap is not None)

        cluster.reshard(["0"], ["-80", "80-"], purge_and_read)

"""Copies of tables whose primary key is altered between two batches: no row is left out (I1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.change import Snapshot
from relay.config import VitessConfig
from relay.lineage import Checkpoint, Shard, ShardState
from relay.services.vitess import Vitess, database
from relay.source import Page, Segment
from relay.vitess.client import Vtgate
from relay.vitess.source import VitessSource
from tests import needs
from tests.vitess.reading import until

pytestmark = pytest.mark.services

ROWS = 200
FIRST = 850  # so that texts have another order than numbers
ALTERED = {
    "another_order": "drop primary key, add primary key (w, id)",
    "another_column": "drop primary key, add primary key (w)",
    "texts": "modify id varchar(9)",
    "a_name": "change id number bigint",
    "wider": "add more int first",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    flags: dict[str, str | int] = {"vstream-packet-size": 1000, "vstream-dynamic-packet-size": "false"}
    with Vitess(keyspaces={"shop": ["0"]}, flags=flags) as started:
        yield started


def numbers(pages: list[Page]) -> list[int]:
    return [change.new["n"] for page in pages for change in page.changes if change.new is not None]


@pytest.mark.parametrize("name", ALTERED)
def test_every_row_is_copied_although_the_key_is_altered_between_two_batches(cluster: Vitess, name: str) -> None:
    """I1, I7: a copy would delete at the end mark what was left out."""
    with closing(cluster.mariadb.connect(database=database("shop", "0"))) as connection, connection.cursor() as cursor:
        cursor.execute(f"create table {name} (id bigint primary key, w int not null, n int unique)")
        rows = ", ".join(f"({n + FIRST}, {ROWS - n}, {n})" for n in range(ROWS))
        cursor.execute(f"insert into {name} values {rows}")
        connection.commit()
        cursor.execute("select @@global.gtid_binlog_pos")
        [executed] = cursor.fetchone() or [""]
    entry = {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "shop", "tablet_type": "primary"}
    source = VitessSource(VitessConfig.model_validate({**entry, "tables": [name], "key": {name: ["n"]}}))
    source.connect()
    published = {"0": Checkpoint(ShardState.READING, {"gtid": f"MariaDB/{executed}"}, reached=1.0)}
    part = {"shard": "0", "table": name}

    def opened(position: Any) -> Any:
        return source.snapshots.open(Segment(Shard("s/0"), Snapshot("s", 1), 0, 1, position, part, lambda: published))

    with closing(opened(None)) as reader:
        pages = until(reader, lambda page: bool(page.changes))
    assert 0 < len(numbers(pages)) < ROWS
    with closing(Vtgate(cluster.vtgate)) as vtgate:
        vtgate.execute(f"alter table {name} {ALTERED[name]}", "shop", timeout=60)
    with closing(opened(pages[-1].position)) as reader:
        pages += until(reader, lambda page: page.finished, most=400)
    source.close()
    assert set(numbers(pages)) == set(range(ROWS))

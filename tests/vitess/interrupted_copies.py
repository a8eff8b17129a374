"""Copies of one table of a keyspace ``shop`` that are opened again and again; ``n`` names its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from relay.change import Snapshot
from relay.config import VitessConfig
from relay.records import Shard, ShardCheckpoint, ShardState, SnapshotPart
from relay.services.vitess import Vitess, database
from relay.source import Page, Segment, ShardReader
from relay.vitess.source import VitessSource


@contextmanager
def started(batch: int) -> Iterator[Vitess]:
    """Start a keyspace ``shop`` of one shard whose tables are copied in batches of about ``batch`` bytes."""
    flags: dict[str, str | int] = {"vstream-packet-size": batch, "vstream-dynamic-packet-size": "false"}
    with Vitess(keyspaces={"shop": ["0"]}, flags=flags) as cluster:
        yield cluster


@contextmanager
def copy_of(cluster: Vitess, table: str, *statements: str) -> Iterator[Callable[[Any], ShardReader]]:
    """Make a table by ``statements``. Yield what opens a copy of it after a position, None for its beginning."""
    with closing(cluster.mariadb.connect(database=database("shop", "0"))) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        cursor.execute("select @@global.gtid_binlog_pos")
        [executed] = cursor.fetchone() or [""]
    entry = {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "shop", "tablet_type": "primary"}
    source = VitessSource(VitessConfig.model_validate({**entry, "tables": [table], "key": {table: ["n"]}}))
    source.connect()
    published = {"0": ShardCheckpoint(ShardState.READING, {"gtid": f"MariaDB/{executed}"}, reached=1.0)}
    part = SnapshotPart("0", table)

    def opened(position: Any) -> ShardReader:
        return source.snapshots.open(Segment(Shard("s/0"), Snapshot("s", 1), 0, 1, position, part, lambda: published))

    with closing(source):
        yield opened


def numbers(pages: list[Page]) -> list[int]:
    return [change.new["n"] for page in pages for change in page.changes if change.new is not None]

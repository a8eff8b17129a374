"""Snapshots of a keyspace: each table of each shard is a segment, copied by vtgate in a stream of its own.

The streams of the shards go on beside them. `relay.vitess.table_reader` reads a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from relay.errors import RelayError
from relay.mysql_dialect.sources import SqlSnapshots, measured
from relay.process.slow_call import call_all
from relay.records import Plan, Shard, ShardCheckpoint, StreamId
from relay.source import Measured, Segment
from relay.table import Column
from relay.types.columns import ColumnKind
from relay.vitess.client import Vtgate
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard import VitessShard
from relay.vitess.table_reader import CopiedTableReader, FindTables
from relay.vitess.tables import Tables
from relay.vitess.tablets import Tablets

if TYPE_CHECKING:
    from relay.config import VitessConfig


def rounded(columns: Iterable[Column]) -> list[str]:
    """Return the names of the columns that SELECT rounds, so that no table with them can be copied."""
    return [column.name for column in columns if column.type == ColumnKind.FLOAT]


class KeyspaceSnapshots(SqlSnapshots):
    """Reads the tables of a keyspace. ``tables``: makes what the reader of one segment knows of them."""

    def __init__(
        self,
        config: VitessConfig,
        stream: StreamId,
        vtgate: Vtgate,
        settings: VStreamSettings,
        find: FindTables,
        tables: Callable[[], Tables],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(config)
        self._clock = clock
        self._stream = stream
        self._vtgate = vtgate
        self._settings = settings
        self._find = find
        self._tables = tables

    def is_initial(self, plan: Plan) -> bool:
        return any(start.get("type") == "copy" for start in plan.shards.values())

    def measure(self, published: Mapping[str, ShardCheckpoint], tables: Collection[str] | None = None) -> Measured:
        """Return the ``tables`` of each shard that has not ended, the largest first.

        Raises ``Unavailable``, and ``RelayError`` for a table that cannot be copied.
        """
        shards = self.unfinished(published)
        wanted = {name: table for name, table in self._find().items() if tables is None or name in tables}
        for name, table in wanted.items():
            if inexact := rounded(table.schema.row or ()):
                raise RelayError(
                    f"source {self._source}: table {name} cannot be copied exactly, because SELECT rounds the "
                    f"FLOAT column {inexact[0]}: make it a DOUBLE, or copy other tables only, with "
                    f"`relay snapshot CONFIG {self._source} TABLE...`"
                )
        names = [VitessShard.of(self._stream, Shard(shard), self._settings.keyspace) for shard in shards]
        kind = self._settings.tablet_type
        counts = call_all("row-counts", [Tablets(self._vtgate, name, kind).row_counts for name in names])
        rows = (
            (of_shard.get(name, 0), shard, name)
            for shard, of_shard in zip(shards, counts, strict=True)
            for name in wanted
        )
        return measured(rows, self._tables().skipped.measured(wanted.keys(), tables))

    def open(self, segment: Segment) -> CopiedTableReader:
        return CopiedTableReader(
            self._vtgate, self._stream, segment, self._tables(), self._find, self._settings, clock=self._clock
        )

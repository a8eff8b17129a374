"""Snapshots of a keyspace: each table of each shard is a segment, copied by vtgate in a stream of its own.

The streams of the shards go on beside them. `relay.vitess.table_reader` reads a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from relay.errors import RelayError, Unavailable
from relay.keyrange import KeyRange, shards_covering
from relay.mysql_dialect.snapshot_times import MARGIN, may_begin
from relay.process.slow_call import call_all
from relay.records import Plan, Shard, ShardCheckpoint, SnapshotPart, StreamId
from relay.source import Measured, Segment
from relay.types.columns import ColumnKind
from relay.vitess.client import Vtgate
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard import VitessShard
from relay.vitess.table_reader import CopiedTableReader, FindTables
from relay.vitess.tables import Tables
from relay.vitess.tablets import Tablets

if TYPE_CHECKING:
    from relay.config import VitessConfig


class KeyspaceSnapshots:
    """Reads the tables of a keyspace. ``tables``: makes what the reader of one segment knows of them."""

    margin = MARGIN
    reads_at_once = 2  # rows arrive by themselves, so more would only decode in turn

    def __init__(
        self,
        config: VitessConfig,
        vtgate: Vtgate,
        settings: VStreamSettings,
        find: FindTables,
        tables: Callable[[], Tables],
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self.is_selective = config.tables is not None
        self._config = config
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
        shards = self._shards(published)
        wanted = {name: table for name, table in self._find().items() if tables is None or name in tables}
        for name, table in wanted.items():
            if rounded := [column.name for column in table.schema.row or () if column.type == ColumnKind.FLOAT]:
                raise RelayError(
                    f"source {self._config.name}: table {name} cannot be copied exactly, because SELECT rounds the "
                    f"FLOAT column {rounded[0]}: make it a DOUBLE, or copy other tables only, with "
                    f"`relay snapshot CONFIG {self._config.name} TABLE...`"
                )
        names = [VitessShard.of(self._stream, Shard(shard), self._config.keyspace) for shard in shards]
        kind = self._settings.tablet_type
        counts = call_all("row-counts", [Tablets(self._vtgate, name, kind).row_counts for name in names])
        found = [
            (of_shard.get(name, 0), shard, name)
            for shard, of_shard in zip(shards, counts, strict=True)
            for name in wanted
        ]
        found.sort(key=lambda each: (-each[0], *each[1:]))
        parts = [SnapshotPart(shard, table) for _, shard, table in found]
        return Measured(len(parts), sum(rows for rows, _, _ in found), parts)

    @property
    def _stream(self) -> StreamId:
        return StreamId(self._config.name, self._config.keyspace)

    def _shards(self, published: Mapping[str, ShardCheckpoint]) -> list[str]:
        """Return the shards that have not ended. Raises ``Unavailable`` while they are not all known."""
        found = [shard for shard, checkpoint in published.items() if not checkpoint.state.ended]
        names = [Shard(shard).name.rpartition("/")[2] for shard in found]
        try:
            is_complete = sorted(shards_covering(KeyRange.parse(self._config.keyrange), names)) == sorted(names)
        except ValueError:
            is_complete = False
        if not is_complete:  # I1: another worker may have yet to write the checkpoint of one
            known = ", ".join(found) or "none"
            raise Unavailable(f"source {self._config.name}: not all shards are being read yet, only {known}")
        return found

    def may_begin(self, as_of: int, published: Mapping[str, ShardCheckpoint]) -> bool:
        return may_begin(as_of, published)

    def open(self, segment: Segment) -> CopiedTableReader:
        return CopiedTableReader(
            self._vtgate, self._stream, segment, self._tables(), self._find, self._settings, clock=self._clock
        )

"""Snapshots of a keyspace: each table of each shard is a segment, which vtgate copies in a separate stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from relay.errors import RelayError, Unavailable
from relay.mysql_dialect.sources import SqlSnapshots, left_out_by, measured
from relay.mysql_dialect.tables import Table
from relay.process.slow_call import call_all
from relay.records import Plan, Shard, ShardCheckpoint, StreamId, followers
from relay.source import Measured, Segment
from relay.table import Column
from relay.types.columns import ColumnKind
from relay.vitess.client import Vtgate
from relay.vitess.moved_tables import tables_moved
from relay.vitess.position import VitessShard
from relay.vitess.settings import Portion, VStreamSettings
from relay.vitess.table_reader import CopiedTableReader
from relay.vitess.tables import Tables
from relay.vitess.tablets import Tablets

if TYPE_CHECKING:
    from relay.config import VitessConfig


def rounded(columns: Iterable[Column]) -> list[str]:
    """Return the names of the columns that SELECT rounds. A table with such a column cannot be copied."""
    return [column.name for column in columns if column.type == ColumnKind.FLOAT]


class KeyspaceSnapshots(SqlSnapshots):
    """``find``: returns the layouts of the wanted tables by name; its argument has the keyspace of each moved table.

    ``tables``: returns the `Tables` for a reader of the given shard.
    """

    def __init__(
        self,
        config: VitessConfig,
        stream: StreamId,
        vtgate: Vtgate,
        settings: VStreamSettings,
        find: Callable[[Mapping[str, str]], Mapping[str, Table]],
        tables: Callable[[str], Tables],
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
        """Return the ``tables`` of unfinished shards, the largest first. Raises ``Unavailable``, ``RelayError``."""
        following = (each for shard in published for each in followers(shard, published).items())
        if waiting := sorted(name for name, follower in following if follower is None):  # I7: its rows would be removed
            raise Unavailable(
                f"source {self._source}: the snapshot has to wait until the relay has begun to read shard {waiting[0]}"
            )
        reading = {shard: Portion.of(each.start or {}) for shard, each in published.items() if not each.state.ended}
        moved = [shard for shard, portion in reading.items() if portion.only]
        shards = [*self.unfinished({name: each for name, each in published.items() if name not in moved}), *moved]
        found = self._find(self._elsewhere(published))
        wanted = {name: table for name, table in found.items() if tables is None or name in tables}
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
            if reading[shard].has(name)
        )
        away = {*tables_moved(self._vtgate, names), *left_out_by(published[shard] for shard in reading)} - {*found}
        away = {name for name in away if self._settings.is_wanted(name) and (tables is None or name in tables)}
        left_out = self._tables(shards[0]).skipped.measured(wanted.keys(), tables)
        return measured(rows, sorted({*left_out, *away}))  # I7: these live on in another keyspace

    def open(self, segment: Segment) -> CopiedTableReader:
        tables = self._tables(segment.part.shard)

        def find() -> Mapping[str, Table]:
            return self._find(self._elsewhere(segment.published()))  # I7: the table may have moved since `open`

        return CopiedTableReader(self._vtgate, self._stream, segment, tables, find, self._settings, clock=self._clock)

    def _elsewhere(self, published: Mapping[str, ShardCheckpoint]) -> Mapping[str, str]:
        """Return the new keyspace of each table that was moved to another keyspace."""
        names = {shard: VitessShard.of(self._stream, Shard(shard), self._settings.keyspace) for shard in published}
        return {
            table: names[shard].keyspace
            for shard, each in published.items()
            if not each.state.ended and names[shard].keyspace != self._settings.keyspace
            for table in Portion.of(each.start or {}).only
        }

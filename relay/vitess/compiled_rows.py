"""Reads whole transactions of the usual form with the compiled core, and makes no object of a change.

``relay.vitess.events`` reads all others, everything that is refused, and all where the core is missing. Both make the
same records of the same events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay import native
from relay.avro.compiled_fields import compiled_fields
from relay.mysql_dialect.compiled_changes import compiled_rows
from relay.mysql_dialect.tables import Row
from relay.vitess.position import canonical
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import VStreamRowDecoder
from relay.vitess.shard import VitessShard

if TYPE_CHECKING:
    from relay.native._core import CompiledRows, VStreamReader


def vstream_reader(shard: VitessShard) -> VStreamReader | None:
    """Return the compiled reader of the stream of a shard, or None if the installation has no compiled core."""
    if (core := native.core()) is None:
        return None
    return core.VStreamReader(shard.keyspace.encode(), shard.name.encode(), shard.qualified, canonical)


def rows_of(shard: VitessShard, decoder: VStreamRowDecoder, *, copied: bool = False) -> CompiledRows | None:
    """Return how the compiled reader reads the rows of a table; None if only Python does. ``copied``: in a snapshot."""
    cells = [
        (column.cell, column.decode, at in decoder.doubtful, at not in decoder.others)
        for at, column in enumerate(decoder.columns)
    ]
    table = decoder.table

    def read(raw: bytes) -> Row:
        return decoder.decode(pb.Row.FromString(raw))

    fields = compiled_fields(table.schema)
    return compiled_rows(table, shard.source, shard.qualified, cells, fields, read, copied=copied)

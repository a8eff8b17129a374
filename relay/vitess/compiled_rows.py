"""Reads whole transactions of the usual form with the compiled core, and makes no object of a change.

``relay.vitess.events`` reads all others, everything that is refused, and all where the core is missing. Both make the
same records of the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relay import native
from relay.avro.compiled_fields import compiled_field
from relay.avro.schema import change_schema, columns_of_key, columns_of_row
from relay.change import Change, Images, Operation, Transaction
from relay.sql.row_functions import imager, keyer
from relay.sql.tables import Row
from relay.token import EventToken
from relay.vitess.position import canonical
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import VStreamRowDecoder
from relay.vitess.shard import VitessShard

if TYPE_CHECKING:
    from relay.native._core import CompiledRows, VStreamReader


def vstream_reader(shard: VitessShard) -> VStreamReader | None:
    """Return the compiled reader of the stream of a shard; None if the installation has no compiled core."""
    reader = native.vstream_reader()
    if reader is None:
        return None
    return reader(shard.keyspace.encode(), shard.name.encode(), shard.qualified, canonical)


def compiled_rows(shard: VitessShard, decoder: VStreamRowDecoder) -> CompiledRows | None:
    """Return how the compiled reader reads the rows of a table; None if only Python does.

    That is where some columns or rows are not published, and where a key is a time.
    """
    table = decoder.table
    schema = table.schema
    is_plain = not schema.protected and not table.replaced and table.wanted is None
    if not is_plain or any(column.type == "timestamp" for column in schema.key):
        return None
    avro = change_schema(schema)
    row = columns_of_row(avro)
    if row is None or [name for name, _ in row] != list(table.names):
        return None
    from relay.native._core import CompiledRows

    return CompiledRows(
        shard=shard.qualified,
        source=shard.source,
        table=table.name,
        columns=[
            (cell, decode, at in decoder.doubtful, at not in decoder.others, compiled_field(name, kind))
            for at, ((_, decode), cell, (name, kind)) in enumerate(
                zip(decoder.columns, decoder.cells, row, strict=True)
            )
        ],
        key=[
            (at, compiled_field(name, kind)) for at, (name, kind) in zip(table.key, columns_of_key(avro), strict=True)
        ],
        change=_change_maker(shard, decoder),
        keyspace_id=table.keyspace_id,
    )


def _change_maker(shard: VitessShard, decoder: VStreamRowDecoder) -> Callable[..., Change]:
    """Return what makes a change of what the core knows of it."""
    table = decoder.table
    image, key = imager(table), keyer(table)

    def row(raw: bytes | None) -> Row | None:
        return None if raw is None else decoder.decode(pb.Row.FromString(raw))

    def change(
        *,
        event_id: str,
        operation: str,
        before: bytes | None,
        after: bytes | None,
        timestamp: int,
        position: str,
        gtid: str,
        order: int,
        last: bool,
        committed_at: int,
        keyspace_id: bytes | None,
        resume_timestamp: int,
        relayed_at: int,
    ) -> Change:
        old, new = row(before), row(after)
        keyed = old if new is None else new
        assert keyed is not None
        return Change(
            event_id,
            Operation(operation),
            shard.source,
            table.name,
            key(keyed),
            None if old is None else image(old),
            None if new is None else image(new),
            Images.NEW_AND_OLD,
            EventToken(timestamp, shard.qualified, position),
            committed_at,
            relayed_at,
            resume_timestamp,
            None,
            Transaction(gtid, order, last),
            keyspace_id,
        )

    return change

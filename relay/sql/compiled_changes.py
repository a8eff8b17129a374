"""What the compiled core is told about a table, and its changes as objects, where somebody looks at one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relay.change import Change, Images, Operation, Transaction
from relay.sql.row_functions import imager, keyer
from relay.sql.tables import Row, Table
from relay.token import EventToken

if TYPE_CHECKING:
    from relay.native._core import CompiledRows, Field

Cell = tuple[str, Callable[[bytes], Any], bool, bool]
"""How the core reads the text of a column, what decodes the others, whether NULL is doubtful in it before a change, and
whether it is part of the primary key."""


def compiled_rows(
    table: Table,
    source: str,
    shard: str,
    cells: Sequence[Cell],
    fields: tuple[Sequence[Field], Sequence[Field]] | None,
    change: Callable[..., Change],
) -> CompiledRows | None:
    """Return how the core takes the rows of ``table``; None if only Python does, as where not all rows are published.

    ``shard``: globally qualified. ``fields``: of the row and of the key, as ``relay.avro.compiled_fields`` has them.
    ``change``: makes one, as `change_maker` returns it, of the rows as the core has them.
    """
    if fields is None or table.wanted is not None:
        return None
    from relay.native._core import CompiledRows

    row, key = fields
    return CompiledRows(
        shard=shard,
        source=source,
        table=table.name,
        columns=[(*cell, field) for cell, field in zip(cells, row, strict=True)],
        key=list(zip(table.key, key, strict=True)),
        change=change,
        keyspace_id=table.keyspace_id,
    )


def change_maker(table: Table, source: str, shard: str) -> Callable[..., Change]:
    """Return what makes a change of what the core knows of it. ``shard``: globally qualified."""
    image, key = imager(table), keyer(table)

    def change(
        *,
        event_id: str,
        operation: str,
        before: Row | None,
        after: Row | None,
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
        keyed = before if after is None else after
        assert keyed is not None
        return Change(
            event_id,
            Operation(operation),
            source,
            table.name,
            key(keyed),
            None if before is None else image(before),
            None if after is None else image(after),
            Images.NEW_AND_OLD,
            EventToken(timestamp, shard, position),
            committed_at,
            relayed_at,
            resume_timestamp,
            None,
            Transaction(gtid, order, last),
            keyspace_id,
        )

    return change

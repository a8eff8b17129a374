"""A table as its rows are laid out at some point of a stream: names, column types, key.

May be changed here: which columns a table is keyed by when its config does not say. That decides partitions (I2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relay.errors import RelayError
from relay.table import Column, KeyColumn, TableSchema

Row = Sequence[Any]
"""The values of one row, in the order of its table's columns: see ``relay.sql.columns``."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One layout of one table: made once for each, and told from others by identity.

    ``names``: of the columns, in the order of the rows. ``key``: where in a row the columns of ``schema.key`` are.
    ``keyspace_id``: of a row, where the table's primary vindex can be computed.
    """

    schema: TableSchema
    names: tuple[str, ...]
    key: tuple[int, ...]
    keyspace_id: Callable[[Row], bytes | None] | None = None

    @property
    def name(self) -> str:
        return self.schema.table

    def __repr__(self) -> str:
        return f"<Table[{self.name}: {len(self.names)} columns]>"


def lay_out(
    source: str,
    name: str,
    columns: Sequence[Column],
    primary: Sequence[str],
    *,
    key: Sequence[str] = (),
    hash_key: Sequence[str] = (),
    keyspace_id: Callable[[Row], bytes | None] | None = None,
) -> Table:
    """Return the layout of a table. ``primary``: its primary key, in the key's own order.

    ``key``: the columns that take the place of a primary key. ``hash_key``: those of the key that choose the
    partition; all of it unless given. Raises ``RelayError`` for a table that cannot be keyed.
    """
    types = {column.name: column.type for column in columns}
    wanted = list(key or primary)
    if not wanted:
        raise RelayError(
            f"source {source}: the table {name} has no primary key: name the columns that stand for one, such as "
            f"`key: {{{name}: [{columns[0].name if columns else 'id'}]}}`, or leave it out of `tables`"
        )
    for column in (*wanted, *hash_key):
        if column not in types:
            raise RelayError(f"source {source}: the table {name} has no column {column!r}, which it is keyed by")
    first = [column for column in hash_key if column in wanted]
    if len(first) != len(hash_key):
        # A key that does not hold them could not say which partition a change belongs to.
        wanted = [*wanted, *(column for column in hash_key if column not in wanted)]
        first = list(hash_key)
    ordered = [*first, *(column for column in wanted if column not in first)]
    schema = TableSchema(
        source,
        name,
        tuple(KeyColumn(column, types[column]) for column in ordered),
        hash_columns=len(first) or len(ordered),
        row=tuple(columns),
    )
    names = tuple(column.name for column in columns)
    return Table(schema, names, tuple(names.index(column) for column in ordered), keyspace_id)

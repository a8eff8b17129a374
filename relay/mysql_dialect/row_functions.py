"""Functions of a row, made once for each layout of a table: its image, its key, and the key as bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from relay.change import event_ids
from relay.errors import RelayError
from relay.mysql_dialect.tables import Row, Table
from relay.types.columns import ColumnKind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class RowMapper:
    """Functions for the rows of one table. ``image``, ``key``: by column name. ``identity``: the key as bytes.

    ``event_id``, ``read_id``: the id of a change, and of a copied row.
    """

    table: Table
    image: Callable[[Row], dict[str, Any]]
    key: Callable[[Row], dict[str, Any]]
    identity: Callable[[Row], bytes]
    event_id: Callable[..., str]
    read_id: Callable[..., str]

    @classmethod
    def of(cls, table: Table, shard: str, source: str) -> RowMapper:
        """Make the functions for ``table``. ``shard``: as in event ids."""
        ids, reads = event_ids(shard, table.name), event_ids(source, table.name)
        return cls(table, imager(table), keyer(table), identifier(table), ids, reads)


def imager(table: Table) -> Callable[[Row], dict[str, Any]]:
    """Return the function that makes a row a dict by published column.

    Generated: a loop over columns takes twice as long, and nobody pays for columns that are not protected.
    """
    values = [f"v{at}" for at in range(len(table.names))]
    published = {column.name for column in table.schema.row or ()}
    environment: dict[str, Any] = {}
    pairs = []
    for name, value in zip(table.names, values, strict=True):
        if name not in published:
            continue
        shown = value
        if name in table.replaced:
            environment[f"f{value}"] = table.replaced[name]
            shown = f"None if {value} is None else f{value}({value})"
        pairs.append(f"{name!r}: {shown}")
    exec(f"def image(row):\n {', '.join(values)}, = row\n return {{{', '.join(pairs)}}}", environment)
    image: Callable[[Row], dict[str, Any]] = environment["image"]
    return image


def keyer(table: Table) -> Callable[[Row], dict[str, Any]]:
    """Return the function that makes the key of a row a dict by column."""
    columns = [
        (column.name, at, column.type == ColumnKind.TIMESTAMP)
        for column, at in zip(table.schema.key, table.key, strict=True)
    ]
    if len(columns) == 1 and not columns[0][2]:
        ((name, only, _),) = columns
        return lambda row: {name: row[only]}
    return lambda row: {
        name: _EPOCH + timedelta(microseconds=row[at]) if is_time else row[at] for name, at, is_time in columns
    }


def identifier(table: Table) -> Callable[[Row], bytes]:
    """Return the function that makes the key of a row bytes, so that different keys are different bytes."""
    only = table.key[0] if len(table.key) == 1 else None

    def identity(row: Row) -> bytes:
        if only is not None and type(value := row[only]) is int:
            return b"%d" % value
        try:
            parts = [_part(row[at]) for at in table.key]
        except TypeError as fault:
            values = {table.names[at]: row[at] for at in table.key}
            raise RelayError(
                f"source {table.schema.source}: {values!r} cannot be a key of {table.name}: {fault}"
            ) from None
        return parts[0] if len(parts) == 1 else b"".join([len(part).to_bytes(4, "big") + part for part in parts])

    return identity


def _part(value: Any) -> bytes:
    if type(value) is int:
        return b"%d" % value
    if type(value) is str:
        return value.encode()
    if type(value) is bytes:
        return value
    if type(value) is float:
        return repr(value).encode()
    if type(value) is Decimal:
        return f"{value:f}".encode()
    raise TypeError(f"{value!r} cannot be part of a key")

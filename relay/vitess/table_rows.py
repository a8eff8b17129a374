"""Reads the rows that a table has now, on the primaries through vtgate: all rows, some, or the rows of some keys.

The connections of tablets give text in UTF-8, and times in the server's time zone, which is not changed here.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from relay.avro.columns import shortest
from relay.config.protection import NOT_SHOWN
from relay.errors import RelayError, Unavailable
from relay.mysql_dialect.catalog import quoted
from relay.mysql_dialect.printed import Printed, printed
from relay.mysql_dialect.row_functions import PublishedRows
from relay.source import Opening
from relay.table import TableSchema
from relay.types.sql import Form, defined
from relay.vitess.position import VitessShard
from relay.vitess.settings import Portion
from relay.vitess.source import VitessSource

_FLOAT = struct.Struct("<f")


class VitessTableRows:
    """The published rows of one table, in the ``shards`` that have it. ``source``: a connected source.

    Methods raise ``Unavailable``, and ``RelayError`` for a value that cannot be carried. A table whose definition
    changes meanwhile has to be read again.
    """

    def __init__(self, source: VitessSource, shards: Sequence[Opening], table: str) -> None:
        having = [each for each in shards if Portion.of(each.start).has(table)]  # I1: MoveTables moved it
        named = {each.shard.name: VitessShard.of(source.stream, each.shard, source.config.keyspace) for each in having}
        self._shards = list(named.values())  # I7: after a move back, two streams have the name of one shard
        if not named:  # otherwise, every published row would count as surplus
            raise Unavailable(f"source {source.name}: no shard with table {table} is read yet: try again later")
        keyspaces = sorted({each.keyspace for each in self._shards})
        definition = source.definitions(keyspaces[0]).get(table)
        if definition is None:
            raise RelayError(f"source {source.name}: keyspace {keyspaces[0]} has no table {table}")
        layouts = source.layouts(keyspaces[0], having[0])  # I2: a moved table keeps its key
        layout = None if definition.problem else layouts(table, tuple(definition.columns), definition.primary)
        if layout is None:
            problem = definition.problem or "is not relayed: list it in `tables`"
            raise RelayError(f"source {source.name}: table {table} {problem}")
        self.schema: TableSchema = layout.schema
        self._source = source
        self._published = PublishedRows(layout, definition.types, in_utc=False)
        selected = [_selected(name, definition.types[name]) for name in layout.names]
        self._decoders = [read.decode for _, read in selected]
        self._select = f"select {', '.join(selects for selects, _ in selected)} from {quoted(table)}"

    def close(self) -> None:
        """Do nothing: each statement ends its own call."""

    def all(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield key and image of all rows. The server keeps the rows as they were at first until all are read."""
        return self._rows("")

    def some(self, count: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield up to ``count`` rows of each shard, picked at random. The server scans the whole table."""
        return self._rows(f"order by rand() limit {count}")

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the rows that have these keys. ``keys``: see ``PublishedRows.conditions``."""
        for condition in self._published.conditions(keys):
            yield from self._rows(f"where {condition}")

    def _rows(self, rest: str) -> Iterator[tuple[Mapping[str, Any], Any]]:
        for shard in self._shards:
            for raw in self._source.rows(shard, f"{self._select} {rest}"):
                yield from self._published.of(self._decoded(raw))

    def _decoded(self, raw: Sequence[bytes | None]) -> tuple[Any, ...]:
        found: list[Any] = []
        try:
            for value, decode in zip(raw, self._decoders, strict=True):
                found.append(None if value is None else decode(value))
        except (ValueError, ArithmeticError, KeyError) as error:
            column = self._published.table.names[len(found)]
            shown = NOT_SHOWN if self.schema.protected else f"{raw[len(found)]!r:.60} cannot be carried: {error}"
            raise RelayError(f"table {self.schema.table}: column {column}: {shown}") from None
        return tuple(found)


def _selected(name: str, definition: str) -> tuple[str, Printed]:
    """Return the expression that selects a column, and its decoder: nothing is rounded, no time zone matters (I8)."""
    column, found = quoted(name), defined(definition)
    match found.type.form:
        case Form.FLOAT:
            return f"{column} * 1E0", Printed(lambda raw: shortest(_FLOAT.pack(float(raw))))
        case Form.DOUBLE:
            return f"{column} * 1E0", printed(found, None)
        case Form.TIMESTAMP:
            return f"unix_timestamp({column})", Printed(lambda raw: int(Decimal(raw.decode()).scaleb(6)))
        case _:
            return column, printed(found, None)

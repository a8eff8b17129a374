"""The rows that a table has now, read on the primaries: all of them, some, or the rows of some keys."""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from relay.errors import Unavailable
from relay.mysql.chunks import SESSION, ChunkQuery, quoted
from relay.mysql.connection import ServerConnection
from relay.mysql.database_snapshots import describe
from relay.mysql.source import MySQLSource
from relay.mysql_dialect.row_functions import imager
from relay.mysql_dialect.tables import Table
from relay.table import KeyColumn, TableSchema
from relay.types.columns import column_type
from relay.types.sql import Form, defined

_CHUNK = 5_000  # rows that one statement reads
_KEYS = 200  # that one statement looks for
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")

_TEXTS = (Form.TEXT, Form.ENUM, Form.TIME, Form.TIMESTAMP)
_BYTES = (Form.PADDED, Form.BYTES)
_ZERO = "1970-01-01T00:00:00.000000Z"  # also stands for the zero TIMESTAMP


class MySQLTableRows:
    """The published rows of one table, in each of ``shards``.

    Methods raise ``Unavailable``, and ``RelayError`` as snapshots do. A table whose definition changes meanwhile has to
    be read again.
    """

    def __init__(self, source: MySQLSource, shards: Sequence[str], table: str) -> None:
        self._database = source.config.database
        with ExitStack() as stack:
            self._shards = [
                _TableInShard(stack.enter_context(closing(source.primary(shard))), source, table) for shard in shards
            ]
            self._stack = stack.pop_all()
        self.schema: TableSchema = self._shards[0].layout.schema

    def close(self) -> None:
        self._stack.close()

    def all(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield key and image of all rows, chunk by chunk in the order of an index."""
        for shard in self._shards:
            after: Sequence[bytes] = []
            has_more, count = True, 0
            while has_more or count == _CHUNK:
                statement, has_more = shard.query.statement(after, _CHUNK, shard.server.raw_rows)
                count = 0
                # As they arrive: the rows of a chunk may be large.
                for raw in shard.server.raw_rows(statement):
                    count, after = count + 1, shard.query.key_of(raw)
                    yield from shard.published(raw)

    def some(self, count: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield up to ``count`` rows of each shard, picked at random. The server looks at all of them."""
        for shard in self._shards:
            for raw in shard.server.raw_rows(shard.query.select(f"ORDER BY RAND() LIMIT {count}")):
                yield from shard.published(raw)

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the rows that have these keys, and perhaps others that the server takes for equal.

        ``keys``: the texts of the columns, binary in base64.
        """
        for shard in self._shards:
            for at in range(0, len(keys), _KEYS):
                where = " OR ".join(map(shard.is_row_of, keys[at : at + _KEYS]))
                for raw in shard.server.raw_rows(shard.query.select(f"WHERE {where}")):
                    yield from shard.published(raw)


class _TableInShard:
    """The table in one shard: a connection to its primary, the layout of the table, and its statements."""

    def __init__(self, server: ServerConnection, source: MySQLSource, table: str) -> None:
        self.server = server
        for statement in SESSION:
            server.execute(statement)
        described = describe(server, source.config.database, table)
        if not described.columns:
            raise Unavailable(f"source {source.name}: {server.account.address} has no table {table}")
        definition = described.definition(table)
        layout = source.layouts(source.config.database, table, definition.columns, definition.primary)
        if layout is None:
            raise Unavailable(f"source {source.name}: the table {table} is not relayed: list it in `tables`")
        self.layout: Table = layout
        shows_values = not layout.schema.protected
        self.query = ChunkQuery(source.config.database, table, described, shows_values=shows_values)
        self._image = imager(layout)
        self._forms = {name: defined(kind).type.form for name, kind, *_ in described.columns}

    def published(self, raw: tuple[bytes | None, ...]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield what a change has of a row; nothing if the row is not published."""
        row, layout = self.query.row(raw), self.layout
        if layout.wanted is None or layout.wanted(row):
            columns = zip(layout.schema.key, layout.key, strict=True)
            yield {column.name: row[at] for column, at in columns}, self._image(row)

    def is_row_of(self, key: Sequence[str]) -> str:
        """Return a condition that the row with this key meets; a column's is left out if it may not be exact."""
        columns = zip(self.layout.schema.key, key, strict=True)
        conditions = [condition for column, part in columns if (condition := self._equals(column, part))]
        return f"({' AND '.join(conditions) or 'true'})"

    def _equals(self, column: KeyColumn, part: str) -> str:
        name, form = quoted(column.name), self._forms[column.name]
        if column_type(column.type).family == "number":
            return f"{name} = {part}" if _NUMBER.fullmatch(part) else "false"
        if form in _BYTES:
            return f"{name} = X'{b64decode(part).hex()}'"
        if form in _TEXTS and part != _ZERO:
            text = part.replace("T", " ").removesuffix("Z") if form is Form.TIMESTAMP else part
            # The server converts a literal to the character set of the column, so that it finds it by the index.
            return f"{name} = _utf8mb4 X'{text.encode().hex()}'"
        return ""

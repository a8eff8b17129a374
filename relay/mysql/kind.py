"""MySQL and MariaDB as a kind of source, and the present rows of its tables, read on the primaries."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from relay.config import MySQLConfig
from relay.errors import RelayError, Unavailable
from relay.mysql.chunks import SESSION, ChunkQuery
from relay.mysql.connection import ServerConnection
from relay.mysql.database_snapshots import describe
from relay.mysql.source import MySQLSource
from relay.mysql_dialect.row_functions import PublishedRows
from relay.mysql_dialect.sources import check_tables, find_tables
from relay.source import CheckedSource, Finding, Opening, SourceKind
from relay.table import TableSchema

_CHUNK = 5_000  # rows that one statement reads


class MySQLTableRows:
    """The published rows of one table: read it again if its definition changes. Raises as snapshots do."""

    def __init__(self, source: MySQLSource, shards: Sequence[str], table: str) -> None:
        with ExitStack() as stack:
            self._shards = [
                _TableInShard(stack.enter_context(closing(source.primary(shard))), source, table) for shard in shards
            ]
            self._stack = stack.pop_all()
        self.schema: TableSchema = self._shards[0].published.table.schema

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
                # As they arrive, because the rows of a chunk may be large.
                for raw in shard.server.raw_rows(statement):
                    count, after = count + 1, shard.query.key_of(raw)
                    yield from shard.published.of(shard.query.row(raw))

    def some(self, count: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield up to ``count`` random rows of each shard. The server looks at all rows."""
        for shard in self._shards:
            for raw in shard.server.raw_rows(shard.query.select(f"ORDER BY RAND() LIMIT {count}")):
                yield from shard.published.of(shard.query.row(raw))

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the rows that have these keys. ``keys``: see ``PublishedRows.conditions``."""
        for shard in self._shards:
            for condition in shard.published.conditions(keys):
                for raw in shard.server.raw_rows(shard.query.select(f"WHERE {condition}")):
                    yield from shard.published.of(shard.query.row(raw))


class _TableInShard:
    def __init__(self, server: ServerConnection, source: MySQLSource, table: str) -> None:
        self.server = server
        for statement in SESSION:
            server.execute(statement)
        described = describe(server, source.config.database, table)
        if not described.columns:
            raise RelayError(f"source {source.name}: {server.account.address} has no table {table}")
        definition = described.definition(f"{source.config.database}.{table}")
        layout = source.layouts(source.config.database, table, definition.columns, definition.primary)
        if layout is None:
            raise RelayError(f"source {source.name}: the table {table} is not relayed: list it in `tables`")
        self.published = PublishedRows(layout, definition.types, in_utc=True)
        shows_values = not layout.schema.protected
        self.query = ChunkQuery(source.config.database, table, described, shows_values=shows_values)


def _check(entry: MySQLConfig) -> CheckedSource:
    """Check the tables and the servers of all shards; the relay would notice an unreadable binlog only later."""
    source = MySQLSource(entry)
    found, unreadable, rows = check_tables(source), source.unreadable(), source.row_count()
    servers = [Finding(f"server {address}", problem, Unavailable.exit_code) for address, problem in unreadable.items()]
    return CheckedSource([*found.findings, *servers], found.tables, rows)


def _rows(
    entry: MySQLConfig, open_shards: Callable[[], Sequence[Opening]], tables: Iterable[str]
) -> Iterator[MySQLTableRows]:
    shards, source = [each.shard.name for each in open_shards()], MySQLSource(entry)
    for table in tables:
        yield MySQLTableRows(source, shards, table)


KIND = SourceKind(MySQLSource, lambda entry: find_tables(MySQLSource(entry)), _check, _rows)

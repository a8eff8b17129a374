"""What ``relay check`` says of the tables of an SQL source."""

from __future__ import annotations

from relay.config import MySQLConfig, VitessConfig
from relay.errors import Unavailable
from relay.mysql_dialect.tables import missing_tables
from relay.source import CheckedSource, CheckedTable, Finding, Source
from relay.table import TableSchema


def check_tables(entry: VitessConfig | MySQLConfig, source: Source) -> CheckedSource:
    """Connect as the relay does, and read the layout of every table. Raises ``RelayError`` if one cannot be relayed."""
    source.connect()
    tables = source.tables()
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    if absent := missing_tables(entry.named_tables, tables):
        there = "create it, or remove it from `tables` and `where`"
        raise Unavailable(f"it has no table {', '.join(absent)}: {there}")
    return CheckedSource([Finding(f"source {entry.name}", f"{entry.database}: {count}")], [*map(_table, tables)])


def _table(table: TableSchema) -> CheckedTable:
    names = [column.name for column in table.key]
    key = f"key {', '.join(names)}, hashed by {', '.join(names[: table.hash_columns])}"
    return CheckedTable(table, [Finding(f"table {table.table}", f"{key}{table.protection}")], columns=table.row or ())

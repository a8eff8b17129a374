"""MySQL and MariaDB as a kind of source."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from relay.config import MySQLConfig
from relay.errors import Unavailable
from relay.mysql.source import MySQLSource
from relay.mysql.table_rows import MySQLTableRows
from relay.mysql_dialect.sources import check_tables, find_tables
from relay.source import CheckedSource, Finding, SourceKind


def _find_tables(entry: MySQLConfig) -> list[str]:
    with closing(MySQLSource(entry)) as source:
        source.layouts.skipped.is_quiet = True
        return find_tables(source)


def _check(entry: MySQLConfig) -> CheckedSource:
    """Check the tables, and the servers of all shards: the relay would notice later that a binlog cannot be read."""
    with closing(MySQLSource(entry)) as source:
        found, unreadable, rows = check_tables(entry, source), source.unreadable(), source.row_count()
    servers = [Finding(f"server {address}", problem, Unavailable.exit_code) for address, problem in unreadable.items()]
    return CheckedSource([*found.findings, *servers], found.tables, rows)


def _rows(entry: MySQLConfig, open_shards: Callable[[], Sequence[str]]) -> Iterator[MySQLTableRows]:
    shards = open_shards()
    with closing(MySQLSource(entry)) as source:
        for table in entry.table_names:
            yield MySQLTableRows(source, shards, table)


KIND = SourceKind(MySQLSource, _find_tables, _check, _rows)

"""From an entry of ``sources:`` to the source that reads it: where the kinds of databases are told apart.

Each kind is imported only when one is opened: its packages are extras, and take their time to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relay.config import Config, DynamoDBConfig, MySQLConfig, SourceConfig, VitessConfig
from relay.extras import needs
from relay.source import Source


def open_source(entry: SourceConfig) -> Source:
    """Return the source of ``entry``. ``connect`` comes first."""
    match entry:
        case DynamoDBConfig():
            with needs("dynamodb", f'the source "{entry.name}"'):
                from relay.dynamodb.source import DynamoDBSource
            return DynamoDBSource(entry)
        case VitessConfig():
            with needs("vitess", f'the source "{entry.name}"'):
                from relay.vitess.source import VitessSource
            return VitessSource(entry)
        case MySQLConfig():
            with needs("mysql", f'the source "{entry.name}"'):
                from relay.mysql.source import MySQLSource
            return MySQLSource(entry)


def open_sources(config: Config) -> Sequence[Source]:
    return [open_source(entry) for entry in config.sources]


def find_tables(entry: SourceConfig) -> Iterable[str]:
    """Ask for the tables of a source whose config does not name them. Raises ``Unavailable``."""
    match entry:
        case DynamoDBConfig():
            with needs("dynamodb", f'the source "{entry.name}"'):
                from relay.dynamodb.discover import tagged
            return tagged(entry)
        case VitessConfig():
            with needs("vitess", f'the source "{entry.name}"'):
                from relay.vitess.source import tables_of as of_keyspace
            return of_keyspace(entry)
        case MySQLConfig():
            with needs("mysql", f'the source "{entry.name}"'):
                from relay.mysql.source import tables_of as of_database
            return of_database(entry)

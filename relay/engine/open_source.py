"""From an entry of ``sources:`` to the source that reads it: where the kinds of databases are told apart.

Each kind is imported only when one is opened: boto3, gRPC and PyMySQL take their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relay.config import Config, DynamoDBSource, MySQLSource, Source, VitessSource
from relay.source import Source as OpenSource


def open_source(entry: Source) -> OpenSource:
    """Return the source of ``entry``. ``connect`` comes first."""
    match entry:
        case DynamoDBSource():
            from relay.dynamodb.source import DynamoDBSource as DynamoDB

            return DynamoDB(entry)
        case VitessSource():
            from relay.vitess.source import VitessSource as Vitess

            return Vitess(entry)
        case MySQLSource():
            from relay.mysql.source import MySQLSource as MySQL

            return MySQL(entry)


def open_sources(config: Config) -> Sequence[OpenSource]:
    return [open_source(entry) for entry in config.sources]


def find_tables(entry: Source) -> Iterable[str]:
    """Ask for the tables of a source whose config does not name them. Raises ``Unavailable``."""
    match entry:
        case DynamoDBSource():
            from relay.dynamodb.discover import tagged

            return tagged(entry)
        case VitessSource():
            from relay.vitess.source import tables_of as of_keyspace

            return of_keyspace(entry)
        case MySQLSource():
            from relay.mysql.source import tables_of as of_database

            return of_database(entry)

"""The rows that the tables of the sources have now: the truth with which the copy and the log are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

from relay.config import Config, DynamoDBConfig, MySQLConfig
from relay.errors import ConfigError, Unavailable
from relay.extras import needs
from relay.kafka.checkpoints import read_checkpoints
from relay.records import Shard
from relay.stream.planning import newest_planned
from relay.table import TableSchema


class SourceRows(Protocol):
    """The rows of one table, each as the key and the image of a change. Methods raise ``Unavailable``."""

    schema: TableSchema

    def close(self) -> None: ...

    def all(self) -> Iterator[tuple[Mapping[str, Any], Any]]: ...

    def some(self, count: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield about ``count`` rows picked at random."""

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the rows of some keys, perhaps with others. ``keys``: as texts, binary in base64."""


def source_rows(config: Config, say: Callable[[str], None]) -> Iterator[SourceRows]:
    """Open the tables one after another; the caller closes each. ``say``: told what is left out.

    Raises ``Unavailable``, and ``ConfigError`` if no source can be read.
    """
    readable = [entry for entry in config.sources if isinstance(entry, (DynamoDBConfig, MySQLConfig))]
    for entry in config.sources:
        if entry not in readable:
            problem = f"source {entry.name}: `relay verify` cannot read the rows of type {entry.type}"
            if not readable:
                raise ConfigError(f"{problem}: only those of dynamodb and mysql")
            say(f"{problem}: its tables are left out")
    for entry in readable:
        with needs(entry.type, f'the source "{entry.name}"'):
            if isinstance(entry, DynamoDBConfig):
                from relay.dynamodb.table_rows import DynamoDBTableRows

                yield DynamoDBTableRows(entry)
            else:
                yield from _of_database(config, entry)


def _of_database(config: Config, entry: MySQLConfig) -> Iterator[SourceRows]:
    from relay.mysql.source import MySQLSource
    from relay.mysql.table_rows import MySQLTableRows

    shards = _open_shards(config, entry)
    with closing(MySQLSource(entry)) as source:
        for table in entry.table_names:
            yield MySQLTableRows(source, shards, table)


def _open_shards(config: Config, entry: MySQLConfig) -> list[str]:
    """Return the shards that have not ended: before a reshard has, its rows are in both."""
    with closing(read_checkpoints(config.kafka.client(), config.internal("checkpoints"))) as view:
        stream = newest_planned(view, entry.name)
        checkpoints = view.checkpoints.get(stream, {}) if stream is not None else {}
        found = sorted(Shard(name).name for name, each in checkpoints.items() if not each.state.ended)
    if not found:
        raise Unavailable(f"source {entry.name} has not been read yet: start `relay run` first")
    return found

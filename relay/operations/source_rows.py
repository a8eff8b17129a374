"""The rows that the tables of the sources have now: the truth with which the copy and the log are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from relay.config import Config, SourceConfig
from relay.engine.kinds import kind_of
from relay.errors import ConfigError, Unavailable
from relay.kafka.checkpoints import read_checkpoints
from relay.records import Shard
from relay.source import SourceRows


def source_rows(config: Config, say: Callable[[str], None]) -> Iterator[SourceRows]:
    """Open the tables one after another; the caller closes each. ``say``: told what is left out.

    Raises ``Unavailable``, and ``ConfigError`` if no source can be read.
    """
    # A source that is left out needs no packages.
    opens = [(entry, kind_of(entry).rows if entry.can_read_rows else None) for entry in config.sources]
    for entry, rows in opens:
        if rows is None:
            problem = f"source {entry.name}: `relay verify` cannot read the rows of type {entry.type}"
            if all(each is None for _, each in opens):
                raise ConfigError(f"{problem}: only those of dynamodb and mysql")
            say(f"{problem}: its tables are left out")
    for entry, rows in opens:
        if rows is not None:
            yield from rows(entry, partial(_open_shards, config, entry))


def _open_shards(config: Config, entry: SourceConfig) -> list[str]:
    """Return the shards that have not ended: before a reshard has, its rows are in both."""
    with closing(read_checkpoints(config.kafka.client(), config.internal("checkpoints"))) as view:
        committed = view.newest(entry.name)
        checkpoints = committed.checkpoints if committed is not None else {}
        found = sorted(Shard(name).name for name, each in checkpoints.items() if not each.state.ended)
    if not found:
        raise Unavailable(f"source {entry.name} has not been read yet: start `relay run` first")
    return found
